"""The wait that a service asked for, as a length of time from now."""

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest

from dutiful.core.errors import UsageError
from dutiful.core.retry.backoff import LONGEST_WAIT, Exponential, Linear, read_retry_after, wait_from

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


@pytest.mark.parametrize("zone", ["GMT", "+0000", "-0000", ""])
def test_a_date_without_a_zone_is_one_of_utc(zone: str) -> None:
    """`-0000` says that the zone is not known."""
    assert read_retry_after(f"Thu, 01 Jan 2026 12:00:00 {zone}") == NOON


def test_a_date_keeps_its_zone() -> None:
    assert read_retry_after("Thu, 01 Jan 2026 13:00:00 +0100") == NOON


def test_a_factor_without_an_end_is_refused() -> None:
    with pytest.raises(UsageError, match="makes no growing delay"):
        Exponential(factor=math.inf)
