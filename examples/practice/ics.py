"""The part of iCalendar that appointments need."""

from dataclasses import dataclass
from datetime import UTC, datetime

_STAMP = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True)
class Appointment:
    uid: str
    starts_at: datetime
    title: str


def write(appointments: list[Appointment]) -> str:
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//examples.practice//EN"]
    for one in appointments:
        begin = one.starts_at.astimezone(UTC).strftime(_STAMP)
        lines += ["BEGIN:VEVENT", f"UID:{one.uid}", f"DTSTART:{begin}", f"SUMMARY:{_escaped(one.title)}", "END:VEVENT"]
    return "\r\n".join([*lines, "END:VCALENDAR", ""])


def read(text: str) -> list[Appointment]:
    """Raises ValueError if it is not a calendar."""
    lines = text.replace("\r\n ", "").replace("\r\n\t", "").splitlines()  # long lines are folded
    if not lines or lines[0] != "BEGIN:VCALENDAR":
        raise ValueError("it does not begin as a calendar does")
    found: list[Appointment] = []
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        match name, value:
            case "BEGIN", "VEVENT":
                fields = {}
            case "END", "VEVENT":
                found.append(_appointment(fields))
            case _:
                fields[name.partition(";")[0]] = value
    return found


def _appointment(fields: dict[str, str]) -> Appointment:
    missing = [name for name in ("UID", "DTSTART", "SUMMARY") if name not in fields]
    if missing:
        raise ValueError(f"an event has no {missing[0]}")
    begin = datetime.strptime(fields["DTSTART"], _STAMP).replace(tzinfo=UTC)
    return Appointment(fields["UID"], begin, _plain(fields["SUMMARY"]))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace(";", "\\;").replace(",", "\\,").replace("\n", "\\n")


def _plain(text: str) -> str:
    shown, rest = "", iter(text)
    for letter in rest:
        shown += letter if letter != "\\" else {"n": "\n", "N": "\n"}.get(after := next(rest, ""), after)
    return shown
