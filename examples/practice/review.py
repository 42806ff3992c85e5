"""Review: the manager of a firm finds its dead letters through the admin API, mends what was wrong, and decides."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from dutiful import Dutiful, Role
from examples.practice.audit_names import audit_name
from examples.practice.firms import Firm, Firms
from examples.practice.furnishing import CAROL, CONNECTION, letter
from examples.practice.ingestion import maildir
from examples.practice.ledger import until
from examples.practice.queue import JobQueue
from examples.practice.visitor import Visitor, token

NOTES = "Fixed validation issue in source data, safe to reprocess"


@dataclass(frozen=True)
class Reviewed:
    """What everybody saw."""

    found: list[dict[str, Any]]
    answer: dict[str, Any]
    again: int  # the status of a second reprocess
    statuses: list[str]
    doors: dict[str, list[int]]  # the statuses of list, one, and reprocess, by who asked
    elsewhere: int  # dead letters that the other firm's manager was shown
    trail: list[tuple[str, str, str | None]]  # name, principal, reason

    def told(self) -> bool:
        items = {item["job_type"]: item for item in self.found}
        parse, push = items["email_ingestion_parse"], items["calendar_sync_push"]
        return (
            (parse["error_class"], parse["attempt_count"]) == ("non_retryable", 1)
            and (push["error_class"], push["attempt_count"]) == ("transient", 2)
            and str(self.answer["new_idempotency_key"]).startswith(f"{parse['idempotency_key']}_retry_")
            and (self.again, self.statuses) == (409, ["discarded", "resolved"])
        )

    def guarded(self) -> bool:
        return self.elsewhere == 0 and self.doors == {
            "nobody": [401, 401, 401],
            "a viewer": [403, 403, 403],
            "staff": [403, 403, 403],
            "the other firm's manager": [200, 404, 404],
        }

    def audited(self) -> bool:
        """Each act when it was asked for and when it was done, the second reprocess as refused."""
        names = [name for name, who, reason in self.trail if who == "mary" and reason]
        return (
            names[:2] == ["job_dlq_reprocess_requested", "job_dlq_reprocess_success"]
            and "job_dlq_reprocess_refused" in names[2:-2]
            and names[-2:] == ["job_dlq_discard_requested", "job_dlq_discard_success"]
        )


async def review(app: Dutiful, url: str, firms: Firms, here: int, there: int, say: Callable[[str], None]) -> Reviewed:
    async with httpx2.AsyncClient(base_url=url, timeout=20) as http:
        manager = Visitor(http, await token(app, "mary", Role.MANAGER, here))
        others = {
            "nobody": Visitor(http),
            "a viewer": Visitor(http, await token(app, "vic", Role.VIEWER, here)),
            "staff": Visitor(http, await token(app, "sue", Role.STAFF, here)),
            "the other firm's manager": Visitor(http, await token(app, "otto", Role.MANAGER, there)),
        }
        found = (await manager.get("/dlq/")).json()["dlq_items"]
        for item in found:
            say(f"mary sees {item['job_type']}: {item['error_class']}, attempts: {item['attempt_count']}")
        poison = next(item for item in found if item["job_type"] == "email_ingestion_parse")
        push = next(item for item in found if item is not poison)
        doors = {who: await _try_doors(one, poison["dlq_id"]) for who, one in others.items()}
        for who, statuses in doors.items():
            say(f"{who} gets {', '.join(map(str, statuses))}")
        elsewhere = (await others["the other firm's manager"].get("/dlq/")).json()["total_count"]

        payload = (await manager.get(f"/dlq/{poison['dlq_id']}/")).json()["payload"]
        _mend(firms.firm(here), payload["external_message_id"])
        say("mary has mended the message, and has it read again")
        answer = (await manager.post(f"/dlq/{poison['dlq_id']}/reprocess/", {"notes": NOTES})).json()
        await JobQueue(app, here).result(answer["new_job_id"], "20s")
        again = (await manager.post(f"/dlq/{poison['dlq_id']}/reprocess/", {"notes": NOTES})).status_code
        await manager.post(f"/dlq/{push['dlq_id']}/discard/", {"notes": "that calendar is closed"})
        await until(lambda: _has_status(manager, poison, "resolved"))
        decided = [await _status(manager, push), await _status(manager, poison)]
        trail = await _trail(manager)
    for name, by, reason in trail:
        say(f"on record: {name} by {by}: {reason or '(no reason given)'}")
    return Reviewed(found, answer, again, decided, doors, elsewhere, trail)


async def _trail(manager: Visitor) -> list[tuple[str, str, str | None]]:
    """The oldest first."""
    events = (await manager.get("/audit/", action="dead_letter.")).json()["events"]
    return [(audit_name(one["action"], one["outcome"]), one["principal"], one["reason"]) for one in reversed(events)]


async def _try_doors(who: Visitor, dlq_id: str) -> list[int]:
    answers = [
        await who.get("/dlq/"),
        await who.get(f"/dlq/{dlq_id}/"),
        await who.post(f"/dlq/{dlq_id}/reprocess/", {"notes": "let me in"}),
    ]
    return [answer.status_code for answer in answers]


async def _status(manager: Visitor, item: dict[str, Any]) -> str:
    return str((await manager.get(f"/dlq/{item['dlq_id']}/")).json()["status"])


async def _has_status(manager: Visitor, item: dict[str, Any], status: str) -> bool:
    return await _status(manager, item) == status


def _mend(firm: Firm, external_id: str) -> None:
    """By hand: who wrote it is known from the telephone, and she is a client by now."""
    firm.add("add_client", name="Carol", address=CAROL)
    row = firm.one("message", connection_id=CONNECTION, external_id=external_id)
    assert row is not None
    maildir(firm, CONNECTION)[row["maildir_key"]] = letter(CAROL, "Papers")
