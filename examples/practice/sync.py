"""Calendars: what others have entered comes in, what was entered here goes out."""

from datetime import datetime
from typing import Any

from dutiful import Context, Fail, Inject
from examples.practice import ics
from examples.practice.office import Office


class NoCalendar(Fail):
    """The server sent something else than a calendar."""


async def calendar_sync_pull(ctx: Context, calendar_id: int, office: Office = Inject("office")) -> dict[str, Any]:
    """Take over every appointment of a calendar; one that is known already is brought up to date."""
    desk = office.desk(ctx)
    answer = await office.http.get(f"{office.addresses.calendars}/{calendar_id}")
    answer.raise_for_status()
    try:
        found = ics.read(answer.text)
    except ValueError as error:
        raise NoCalendar(f"calendar {calendar_id}: {error}") from error
    for one in found:
        desk.firm.run(
            "put_appointment",
            calendar_id=calendar_id,
            uid=one.uid,
            starts_at=one.starts_at.isoformat(),
            title=one.title,
            pushed=1,
        )
    return {"appointments": len(found)}


async def calendar_sync_push(
    ctx: Context, calendar_id: int, appointment_id: int, office: Office = Inject("office")
) -> None:
    """Enter an appointment on the server; its uid is its address there, so doing it twice enters it once."""
    desk = office.desk(ctx)
    row = desk.get("appointment", id=appointment_id)
    entry = ics.Appointment(row["uid"], datetime.fromisoformat(row["starts_at"]), row["title"])
    answer = await office.http.put(
        f"{office.addresses.calendars}/{calendar_id}/{row['uid']}.ics",
        content=ics.write([entry]),
        headers={"content-type": "text/calendar"},
    )
    answer.raise_for_status()
    desk.firm.run("appointment_pushed", id=appointment_id)
