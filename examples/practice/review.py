"""Review: a firm's manager finds its dead letters through the admin API, fixes the cause, and decides."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from dutiful import Dutiful, Role
from examples.practice.api_client import ApiClient, token
from examples.practice.audit_names import audit_name
from examples.practice.event_log import until
from examples.practice.firms import Firm, Firms
from examples.practice.ingestion import maildir
from examples.practice.queue import JobQueue
from examples.practice.sample_data import CAROL, CONNECTION, raw_mail

NOTES = "Fixed validation issue in source data, safe to reprocess"


@dataclass(frozen=True)
class Reviewed:
    """The answers that each caller got."""

    found: list[dict[str, Any]]
    answer: dict[str, Any]
    again: int  # the HTTP status of a second reprocess
    statuses: list[str]
    access: dict[str, list[int]]  # the HTTP statuses of list, show and reprocess, by caller
    elsewhere: int  # dead letters that the other firm's manager sees
    trail: list[tuple[str, str, str | None]]  # name, principal, reason

    def as_expected(self) -> bool:
        items = {item["job_type"]: item for item in self.found}
        parse, push = items["email_ingestion_parse"], items["calendar_sync_push"]
        return (
            (parse["error_class"], parse["attempt_count"]) == ("non_retryable", 1)
            and (push["error_class"], push["attempt_count"]) == ("transient", 2)
            and str(self.answer["new_idempotency_key"]).startswith(f"{parse['idempotency_key']}_retry_")
            and (self.again, self.statuses) == (409, ["discarded", "resolved"])
        )

    def guarded(self) -> bool:
        return self.elsewhere == 0 and self.access == {
            "anonymous": [401, 401, 401],
            "a viewer": [403, 403, 403],
            "staff": [403, 403, 403],
            "the other firm's manager": [200, 404, 404],
        }

    def audited(self) -> bool:
        """Whether each action is recorded at its start and end, and the second reprocess as refused."""
        names = [name for name, who, reason in self.trail if who == "mary" and reason]
        return (
            names[:2] == ["job_dlq_reprocess_requested", "job_dlq_reprocess_success"]
            and "job_dlq_reprocess_refused" in names[2:-2]
            and names[-2:] == ["job_dlq_discard_requested", "job_dlq_discard_success"]
        )


async def review(app: Dutiful, url: str, firms: Firms, here: int, there: int, say: Callable[[str], None]) -> Reviewed:
    async with httpx2.AsyncClient(base_url=url, timeout=20) as http:
        manager = ApiClient(http, await token(app, "mary", Role.MANAGER, here))
        others = {
            "anonymous": ApiClient(http),
            "a viewer": ApiClient(http, await token(app, "vic", Role.VIEWER, here)),
            "staff": ApiClient(http, await token(app, "sue", Role.STAFF, here)),
            "the other firm's manager": ApiClient(http, await token(app, "otto", Role.MANAGER, there)),
        }
        found = (await manager.get("/dlq/")).json()["dlq_items"]
        for item in found:
            say(f"mary sees {item['job_type']}: {item['error_class']}, attempts: {item['attempt_count']}")
        poison = next(item for item in found if item["job_type"] == "email_ingestion_parse")
        push = next(item for item in found if item is not poison)
        access = {who: await _try_access(one, poison["dlq_id"]) for who, one in others.items()}
        for who, statuses in access.items():
            say(f"{who} gets {', '.join(map(str, statuses))}")
        elsewhere = (await others["the other firm's manager"].get("/dlq/")).json()["total_count"]

        payload = (await manager.get(f"/dlq/{poison['dlq_id']}/")).json()["payload"]
        _fix(firms.firm(here), payload["external_message_id"])
        say("mary has fixed the message, and reprocesses it")
        answer = (await manager.post(f"/dlq/{poison['dlq_id']}/reprocess/", {"notes": NOTES})).json()
        await JobQueue(app, here).result(answer["new_job_id"], "20s")
        again = (await manager.post(f"/dlq/{poison['dlq_id']}/reprocess/", {"notes": NOTES})).status_code
        await manager.post(f"/dlq/{push['dlq_id']}/discard/", {"notes": "that calendar is closed"})
        await until(lambda: _has_status(manager, poison, "resolved"))
        decided = [await _status(manager, push), await _status(manager, poison)]
        trail = await _trail(manager)
    for name, by, reason in trail:
        say(f"audited: {name} by {by}: {reason or '(no reason given)'}")
    return Reviewed(found, answer, again, decided, access, elsewhere, trail)


async def _trail(manager: ApiClient) -> list[tuple[str, str, str | None]]:
    """The oldest first."""
    events = (await manager.get("/audit/", action="dead_letter.")).json()["events"]
    return [(audit_name(one["action"], one["outcome"]), one["principal"], one["reason"]) for one in reversed(events)]


async def _try_access(who: ApiClient, dlq_id: str) -> list[int]:
    answers = [
        await who.get("/dlq/"),
        await who.get(f"/dlq/{dlq_id}/"),
        await who.post(f"/dlq/{dlq_id}/reprocess/", {"notes": "let me in"}),
    ]
    return [answer.status_code for answer in answers]


async def _status(manager: ApiClient, item: dict[str, Any]) -> str:
    return str((await manager.get(f"/dlq/{item['dlq_id']}/")).json()["status"])


async def _has_status(manager: ApiClient, item: dict[str, Any], status: str) -> bool:
    return await _status(manager, item) == status


def _fix(firm: Firm, external_id: str) -> None:
    """Replaces the message by hand, and adds its sender as a client."""
    firm.run("add_client", name="Carol", address=CAROL)
    row = firm.one("message", connection_id=CONNECTION, external_id=external_id)
    assert row is not None
    maildir(firm, CONNECTION)[row["maildir_key"]] = raw_mail(CAROL, "Papers")
