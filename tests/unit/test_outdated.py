"""Detects that an older version would overwrite a newer one."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dutiful import UsageError, is_outdated

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


@pytest.mark.req("D58")
@pytest.mark.parametrize(
    ("candidate", "current", "outdated"),
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
def test_only_what_is_overtaken_by_something_later_is_outdated(candidate: Any, current: Any, outdated: bool) -> None:
    assert is_outdated(candidate, current) is outdated


@pytest.mark.parametrize(
    ("candidate", "current", "culprit"),
    [(NOON, NOON.replace(tzinfo=None), "current"), (NOON.replace(tzinfo=None), NOON, "candidate")],
)
def test_a_time_without_a_zone_is_not_compared_with_one_that_has_it(
    candidate: datetime, current: datetime, culprit: str
) -> None:
    with pytest.raises(UsageError, match=f"{culprit} has no time zone"):
        is_outdated(candidate, current)


def test_what_has_no_order_is_refused() -> None:
    with pytest.raises(UsageError, match="int and str"):
        is_outdated(1, "2")
