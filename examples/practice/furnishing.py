"""Two firms with what they own, and what waits for them outside."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from examples.practice.documents import HARMFUL, store_document
from examples.practice.firms import Firm, Firms
from examples.practice.ics import Appointment
from examples.practice.outside import Outside

CONNECTION, OWN_CALENDAR, CLOSED_CALENDAR = 456, 31, 32
ADA, BOB, CAROL = "ada@client.example", "bob@client.example", "carol@client.example"
# It says that it has parts and not where they end; nor does it say who wrote it.
POISON = b"Subject: Papers\r\nContent-Type: multipart/mixed\r\n\r\nwhere do I begin?\r\n"


@dataclass(frozen=True)
class Furnished:
    """Ids of what jobs will be about."""

    client: int
    engagement: int
    execution: int
    documents: tuple[int, ...]
    appointments: tuple[int, int]  # one for the calendar that is open, one for that which is closed
    export: int


def letter(sender: str, subject: str) -> bytes:
    return f"From: {sender}\r\nSubject: {subject}\r\n\r\nSee you soon.\r\n".encode()


def furnish(firms: Firms, firm_id: int) -> Furnished:
    firm, now = firms.firm(firm_id), datetime.now(UTC)
    client = firm.add("add_client", name="Ada", address=ADA)
    firm.add("add_client", name="Bob", address=BOB)
    for age in (timedelta(hours=1), timedelta(hours=-1)):
        firm.add("add_session", expires_at=(now - age).isoformat())
    return Furnished(
        client=client,
        engagement=firm.add("add_engagement", title="Bookkeeping", starts_on="2026-01-15"),
        execution=firm.add("add_execution", client_id=client),
        documents=(
            store_document(firm, "bill.txt", b"Invoice 7: the amount due is 30."),
            store_document(firm, "gift.txt", b"open me " + HARMFUL),
        ),
        appointments=(_appointment(firm, OWN_CALENDAR), _appointment(firm, CLOSED_CALENDAR)),
        export=firm.add("add_export"),
    )


def _appointment(firm: Firm, calendar_id: int) -> int:
    uid = f"visit-{calendar_id}@firm-{firm.id}"
    firm.run(
        "put_appointment",
        calendar_id=calendar_id,
        uid=uid,
        starts_at="2026-03-02T09:00:00+00:00",
        title="Visit, with papers",
        pushed=0,
    )
    return int(next(row["id"] for row in firm.all("appointments") if row["uid"] == uid))


def fill(outside: Outside) -> None:
    outside.messages |= {
        f"{CONNECTION}/msg_789": letter(f"Ada <{ADA}>", "Receipts"),
        f"{CONNECTION}/msg_790": POISON,
        f"{CONNECTION}/msg_791": letter(BOB, "Signed"),
        "7/msg_1": letter(BOB, "To another firm"),
    }
    begin = datetime(2026, 3, 3, 10, tzinfo=UTC)
    outside.calendars[str(OWN_CALENDAR)] = [
        Appointment("board@there", begin, "Board; yearly"),
        Appointment("lunch@there", begin + timedelta(hours=2), "Lunch"),
    ]
    outside.close(CLOSED_CALENDAR)
    outside.slow_down(f"{CONNECTION}/msg_791", 2)
    outside.busy(ADA)
