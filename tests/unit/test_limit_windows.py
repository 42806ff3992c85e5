"""When a start counts towards a limit, and how the gate of a key is written."""

from datetime import UTC, datetime, timedelta

import pytest

from dutiful.core.limits import Limit, gate_of, read_gate

MINUTE = timedelta(minutes=1)
MICROSECOND = timedelta(microseconds=1)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SLIDING = Limit("api", 10, per=MINUTE)
FIXED = Limit("api", 10, per=MINUTE, fixed=True)


def test_a_limit_slides_and_lets_all_start_together_unless_it_says_otherwise() -> None:
    limit = Limit("api", 10)
    assert (limit.per, limit.burst, limit.fixed, limit.feedback) == (None, None, False, False)


@pytest.mark.parametrize(("burst", "window"), [(1, 6), (5, 30), (9, 54)])
def test_a_burst_has_its_share_of_the_time(burst: int, window: int) -> None:
    assert Limit("api", 10, per=MINUTE, burst=burst).burst_window == timedelta(seconds=window)


@pytest.mark.parametrize("burst", [None, 10, 11])
def test_a_burst_of_all_needs_no_window(burst: int | None) -> None:
    assert Limit("api", 10, per=MINUTE, burst=burst).burst_window is None


def test_a_limit_of_jobs_that_run_at_once_has_no_burst() -> None:
    assert Limit("api", 10, burst=5).burst_window is None


def test_in_a_sliding_window_a_start_counts_for_the_whole_time() -> None:
    at = NOON + timedelta(seconds=17)
    assert SLIDING.counts_since(at) == at - MINUTE
    assert SLIDING.over_at(at) == at + MINUTE


@pytest.mark.parametrize("into", [timedelta(0), MICROSECOND, timedelta(seconds=17), MINUTE - MICROSECOND])
def test_in_a_fixed_window_a_start_counts_until_the_window_ends(into: timedelta) -> None:
    assert FIXED.counts_since(NOON + into) == NOON - MICROSECOND  # a start at its very beginning counts
    assert FIXED.over_at(NOON + into) == NOON + MINUTE


def test_fixed_windows_are_counted_from_the_beginning_of_2000() -> None:
    week = Limit("api", 10, per=timedelta(days=7), fixed=True)
    saturday = datetime(2026, 1, 3, tzinfo=UTC)  # as the first day of 2000 was
    assert week.counts_since(saturday + timedelta(days=3)) == saturday - MICROSECOND
    assert week.over_at(saturday) == saturday + timedelta(days=7)


@pytest.mark.parametrize("limit", [SLIDING, FIXED])
def test_a_start_counts_exactly_until_it_is_over(limit: Limit) -> None:
    started_at = NOON + timedelta(seconds=17)
    over_at = limit.over_at(started_at)
    assert limit.counts_since(over_at) >= started_at
    assert limit.counts_since(over_at - MICROSECOND) < started_at


@pytest.mark.parametrize(
    ("name", "key", "gate"),
    [
        ("api", "acme", '["api", "acme"]'),
        ("api", "", '["api", ""]'),
        ('say "hi"', "back\\slash", r'["say \"hi\"", "back\\slash"]'),
        ("größe", "日本 🙂", '["größe", "日本 🙂"]'),
        ("a, b", '", "', r'["a, b", "\", \""]'),
    ],
)
def test_a_gate_is_written_as_postgres_does_and_read_back(name: str, key: str, gate: str) -> None:
    assert gate_of(name, key) == gate
    assert read_gate(gate) == (name, key)


def test_a_start_is_kept_while_it_may_count_towards_the_burst() -> None:
    at = NOON + timedelta(seconds=17)
    assert SLIDING.kept_since(at) == at - MINUTE
    assert FIXED.kept_since(at) == NOON - MICROSECOND
    assert Limit("api", 10, per=MINUTE, burst=1, fixed=True).kept_since(at) == at - MINUTE
