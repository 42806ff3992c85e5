"""The story: a day in two firms. Things go wrong in every way that matters, people mend them, and it all adds up."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from rich.console import Console

from dutiful import Dutiful, PayloadInvalid, UniqueConflict
from dutiful.web import create_app
from examples.practice.firms import Firms
from examples.practice.furnishing import (
    ADA,
    CLOSED_CALENDAR,
    CONNECTION,
    OWN_CALENDAR,
    Furnished,
    fill,
    furnish,
)
from examples.practice.ledger import Ledger, following
from examples.practice.outside import Outside
from examples.practice.payload_validator import PayloadValidator
from examples.practice.queue import JobQueue
from examples.practice.record import QueueRecord
from examples.practice.review import Reviewed, review
from examples.practice.service import practice_app
from examples.practice.visitor import revoke_tokens
from examples.schemas import own_schema
from examples.serving import serving

HERE, THERE = 123, 456  # the firms
DEADLINE = 60.0
KEY = f"email_fetch_conn_{CONNECTION}_msg_789"


async def tell(console: Console, folder: Path, database_url: str) -> bool:
    """Whether it added up."""
    firms, outside = Firms(folder), Outside()
    fill(outside)
    async with asyncio.timeout(DEADLINE), outside.open() as addresses, own_schema(database_url, "practice") as schema:
        app = practice_app(database_url, firms, addresses, schema=schema)
        await app.make_store().migrate()
        async with app, following(app, console) as ledger, serving(create_app(app)) as url, app.embedded():
            furnished = {firm: furnish(firms, firm) for firm in (HERE, THERE)}
            story = Story(console, ledger, app, firms, outside, furnished)
            await story.refusals()
            await story.day()
            await story.review(url)
            await story.evening()
            await story.farewell()
            right = await story.adds_up()
    firms.close()
    return right


@dataclass
class Story:
    console: Console
    ledger: Ledger
    app: Dutiful
    firms: Firms
    outside: Outside
    furnished: dict[int, Furnished]
    refused: list[str] = field(default_factory=list)
    works: int = 0  # that were made
    reviewed: Reviewed | None = None

    async def refusals(self) -> None:
        self._chapter("What does not become a job: secrets, content, too much of it, and the same thing twice")
        message: dict[str, Any] = {"connection_id": CONNECTION, "external_message_id": "msg_789"}
        await self._refused("a password in it", HERE, **message, login={"password": "hunter2"})
        await self._refused("no connection, and a mail's body", HERE, external_message_id="m", email_body="Dear …")
        await self._refused("12,000 bytes", HERE, **message, note="x" * 12_000)
        await self._create(HERE, "email_ingestion_fetch", KEY, **message)
        await self._refused("a key that was used", HERE, KEY, **message)
        await self._create(THERE, "email_ingestion_fetch", KEY, connection_id=7, external_message_id="msg_1")
        self.say("the same key is fine for another firm")

    async def day(self) -> None:
        self._chapter("A day: mail, calendars, monthly work, a new client, documents; some of it goes wrong")
        for name in ("msg_790", "msg_791"):
            key = f"email_fetch_conn_{CONNECTION}_{name}"
            await self._create(HERE, "email_ingestion_fetch", key, connection_id=CONNECTION, external_message_id=name)
        for firm, ours in self.furnished.items():
            calendar, engagement, execution = OWN_CALENDAR, ours.engagement, ours.execution
            await self._create(firm, "calendar_sync_pull", f"pull_{calendar}_monday", calendar_id=calendar)
            key = f"periods_{engagement}_to_march"
            await self._create(firm, "recurrence_period_generate", key, engagement_id=engagement, until="2026-03-31")
            for document in ours.documents:
                await self._create(firm, "document_scan", f"document_scan_{document}", document_id=document)
            key = f"execution_{execution}_step_0"
            await self._create(firm, "orchestration_step_execute", key, execution_id=execution, step=0)
        for calendar, visit in zip((OWN_CALENDAR, CLOSED_CALENDAR), self.furnished[HERE].appointments, strict=True):
            await self._create(
                HERE, "calendar_sync_push", f"push_{visit}", max_attempts=2, calendar_id=calendar, appointment_id=visit
            )
        await self.ledger.all_ended()

    async def review(self, url: str) -> None:
        self._chapter("Dead letters: a manager mends one and discards one; others may not even look")
        self.reviewed = await review(self.app, url, self.firms, HERE, THERE, self.say)

    async def evening(self) -> None:
        self._chapter("In the evening: sessions end, closed work is put away")
        firm = self.firms.firm(HERE)
        works = firm.all("works")
        self.works = len(works)
        firm.run("close_work", id=works[0]["id"], closed_on="2026-01-31")
        now = datetime.now(UTC).isoformat()
        await self._create(HERE, "session_expire", "sessions_monday", run_id=1, before=now)
        await self._create(HERE, "data_archival", "archive_february", run_id=2, before="2026-02-28")
        await self.ledger.all_ended()

    async def farewell(self) -> None:
        self._chapter(f"Firm {THERE} leaves: it takes its data along, and only then is it forgotten")
        export = self.furnished[THERE].export
        for job_type in ("firm_export", "firm_purge"):
            job = await self._create(THERE, job_type, f"{job_type}_{export}", export_id=export)
            await JobQueue(self.app, THERE).result(job.id, "20s")
        await revoke_tokens(self.app, THERE)
        await self.ledger.all_ended()
        self.say("its finished jobs are kept for a week, its idempotency keys for good")

    async def adds_up(self) -> bool:
        self._chapter("Does it add up?")
        here, there = self.firms.firm(HERE), self.firms.firm(THERE)
        jobs = [job for firm in (HERE, THERE) for job in await JobQueue(self.app, firm).list(limit=500)]
        export = there.one("export", id=self.furnished[THERE].export)
        tokens = await (await self.app.operator("platform")).tokens()
        checks = {
            "nothing that was refused became a job": len(self.refused) == 4
            and len({(job.tenant, job.idempotency_key) for job in jobs}) == len(jobs),
            "every job type did its work, each firm its own": _types(jobs, HERE) | _types(jobs, THERE)
            == set(self.app.kinds),
            "three messages are read, each is its client's": [m["client"] for m in here.all("messages")]
            == ["Ada", "Carol", "Bob"],
            "the mail server that asked us to slow down was left alone": self.outside.fetched[f"{CONNECTION}/msg_791"]
            == 3,
            "the calendar was read, and what was entered here is there": len(here.all("appointments")) == 4
            and len(self.outside.calendars[str(OWN_CALENDAR)]) == 3,
            "a period a month, and one work each; one is put away": (self.works, len(here.all("works"))) == (3, 2),
            "one document is sorted, one is held back": [(d["state"], d["sort"]) for d in here.all("documents")]
            == [("clean", "invoice"), ("infected", None)],
            "each client was welcomed once, though the mail server was busy": [
                str(mail["To"]) for mail in self.outside.delivered
            ]
            == [ADA, ADA]
            and len(here.all("inbox")) == 1,
            "two jobs were dead letters; one was mended and run again, one discarded": self.reviewed is not None
            and self.reviewed.told(),
            "only the manager of their firm could see them": self.reviewed is not None and self.reviewed.guarded(),
            "the audit trail tells who did what and why": self.reviewed is not None and self.reviewed.audited(),
            "the firm that left has its data; its rows are gone, its tokens revoked": export is not None
            and (self.firms.folder / "exports" / str(export["file"])).exists()
            and not any(there.dump().values())
            and all(token.revoked_at for token in tokens if token.tenant == str(THERE)),
            "all that is not a dead letter is completed": [j.status for j in jobs if j.status != "completed"]
            == ["failed", "failed"],
        }
        for line, true in checks.items():
            self.console.print(f"  {'[green]✓[/]' if true else '[red]✗[/]'} {line}", highlight=False)
        return all(checks.values())

    # --- how

    async def _create(
        self, firm: int, job_type: str, key: str, *, max_attempts: int | None = None, **refs: Any
    ) -> QueueRecord:
        payload = PayloadValidator.create_payload(firm, uuid4(), key, **refs)
        return await JobQueue(self.app, firm).create(job_type, payload, max_attempts=max_attempts)

    async def _refused(self, what: str, firm: int, key: str = "refused", **refs: Any) -> None:
        try:
            await self._create(firm, "email_ingestion_fetch", key, **refs)
        except (PayloadInvalid, UniqueConflict) as error:
            self.refused.append(str(error))
            self.say(f"refused: {what}: {error}")

    def say(self, words: str) -> None:
        self.console.print(f"         {words}", style="dim", highlight=False, markup=False, soft_wrap=True)

    def _chapter(self, title: str) -> None:
        name, colon, about = title.partition(":")
        self.console.print(f"\n[bold]{name}[/]{colon}{about}", highlight=False, soft_wrap=True)


def _types(jobs: list[QueueRecord], firm: int) -> set[str]:
    return {job.job_type for job in jobs if job.tenant == firm and job.status == "completed"}
