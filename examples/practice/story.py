"""The story: a day in two firms, with all sorts of failures; then the results are checked."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from rich.console import Console

from dutiful import Dutiful, PayloadInvalid, UniqueConflict
from dutiful.web import create_app
from examples.practice.api_client import revoke_tokens
from examples.practice.event_log import EventLog, following
from examples.practice.fake_services import FakeServices
from examples.practice.firms import Firms
from examples.practice.payload_validator import PayloadValidator
from examples.practice.queue import JobQueue
from examples.practice.record import QueueRecord
from examples.practice.review import Reviewed, review
from examples.practice.sample_data import (
    ADA,
    CALENDARS,
    CONNECTION,
    MAILBOXES,
    OWN_CALENDAR,
    SampleData,
    add_mail_and_calendars,
    create_sample_data,
)
from examples.practice.service import practice_app
from examples.schemas import own_schema
from examples.serving import serving

HERE, THERE = 123, 456  # the firms
DEADLINE = 60.0
KEY = f"email_fetch_conn_{CONNECTION}_msg_789"


async def run_story(console: Console, folder: Path, database_url: str) -> bool:
    """Returns whether all checks pass."""
    firms, services = Firms(folder), FakeServices()
    add_mail_and_calendars(services)
    async with asyncio.timeout(DEADLINE), services.open() as addresses, own_schema(database_url, "practice") as schema:
        app = practice_app(database_url, firms, addresses, schema=schema)
        await app.migrate()
        async with app, following(app, console) as log, serving(create_app(app)) as url, app.embedded():
            samples = {firm: create_sample_data(firms, firm) for firm in (HERE, THERE)}
            story = Story(console, log, app, firms, services, samples)
            await story.refusals()
            await story.day()
            await story.review(url)
            await story.evening()
            await story.offboarding()
            passed = await story.check()
    firms.close()
    return passed


@dataclass
class Story:
    console: Console
    log: EventLog
    app: Dutiful
    firms: Firms
    services: FakeServices
    samples: dict[int, SampleData]
    refused: list[str] = field(default_factory=list)
    works: int = 0  # created
    reviewed: Reviewed | None = None

    async def refusals(self) -> None:
        self._chapter("Refused payloads: secrets, content, too many bytes, and a key that was used before")
        message: dict[str, Any] = {"connection_id": CONNECTION, "external_message_id": "msg_789"}
        await self._refused("a password in it", HERE, **message, login={"password": "hunter2"})
        await self._refused("no connection, and a mail's body", HERE, external_message_id="m", email_body="Dear …")
        await self._refused("12,000 bytes", HERE, **message, note="x" * 12_000)
        await self._create(HERE, "email_ingestion_fetch", KEY, **message)
        await self._refused("a key that was used", HERE, KEY, **message)
        theirs: dict[str, Any] = {"connection_id": MAILBOXES[THERE], "external_message_id": "msg_1"}
        await self._create(THERE, "email_ingestion_fetch", KEY, **theirs)
        self.say("the same key is fine for another firm")

    async def day(self) -> None:
        self._chapter("A day: mail, calendars, monthly work, a new client, documents; some of it fails")
        for name in ("msg_790", "msg_791"):
            key = f"email_fetch_conn_{CONNECTION}_{name}"
            await self._create(HERE, "email_ingestion_fetch", key, connection_id=CONNECTION, external_message_id=name)
        for firm, ours in self.samples.items():
            calendar, engagement, execution = CALENDARS[firm][0], ours.engagement, ours.execution
            await self._create(firm, "calendar_sync_pull", f"pull_{calendar}_monday", calendar_id=calendar)
            key = f"periods_{engagement}_to_march"
            await self._create(firm, "recurrence_period_generate", key, engagement_id=engagement, until="2026-03-31")
            for document in ours.documents:
                await self._create(firm, "document_scan", f"document_scan_{document}", document_id=document)
            key = f"execution_{execution}_step_0"
            await self._create(firm, "orchestration_step_execute", key, execution_id=execution, step=0)
        for calendar, visit in zip(CALENDARS[HERE], self.samples[HERE].appointments, strict=True):
            await self._create(
                HERE, "calendar_sync_push", f"push_{visit}", max_attempts=2, calendar_id=calendar, appointment_id=visit
            )
        await self.log.all_ended()

    async def review(self, url: str) -> None:
        self._chapter("Dead letters: a manager reprocesses one and discards one; others get no access")
        self.reviewed = await review(self.app, url, self.firms, HERE, THERE, self.say)

    async def evening(self) -> None:
        self._chapter("In the evening: sessions expire, closed work is archived")
        firm = self.firms.firm(HERE)
        works = firm.all("works")
        self.works = len(works)
        firm.run("close_work", id=works[0]["id"], closed_on="2026-01-31")
        now = datetime.now(UTC).isoformat()
        await self._create(HERE, "session_expire", "sessions_monday", run_id=1, before=now)
        await self._create(HERE, "data_archival", "archive_february", run_id=2, before="2026-02-28")
        await self.log.all_ended()

    async def offboarding(self) -> None:
        self._chapter(f"Firm {THERE} leaves: its data is exported, and only then deleted")
        export = self.samples[THERE].export
        for job_type in ("firm_export", "firm_purge"):
            job = await self._create(THERE, job_type, f"{job_type}_{export}", export_id=export)
            await JobQueue(self.app, THERE).result(job.id, "20s")
        await revoke_tokens(self.app, THERE)
        await self.log.all_ended()
        self.say("its finished jobs are kept for a week, its idempotency keys forever")

    async def check(self) -> bool:
        self._chapter("Checks")
        here, there = self.firms.firm(HERE), self.firms.firm(THERE)
        jobs = [job for firm in (HERE, THERE) for job in await JobQueue(self.app, firm).list(limit=500)]
        export = there.one("export", id=self.samples[THERE].export)
        tokens = await (await self.app.operator("platform")).tokens.all()
        checks = {
            "no refused payload became a job": len(self.refused) == 4
            and len({(job.tenant, job.idempotency_key) for job in jobs}) == len(jobs),
            "every job type completed": _types(jobs, HERE) | _types(jobs, THERE) == set(self.app.kinds),
            "three messages are parsed, each assigned to its client": [m["client"] for m in here.all("messages")]
            == ["Ada", "Carol", "Bob"],
            "the rate limit of the mail server was respected": self.services.fetched[f"{CONNECTION}/msg_791"] == 3,
            "the calendar is synchronised both ways": len(here.all("appointments")) == 4
            and len(self.services.calendars[str(OWN_CALENDAR)]) == 3,
            "there is one work for each month; one is archived": (self.works, len(here.all("works"))) == (3, 2),
            "one document is classified, one is infected": [(d["state"], d["sort"]) for d in here.all("documents")]
            == [("clean", "invoice"), ("infected", None)],
            "each client was welcomed once, though the mail server was busy": [
                str(mail["To"]) for mail in self.services.delivered
            ]
            == [ADA, ADA]
            and len(here.all("inbox")) == 1,
            "two jobs were dead letters; one was fixed and reprocessed, one discarded": self.reviewed is not None
            and self.reviewed.as_expected(),
            "only the manager of their firm could see them": self.reviewed is not None and self.reviewed.guarded(),
            "the audit trail shows who did what and why": self.reviewed is not None and self.reviewed.audited(),
            "the firm that left has its export; its rows are deleted, its tokens revoked": export is not None
            and (self.firms.folder / "exports" / str(export["file"])).exists()
            and not any(there.dump().values())
            and all(token.revoked_at for token in tokens if token.tenant == str(THERE)),
            "all jobs but the dead letters are completed": [j.status for j in jobs if j.status != "completed"]
            == ["failed", "failed"],
        }
        for line, true in checks.items():
            self.console.print(f"  {'[green]✓[/]' if true else '[red]✗[/]'} {line}", highlight=False)
        return all(checks.values())

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

    def say(self, text: str) -> None:
        self.console.print(f"         {text}", style="dim", highlight=False, markup=False, soft_wrap=True)

    def _chapter(self, title: str) -> None:
        name, colon, about = title.partition(":")
        self.console.print(f"\n[bold]{name}[/]{colon}{about}", highlight=False, soft_wrap=True)


def _types(jobs: list[QueueRecord], firm: int) -> set[str]:
    return {job.job_type for job in jobs if job.tenant == firm and job.status == "completed"}
