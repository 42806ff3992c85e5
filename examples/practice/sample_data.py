"""Sample data of two firms, and of the fake services that they use."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from examples.practice.documents import HARMFUL, store_document
from examples.practice.fake_services import FakeServices
from examples.practice.firms import Firm, Firms
from examples.practice.ics import Appointment
from examples.practice.users import add_user

CONNECTION, OWN_CALENDAR, CLOSED_CALENDAR = 456, 31, 32
# The mailbox of each firm, and its calendars, of which the second one does not answer.
MAILBOXES = {123: CONNECTION, 456: 7}
CALENDARS = {123: (OWN_CALENDAR, CLOSED_CALENDAR), 456: (41, 42)}
ADA, BOB, CAROL = "ada@client.example", "bob@client.example", "carol@client.example"
# Declares parts without a boundary, and has no sender.
POISON = b"Subject: Papers\r\nContent-Type: multipart/mixed\r\n\r\nwhere do I begin?\r\n"


@dataclass(frozen=True)
class SampleData:
    """The ids of a firm's objects, for payloads of jobs."""

    client: int
    engagement: int
    execution: int
    documents: tuple[int, ...]
    appointments: tuple[int, int]  # one in the open calendar, one in the closed one
    export: int


def raw_mail(sender: str, subject: str) -> bytes:
    return f"From: {sender}\r\nSubject: {subject}\r\n\r\nSee you soon.\r\n".encode()


PEOPLE = {
    123: (("mary", True, True), ("sue", True, False), ("max", False, True)),
    456: (("otto", True, True),),
}


def add_people(firms: Firms) -> None:
    """Of each firm, name, whether staff, and whether manager: max is a manager from outside."""
    for firm_id, people in PEOPLE.items():
        for name, staff, manager in people:
            add_user(firms.firm(firm_id), name, staff=staff, manager=manager)


def add_clients(firm: Firm) -> int:
    """Adds those that are missing, because every process of the platform does so; the id of the first one."""
    for name, address in (("Ada", ADA), ("Bob", BOB)):
        firm.run("add_client", name=name, address=address)
    (ada,) = firm.all("client_at", address=ADA)
    return int(ada["id"])


def connect(firm: Firm) -> None:
    """Connects its mailbox and its calendars, unless another process has done so."""
    firm.run("add_connection", id=MAILBOXES[firm.id])
    for calendar in CALENDARS[firm.id]:
        firm.run("add_calendar", id=calendar)


def create_sample_data(firms: Firms, firm_id: int) -> SampleData:
    firm, now = firms.firm(firm_id), datetime.now(UTC)
    connect(firm)
    client = add_clients(firm)
    own, closed = CALENDARS[firm_id]
    for age in (timedelta(hours=1), timedelta(hours=-1)):
        firm.add("add_session", expires_at=(now - age).isoformat())
    return SampleData(
        client=client,
        engagement=firm.add("add_engagement", title="Bookkeeping", starts_on="2026-01-15"),
        execution=firm.add("add_execution", client_id=client),
        documents=(
            store_document(firm, "bill.txt", b"Invoice 7: the amount due is 30."),
            store_document(firm, "gift.txt", b"open me " + HARMFUL),
        ),
        appointments=(_appointment(firm, own), _appointment(firm, closed)),
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


def add_mail_and_calendars(services: FakeServices) -> None:
    services.messages |= {
        f"{CONNECTION}/msg_789": raw_mail(f"Ada <{ADA}>", "Receipts"),
        f"{CONNECTION}/msg_790": POISON,
        f"{CONNECTION}/msg_791": raw_mail(BOB, "Signed"),
        "7/msg_1": raw_mail(BOB, "To another firm"),
    }
    begin = datetime(2026, 3, 3, 10, tzinfo=UTC)
    services.calendars[str(OWN_CALENDAR)] = [
        Appointment("board@there", begin, "Board; yearly"),
        Appointment("lunch@there", begin + timedelta(hours=2), "Lunch"),
    ]
    for _, closed in CALENDARS.values():
        services.close(closed)
    services.slow_down(f"{CONNECTION}/msg_791", 2)
    services.busy(ADA)
