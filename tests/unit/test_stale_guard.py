"""The guard against going back to an older version."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dutiful import UsageError, is_stale

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.mark.req("D58")
@pytest.mark.parametrize(
    ("candidate", "current", "stale"),
    [
        (NOON, NOON + timedelta(microseconds=1), True),
        (NOON, NOON, False),
        (NOON, NOON.astimezone(timezone(timedelta(hours=5))), False),
        (NOON, NOON - timedelta(days=1), False),
        (NOON, None, False),
        (None, NOON, False),
        (None, None, False),
        (3, 4, True),
        (4, 4, False),
        (0, None, False),
        ("2024-01", "2024-02", True),
    ],
)
def test_only_what_is_overtaken_by_something_later_is_stale(candidate: Any, current: Any, stale: bool) -> None:
    assert is_stale(candidate, current) is stale


@pytest.mark.parametrize(
    ("candidate", "current", "culprit"),
    [(NOON, NOON.replace(tzinfo=None), "current"), (NOON.replace(tzinfo=None), NOON, "candidate")],
)
def test_a_time_without_a_zone_is_not_compared_with_one_that_has_it(
    candidate: datetime, current: datetime, culprit: str
) -> None:
    with pytest.raises(UsageError, match=f"{culprit} has no time zone"):
        is_stale(candidate, current)


def test_what_has_no_order_is_refused() -> None:
    with pytest.raises(UsageError, match="int and str"):
        is_stale(1, "2")
