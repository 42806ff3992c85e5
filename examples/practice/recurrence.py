"""Recurring work: an engagement has a period each month, and each period its work."""

from collections.abc import Iterator
from datetime import date
from typing import Any

from dutiful import Context, Inject
from examples.practice.platform import Platform


async def recurrence_period_generate(
    ctx: Context, engagement_id: int, until: date, platform: Platform = Inject("platform")
) -> dict[str, Any]:
    """Creates missing periods up to a day, and enqueues the creation of their work."""
    scope = platform.scope(ctx)
    begin = date.fromisoformat(scope.get("engagement", id=engagement_id)["starts_on"])
    for month in _months(begin, until):
        scope.firm.run("add_period", engagement_id=engagement_id, month=month)
    enqueued = 0
    for period in scope.firm.all("periods", engagement_id=engagement_id):
        enqueued += await scope.follow_up(
            "recurrence_work_create",
            f"work_create_period_{period['id']}",
            engagement_id=engagement_id,
            period_id=period["id"],
        )
    return {"works_enqueued": enqueued}


async def recurrence_work_create(
    ctx: Context, engagement_id: int, period_id: int, platform: Platform = Inject("platform")
) -> None:
    """Creates the work of a period, once."""
    scope = platform.scope(ctx)
    scope.get("period", id=period_id)
    scope.firm.run("add_work", period_id=period_id)


def _months(begin: date, until: date) -> Iterator[str]:
    year, month = begin.year, begin.month
    while (year, month) <= (until.year, until.month):
        yield f"{year}-{month:02}"
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
