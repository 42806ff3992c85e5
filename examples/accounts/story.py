"""The story: messages, three accounts that are to be deleted, a worker that is killed; then the results are checked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from examples.accounts import checks
from examples.accounts.checks import Checklist
from examples.accounts.database import Database, Patience, new_database
from examples.accounts.sample_data import Account, new_account, send_email, send_sms
from examples.accounts.services import Services
from examples.accounts.task_log import TaskLog, task_log
from examples.accounts.worker import Worker, sql_worker

DEADLINE = 120.0
# What takes minutes in production takes seconds here.
QUICK = Patience(base_delay=timedelta(milliseconds=200))
OPTIONS = ("--poll", "100ms", "--lease", "2s", "--grace", "5s")
READER, BUSY, CLOSED = "ada@example.org", "bob@example.org", "closed@example.org"
CRASH, TWICE, CHECKS = "crash@example.org", "twice@example.org", 20
PHONE, DEAD_PHONE = "+358401111111", "+358409999999"
QUIET = """
    select not exists (select 1 from queues.task t
                       where not exists (select 1 from queues.task_completed c where c.task_id = t.task_id))
"""


async def run_story(console: Console, folder: Path, server_url: str) -> dict[str, Checklist]:
    """Plays everything, and prints the checklist; returns it by path."""
    services = Services(buckets={"recordings": {}})
    async with (
        asyncio.timeout(DEADLINE),
        services.open(),
        new_database(server_url, QUICK) as database,
        database.connected() as db,
        task_log(database, console) as log,
    ):
        story = Story(database, db, services, folder, log)
        results = {}
        async with story.working():
            results["Messages"] = await story.messages()
            results["The happy path"] = await story.happy_path()
            results["The file is stuck"] = await story.file_stuck()
            results["The anonymisation is stuck"] = await story.anonymisation_stuck()
        results["The crash"] = await story.crash()
        results["The queue"] = await checks.queue(db)
        for path, checklist in results.items():
            log.chapter(f"Checks: {path.lower()}")
            for sentence, passed in checklist.items():
                log.check(sentence, passed)
        return results


@dataclass
class Story:
    database: Database
    db: Any
    services: Services
    folder: Path
    log: TaskLog

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Worker]:
        async with sql_worker(self.database, self.services, self.folder, *OPTIONS) as worker:
            yield worker

    async def messages(self) -> Checklist:
        self.log.chapter("Messages: some arrive at once, one at the second attempt, two never")
        self.services.refuse(BUSY, times=1)
        self.services.refuse(CLOSED)
        self.services.refuse(DEAD_PHONE)
        for address in (READER, BUSY, CLOSED):
            await send_email(self.db, address)
        for number in (PHONE, DEAD_PHONE):
            await send_sms(self.db, number)
        await self._until_quiet()
        return await checks.messages(self.db, self.services, (READER, BUSY, CLOSED), (PHONE, DEAD_PHONE))

    async def happy_path(self) -> Checklist:
        account = await new_account(self.db, self.services, "happy")
        await self._request_deletion(account, "An account is deleted: its files first, then what identifies the person")
        return await checks.happy_path(self.db, self.services, account)

    async def file_stuck(self) -> Checklist:
        account = await new_account(self.db, self.services, "filed", bucket="no-such-bucket")
        await self._request_deletion(account, "A file cannot be deleted: its bucket does not exist")
        return await checks.file_stuck(self.db, account)

    async def anonymisation_stuck(self) -> Checklist:
        account = await new_account(self.db, self.services, "held")
        await self.db.execute("insert into accounts.account_flag values ($1, 'legal_hold')", account.account_id)
        await self._request_deletion(account, "An account cannot be anonymised: it is under legal hold")
        return await checks.anonymisation_stuck(self.db, account)

    async def crash(self) -> Checklist:
        """The worker dies when the mail server has the message, and the database does not know; two others go on."""
        self.log.chapter("A worker is killed: after the mail server accepted, before that was recorded")
        self.services.hold_answers()
        self.services.accepted.clear()
        async with self.working() as worker:
            message = await send_email(self.db, CRASH)
            await self.services.accepted.wait()
            worker.kill()
            await worker.process.wait()
        self.log.say("the worker is dead; the next one waits until its lease has ended")
        self.services.release_answers()
        await send_email(self.db, TWICE)
        for _ in range(CHECKS):
            await self.db.execute("""
                select queues.enqueue('db_function', t.payload) from queues.task t
                where t.payload ->> 'db_function' = 'comms.send_email_supervisor' order by t.task_id desc limit 1""")
        async with self.working(), self.working():
            await self._until_quiet()
        return await checks.crash(self.db, self.services, message, CRASH, TWICE)

    async def _request_deletion(self, account: Account, chapter: str) -> None:
        self.log.chapter(chapter)
        for _ in range(2):  # the second request changes nothing
            refused = await self.db.fetchval("select api.request_account_deletion($1)", account.account_id)
            assert refused is None, refused
        await self._until_quiet()

    async def _until_quiet(self) -> None:
        """Waits until no task is left, not even a check that is due later."""
        while True:
            if await self.db.fetchval(QUIET):
                break
            await asyncio.sleep(0.02)
        await self.log.print_ended(self.db)
