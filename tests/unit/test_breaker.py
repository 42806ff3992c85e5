"""A breaker as a value: which calls enter, what their results change, how many jobs may probe."""

from datetime import UTC, datetime, timedelta

import pytest

from dutiful.core.breaker.state import (
    PAUSE_SCOPES,
    PROBE_WAIT,
    Breaker,
    BreakerPolicy,
    BreakerState,
    CallResult,
    Entry,
    Rejected,
    blocks,
    closed,
    due,
    enter,
    exited,
    half_opened,
    opened,
    probe_room,
)
from dutiful.core.errors import UsageError

T0 = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
POLICY = BreakerPolicy(failures=3, open_for=MINUTE, probes=2)
CLOSED = Breaker(name="maps", policy=POLICY)
OPEN = opened(CLOSED, T0, MINUTE)
HALF_OPEN = half_opened(OPEN, T0 + MINUTE)


@pytest.mark.req("L55", "L66")
def test_by_default_five_failures_open_it_for_a_minute() -> None:
    breaker = Breaker(name="maps")
    for _ in range(5):
        assert breaker.state is BreakerState.CLOSED
        breaker = exited(breaker, BreakerPolicy(), Entry(0), CallResult.BAD, T0)

    assert (breaker.state, breaker.open_until) == (BreakerState.OPEN, T0 + MINUTE)


