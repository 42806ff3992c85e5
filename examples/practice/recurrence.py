"""Work that comes again: an engagement has a period each month, and each period its work."""

from collections.abc import Iterator
from datetime import date
from typing import Any

from dutiful import Context, Inject
from examples.practice.office import Office


async def recurrence_period_generate(
    ctx: Context, engagement_id: int, until: date, office: Office = Inject("office")
) -> dict[str, Any]:
    """Make the periods up to a day, and have the work of each made; those that are there stay as they are."""
    desk = office.desk(ctx)
    begin = date.fromisoformat(desk.get("engagement", id=engagement_id)["starts_on"])
    for month in _months(begin, until):
        desk.firm.run("add_period", engagement_id=engagement_id, month=month)
    asked = 0
    for period in desk.firm.all("periods", engagement_id=engagement_id):
        asked += await desk.follow_up(
            "recurrence_work_create",
            f"work_create_period_{period['id']}",
            engagement_id=engagement_id,
            period_id=period["id"],
        )
    return {"works_asked_for": asked}


async def recurrence_work_create(
    ctx: Context, engagement_id: int, period_id: int, office: Office = Inject("office")
) -> None:
    """The work of a period, once."""
    office.desk(ctx).firm.run("add_work", period_id=period_id)


def _months(begin: date, until: date) -> Iterator[str]:
    year, month = begin.year, begin.month
    while (year, month) <= (until.year, until.month):
        yield f"{year}-{month:02}"
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
