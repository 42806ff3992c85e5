"""The wait that a service asked for, as a length of time from now."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from dutiful.core.retry.backoff import LONGEST_WAIT, Linear, wait_from

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        (None, None),
        (HOUR, HOUR),
        (NOON + HOUR, HOUR),
        (NOON + timedelta(seconds=1), timedelta(seconds=1)),
        ((NOON + HOUR).astimezone(timezone(HOUR)), HOUR),
        (NOON, None),
        (NOON - HOUR, None),
    ],
)
def test_a_moment_is_waited_for_and_a_length_of_time_is_taken_as_it_is(
    asked: timedelta | datetime | None, wait: timedelta | None
) -> None:
    assert wait_from(NOON, asked) == wait


def test_the_longest_wait_is_a_day() -> None:
    assert timedelta(days=1) == LONGEST_WAIT


def test_a_cap_may_be_the_base_itself() -> None:
    assert Linear("1m", cap="1m").cap == timedelta(minutes=1)