@pytest.mark.parametrize("field", ["failures", "probes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", 10**9])
def test_a_policy_of_senseless_numbers_names_the_field(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{field} is {value!r}"):
        BreakerPolicy(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("open_for", [timedelta(0), timedelta(milliseconds=9), timedelta(days=366)])
def test_it_cannot_be_open_for_no_time_or_for_ever(open_for: timedelta) -> None:
    with pytest.raises(UsageError, match="open_for"):
        BreakerPolicy(open_for=open_for)


@pytest.mark.req("L56")
def test_a_closed_one_lets_everybody_in_and_is_not_changed_by_that() -> None:
    assert enter(CLOSED, POLICY, 1000, T0) == (CLOSED, Entry(0))
    assert exited(CLOSED, POLICY, Entry(0), CallResult.GOOD, T0) is CLOSED


@pytest.mark.req("L57")
def test_an_open_one_rejects_and_says_until_when() -> None:
    now = T0 + timedelta(seconds=59)

    assert enter(OPEN, POLICY, 0, now) == (OPEN, Rejected(T0 + MINUTE, timedelta(seconds=1)))


@pytest.mark.req("L58")
def test_when_its_time_is_over_the_first_one_half_opens_it() -> None:
    breaker, answer = enter(OPEN, POLICY, 99, T0 + MINUTE)  # those that probed in an earlier round do not count

    assert breaker == HALF_OPEN
    assert answer == Entry(HALF_OPEN.round, probe=True)


@pytest.mark.parametrize(
    ("successes", "probing", "admitted"), [(0, 1, True), (1, 0, True), (1, 1, False), (0, 2, False)]
)
def test_a_half_open_one_admits_what_is_missing(successes: int, probing: int, admitted: bool) -> None:
    breaker = Breaker(name="maps", state=BreakerState.HALF_OPEN, successes=successes, round=2)

    _, answer = enter(breaker, POLICY, probing, T0)

    assert answer == (Entry(2, probe=True) if admitted else Rejected(T0 + PROBE_WAIT, PROBE_WAIT))


def test_a_call_rejected_by_a_breaker_that_opens_briefly_may_try_again_soon() -> None:
    _, answer = enter(HALF_OPEN, BreakerPolicy(open_for=timedelta(seconds=1)), 1, T0)

    assert answer == Rejected(T0 + timedelta(seconds=1), timedelta(seconds=1))


def test_what_ends_for_reasons_of_its_own_closes_a_half_open_one_when_nothing_speaks_against_it_for_long() -> None:
    breaker = HALF_OPEN
    for neutral in (1, 2):
        breaker = exited(breaker, POLICY, Entry(HALF_OPEN.round, probe=True), CallResult.NEUTRAL, T0)
        assert (breaker.state, breaker.neutral, breaker.round) == (BreakerState.HALF_OPEN, neutral, HALF_OPEN.round)
        breaker = exited(breaker, POLICY, Entry(HALF_OPEN.round, probe=True), CallResult.UNCLEAR, T0)

    bad = exited(breaker, POLICY, Entry(HALF_OPEN.round, probe=True), CallResult.BAD, T0)
    assert (bad.state, bad.neutral) == (BreakerState.OPEN, 0)
    shut = exited(breaker, POLICY, Entry(HALF_OPEN.round, probe=True), CallResult.NEUTRAL, T0)
    assert (shut.state, shut.neutral, shut.failures) == (BreakerState.CLOSED, 0, 0)


def test_what_ends_for_reasons_of_its_own_changes_nothing_of_a_closed_one() -> None:
    failed = exited(CLOSED, POLICY, Entry(0), CallResult.BAD, T0)

    assert exited(failed, POLICY, Entry(0), CallResult.NEUTRAL, T0) is failed


def test_a_round_begins_without_what_was_counted_in_the_last_one() -> None:
    counted = exited(HALF_OPEN, POLICY, Entry(HALF_OPEN.round, probe=True), CallResult.NEUTRAL, T0)

    again = [opened(counted, T0, MINUTE), closed(counted), half_opened(counted, T0)]
    assert [breaker.neutral for breaker in again] == [0, 0, 0]


def test_every_change_of_state_begins_a_round() -> None:
    rounds = [CLOSED, OPEN, HALF_OPEN, opened(HALF_OPEN, T0, MINUTE), closed(HALF_OPEN), closed(CLOSED)]

    assert [breaker.round for breaker in rounds] == [0, 1, 2, 3, 3, 1]


@pytest.mark.parametrize("result", CallResult)
@pytest.mark.parametrize("breaker", [OPEN, HALF_OPEN, closed(HALF_OPEN)])
def test_a_word_from_another_round_changes_nothing(breaker: Breaker, result: CallResult) -> None:
    assert exited(breaker, POLICY, Entry(breaker.round - 1), result, T0) is breaker


def test_one_that_is_open_is_due_when_its_time_is_over() -> None:
    assert not due(OPEN, T0 + MINUTE - timedelta(microseconds=1))
    assert due(OPEN, T0 + MINUTE)
    assert not due(HALF_OPEN, T0 + MINUTE)
    assert not due(CLOSED, T0 + MINUTE)


def test_only_what_is_not_closed_has_a_gate() -> None:
    assert PAUSE_SCOPES.keys() == {*BreakerState} - {BreakerState.CLOSED}


@pytest.mark.parametrize(
    ("probing", "chosen", "expected"), [(0, 0, 2), (1, 0, 1), (0, 1, 1), (1, 1, 0), (2, 0, 0), (9, 9, 0)]
)
def test_as_many_pass_its_gate_as_are_missing(probing: int, chosen: int, expected: int) -> None:
    assert probe_room(HALF_OPEN, probing, chosen) == expected


def test_a_policy_that_asks_for_fewer_probes_than_were_good_still_lets_one_in_to_close_it() -> None:
    fewer = BreakerPolicy(failures=1, probes=1)
    half_open = Breaker(name="mail", state=BreakerState.HALF_OPEN, successes=1, round=2, policy=fewer)
    assert probe_room(half_open, probing=0, chosen=0) == 1
    _, entry = enter(half_open, fewer, 0, T0)
    assert entry == Entry(2, probe=True)
    assert exited(half_open, fewer, Entry(2), CallResult.GOOD, T0).state is BreakerState.CLOSED


def test_its_trips_count_failures_and_not_operators() -> None:
    breaker = exited(CLOSED, BreakerPolicy(failures=1), Entry(0), CallResult.BAD, T0)
    for _ in range(3):
        breaker = half_opened(opened(breaker, T0, MINUTE), T0 + MINUTE)
        breaker = exited(breaker, BreakerPolicy(failures=1), Entry(breaker.round, probe=True), CallResult.BAD, T0)

    assert (breaker.failures, breaker.trips) == (1, 4)


def test_a_breaker_past_open_until_blocks_only_if_something_waits() -> None:
    over = T0 + MINUTE

    assert blocks(OPEN, 0, 0, T0)
    assert [blocks(breaker, 0, 0, over) for breaker in (OPEN, HALF_OPEN, CLOSED)] == [False] * 3
    assert [blocks(breaker, 1, 0, over) for breaker in (OPEN, HALF_OPEN, CLOSED)] == [True, True, False]
    assert [blocks(breaker, 0, 1, over) for breaker in (HALF_OPEN, CLOSED)] == [True, False]
