"""The store on one SQLite file: a thin caller that hands each verb to the thread that may run it."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from dutiful.acting import CancelResult, Pause, PauseScope
from dutiful.core.errors import UsageError
from dutiful.core.job import AttemptRecord, Claim, Inserted, JobRecord, NewJob, Token
from dutiful.core.settle import Change
from dutiful.core.tenant import check_tenant
from dutiful.core.transitions import State
from dutiful.duties import ScheduleRecord, WorkerRecord
from dutiful.reading import JobFilter, JobPage, QueueRecord, Stats
from dutiful.stores.sqlite import acts, check, counting, health, intake, listing, looking, schema, work
from dutiful.stores.sqlite.codec import moment
from dutiful.stores.sqlite.driver import Driver
from dutiful.stores.sqlite.keeper import SqliteKeeper
from dutiful.stores.sqlite.store_alerting import SqliteAlerting
from dutiful.stores.sqlite.store_breaking import SqliteBreaking
from dutiful.stores.sqlite.store_duties import SqliteDuties
from dutiful.stores.sqlite.store_following import SqliteFollowing
from dutiful.stores.sqlite.store_measuring import SqliteMeasuring
from dutiful.stores.sqlite.store_outbox import SqliteOutbox
from dutiful.stores.sqlite.store_review import SqliteReview
from dutiful.stores.sqlite.threads import Threads
from dutiful.stores.sqlite.transaction import BufferedTransaction, complete
from dutiful.stores.sqlite.within import borrowed
from dutiful.working import Ask, Completion, Errors, Keeper, Line, Refusal, Transaction

Synchronous = Literal["FULL", "NORMAL", "EXTRA", "OFF"]


class SqliteStore(
    SqliteDuties,
    SqliteOutbox,
    SqliteReview,
    SqliteFollowing,
    SqliteBreaking,
    SqliteMeasuring,
    SqliteAlerting,
):
    """Jobs in the file `path`, for any number of processes on one machine.

    `synchronous="NORMAL"` is faster, and after a power cut forgets the last commits; FULL keeps its word.
    `driver="sqlite3"` uses the standard library, for applications that enqueue in transactions of their own.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        driver: Driver = "apsw",
        synchronous: Synchronous = "FULL",
        busy_timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        if driver not in ("apsw", "sqlite3"):
            raise UsageError(f'driver {driver!r} is unknown: use "apsw" or "sqlite3"')
        if synchronous not in ("FULL", "NORMAL", "EXTRA", "OFF"):
            raise UsageError(f'synchronous {synchronous!r} is unknown: use "FULL", "NORMAL", "EXTRA" or "OFF"')
        file = os.fspath(Path(path).absolute()) if os.fspath(path) not in ("", ":memory:") else os.fspath(path)
        super().__init__(file)
        self._path = file
        self._driver = driver
        self._synchronous = synchronous
        self._busy = busy_timeout

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    # Schema

    async def open(self) -> None:
        if self._threads is not None and self._threads.pid == os.getpid():
            return
        await self._open()
        try:
            self._leadership.open()
            await self._apply_missing()
        except BaseException:
            await self.close()
            raise

    async def _open(self) -> None:
        schema.check_path(self._path)
        self._threads = await asyncio.get_running_loop().run_in_executor(
            None, Threads, self._path, self._driver, self._synchronous, self._busy
        )

    async def close(self) -> None:
        threads, self._threads = self._threads, None
        self._leadership.close()
        if threads is not None and threads.pid == os.getpid():
            try:
                closing = asyncio.get_running_loop().run_in_executor(None, threads.close)
            except RuntimeError:  # the interpreter is ending, and gives out no more threads
                threads.close()
            else:
                await closing

    async def migrate(self) -> list[str]:
        if self._threads is None:
            await self._open()
            try:
                return await self._apply_missing()
            finally:
                await self.close()
        return await self._apply_missing()

    async def _apply_missing(self) -> list[str]:
        applied: list[str] = []
        while await self._read(schema.missing):
            if name := await self._write(lambda db: schema.apply_next(db, self._clock(None))):
                applied.append(name)
        return applied

    def migration_sql(self) -> str:
        return "\n".join(f"-- {migration.name}\n\n{migration.sql}" for migration in schema.migrations())

    @property
    def guarded(self) -> bool:
        return False

    def check_worker(self) -> None:
        """Who can open the file can do everything."""

    def for_tenant(self, tenant: str) -> "SqliteStore":
        """Itself: who can open the file can read all of it, so only what is asked for keeps tenants apart."""
        check_tenant(tenant)
        return self

    # Intake

    async def insert(
        self, jobs: Sequence[NewJob], *, hint: bool = False, now: datetime | None = None
    ) -> list[Inserted]:
        return await self._write(lambda db: intake.insert(db, jobs, self._clock(now)))

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        return self.insert_within_sync(connection, jobs)

    def insert_within_sync(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        with borrowed(connection, self._driver, self._path) as db:
            return intake.insert(db, jobs, self._clock(None))

    # Work

    async def peek(self, kinds: Sequence[str], *, now: datetime | None = None) -> list[Line]:
        return await self._read(lambda db: work.peek(db, kinds))

    async def claim(self, ask: Ask, *, now: datetime | None = None) -> list[Claim]:
        asked: asyncio.Future[list[Claim]] = self._submit(lambda db: work.claim(db, ask, self._clock(now)))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            # Nobody is left to run what is being claimed: it goes back to its place in the line.
            asked.add_done_callback(self._give_back)
            raise

    def _give_back(self, asked: "asyncio.Future[list[Claim]]") -> None:
        if self._threads is None or asked.cancelled() or asked.exception() is not None:
            return
        tokens = [Token(claim.job_id, claim.claim_id) for claim in asked.result()]
        if tokens:
            self._submit(lambda db: work.release(db, tokens, self._clock(None)))

    # Nobody can lock a single lease here: with skip_locked or without, there is only the one writer to wait for.

    async def complete(
        self, done: Sequence[Completion], *, skip_locked: bool = False, now: datetime | None = None
    ) -> list[Refusal]:
        return await self._write(lambda db: work.complete(db, done, self._clock(now)))

    async def settle(
        self,
        changes: Sequence[Change],
        *,
        lapsed_only: bool = False,
        skip_locked: bool = False,
        now: datetime | None = None,
    ) -> list[Refusal]:
        return await self._write(lambda db: work.settle(db, changes, lapsed_only, self._clock(now)))

    def keeper(self) -> Keeper:
        threads = self._running()
        return SqliteKeeper(threads.writer, threads.reader, self._clock)

    @asynccontextmanager
    async def transaction(
        self, token: Token, result: Callable[[], str | None], errors: Callable[[], Errors] = tuple
    ) -> AsyncIterator[Transaction]:
        buffered = BufferedTransaction()
        try:
            yield buffered
        finally:
            buffered.close()
        text, failed = result(), errors()
        await self._write(lambda db: buffered.apply(db, token, text, failed, self._clock(None)))

    async def complete_within(self, connection: Any, token: Token, result: str | None, errors: Errors = ()) -> None:
        self.complete_within_sync(connection, token, result, errors)

    def complete_within_sync(self, connection: Any, token: Token, result: str | None, errors: Errors = ()) -> None:
        with borrowed(connection, self._driver, self._path) as db:
            complete(db, token, result, errors, self._clock(None))

    async def data_version(self) -> int:
        """A number that changes when another process has committed; to ask costs no file I/O."""
        return await self._submit(lambda db: int(db.value("PRAGMA data_version")), transaction=False)

    # Acts

    async def cancel(self, job_id: UUID, reason: str, *, now: datetime | None = None) -> CancelResult | None:
        return await self._write(lambda db: acts.cancel(db, job_id, reason, self._clock(now)))

    async def bury(self, job_id: UUID, error: Mapping[str, Any], *, now: datetime | None = None) -> bool:
        return await self._write(lambda db: acts.bury(db, job_id, error, self._clock(now)))

    async def expedite(self, job_id: UUID, *, now: datetime | None = None) -> State | None:
        return await self._write(lambda db: acts.expedite(db, job_id, self._clock(now)))

    async def pause(self, pause: Pause, *, now: datetime | None = None) -> bool:
        return await self._write(lambda db: acts.pause(db, pause, self._clock(now)))

    async def resume(self, scope: PauseScope, name: str) -> bool:
        return await self._write(lambda db: acts.resume(db, scope, name))

    async def remove_schedule(self, name: str) -> bool:
        return await self._write(lambda db: acts.remove_schedule(db, name))

    async def enable_schedule(self, name: str, enabled: bool) -> bool:
        return await self._write(lambda db: acts.enable_schedule(db, name, enabled))

    # Reader

    async def find(self, job_id: UUID) -> JobRecord | None:
        return await self._read(lambda db: looking.find(db, job_id))

    async def outcomes(self, job_ids: Sequence[UUID]) -> list[JobRecord]:
        return await self._read(lambda db: looking.outcomes(db, job_ids))

    async def jobs(self, filter: JobFilter) -> JobPage:
        return await self._browse(lambda db: listing.jobs(db, filter))

    async def attempts(self, job_id: UUID) -> list[AttemptRecord]:
        return await self._read(lambda db: looking.attempts(db, job_id))

    async def dependencies(self, job_id: UUID) -> list[JobRecord]:
        return await self._read(lambda db: looking.dependencies(db, job_id))

    async def queues(self, *, tenant: str | None = None) -> list[QueueRecord]:
        return await self._browse(lambda db: counting.queues(db, tenant))

    async def stats(self, since: timedelta, *, tenant: str | None = None, now: datetime | None = None) -> Stats:
        return await self._browse(lambda db: counting.stats(db, since, tenant, self._clock(now)))

    async def workers(self) -> list[WorkerRecord]:
        return await self._browse(lambda db: looking.workers(db, self._clock(None)))

    async def schedules(self) -> list[ScheduleRecord]:
        return await self._browse(looking.schedules)

    async def pauses(self) -> list[Pause]:
        return await self._browse(looking.pauses)

    async def clock(self, *, now: datetime | None = None) -> datetime:
        return moment(self._clock(now))

    async def check_places(self) -> list[str]:
        return await self._browse(check.check_places)

    async def health(self) -> dict[str, Any]:
        return await self._browse(lambda db: health.health(db, self._path, self._driver))
