"""Which queue levels a hint of new jobs names: all, if a job may be below the floors of workers or is due soon."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.job import NewJob
from dutiful.store.jobs import MANY, hinted_levels

NOW = datetime.now(UTC)
HERE, EVERYWHERE = frozenset({("mail", 5)}), frozenset[tuple[str, int]]()


def job(**fields: Any) -> NewJob:
    return NewJob(id=UUID(int=1), kind="greet", queue="mail", priority=5, payload="{}", **fields)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({}, HERE),
        ({"delay": timedelta(0)}, EVERYWHERE),
        ({"delay": timedelta(seconds=1)}, EVERYWHERE),
        ({"delay": timedelta(hours=1)}, None),
        ({"run_at": NOW - timedelta(hours=1)}, EVERYWHERE),
        ({"run_at": NOW + timedelta(hours=1)}, None),
    ],
    ids=["no time", "no delay", "a second", "an hour", "the past", "the future"],
)
def test_a_hint_names_what_has_to_be_looked_at(
    times: dict[str, Any], expected: frozenset[tuple[str, int]] | None
) -> None:
    assert hinted_levels([job(**times)]) == expected
    assert hinted_levels([job(**times), job()]) == (HERE if expected is None else expected)


def test_a_long_insert_may_be_below_the_floors() -> None:
    assert hinted_levels([job()] * MANY) == HERE
    assert hinted_levels([job()] * (MANY + 1)) == EVERYWHERE
