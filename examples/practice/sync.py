"""Calendars: pulling and pushing appointments."""

from datetime import datetime
from typing import Any
from urllib.parse import quote

from dutiful import Context, Fail, Inject
from examples.practice import ics
from examples.practice.platform import Platform


class NoCalendar(Fail):
    """The server did not send a calendar."""


async def calendar_sync_pull(ctx: Context, calendar_id: int, platform: Platform = Inject("platform")) -> dict[str, Any]:
    """Inserts or updates every appointment of a calendar."""
    scope = platform.scope(ctx)
    scope.get("calendar", id=calendar_id)
    answer = await platform.http.get(f"{platform.addresses.calendars}/{calendar_id}")
    answer.raise_for_status()
    try:
        found = ics.read(answer.text)
    except ValueError as error:
        raise NoCalendar(f"calendar {calendar_id}: {error}") from error
    for one in found:
        scope.firm.run(
            "put_appointment",
            calendar_id=calendar_id,
            uid=one.uid,
            starts_at=one.starts_at.isoformat(),
            title=one.title,
            pushed=1,
        )
    return {"appointments": len(found)}


async def calendar_sync_push(
    ctx: Context, calendar_id: int, appointment_id: int, platform: Platform = Inject("platform")
) -> None:
    """Puts an appointment on the server; idempotent, because its uid is its address there."""
    scope = platform.scope(ctx)
    scope.get("calendar", id=calendar_id)
    row = scope.get("appointment", id=appointment_id)
    entry = ics.Appointment(row["uid"], datetime.fromisoformat(row["starts_at"]), row["title"])
    answer = await platform.http.put(
        f"{platform.addresses.calendars}/{calendar_id}/{quote(row['uid'], safe='')}.ics",
        content=ics.write([entry]),
        headers={"content-type": "text/calendar"},
    )
    answer.raise_for_status()
    scope.firm.run("appointment_pushed", id=appointment_id)
