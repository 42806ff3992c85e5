"""The store on one SQLite file: a thin caller that hands each verb to the thread that may run it."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import UUID

import msgspec

from dutiful.core.errors import StoreUnavailable, UsageError
from dutiful.core.job import AttemptRecord, Claim, Inserted, JobRecord, Lapsed, NewJob, Token
from dutiful.core.settle import Change
from dutiful.core.transitions import State
from dutiful.store import (
    Ask,
    CancelResult,
    Completion,
    Fired,
    JobFilter,
    Keeper,
    Line,
    Pause,
    PauseScope,
    Promotion,
    QueueRecord,
    Refusal,
    Retained,
    ScheduleRecord,
    Stats,
    Survey,
    Transaction,
    WorkerRecord,
)
from dutiful.stores.sqlite import acts, check, duties, gates, health, intake, looking, schema, survey, work, workers
from dutiful.stores.sqlite.codec import maybe_moment, micros
from dutiful.stores.sqlite.driver import LIBRARIES, Connection, Driver, connect
from dutiful.stores.sqlite.inbox import Command, Reply
from dutiful.stores.sqlite.keeper import SqliteKeeper
from dutiful.stores.sqlite.lock import WriteLock
from dutiful.stores.sqlite.reader import Reader
from dutiful.stores.sqlite.transaction import BufferedTransaction, complete
from dutiful.stores.sqlite.within import borrowed
from dutiful.stores.sqlite.writer import Writer

T = TypeVar("T")
Synchronous = Literal["FULL", "NORMAL", "EXTRA", "OFF"]

_CLOSED = "the store is not open; use `async with app:` or await app.open() first"


class SqliteStore:
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
        self._path = os.fspath(Path(path).absolute()) if os.fspath(path) not in ("", ":memory:") else os.fspath(path)
        self._driver = driver
        self._synchronous = synchronous
        self._busy = busy_timeout
        self._leadership = survey.Leadership(self._path)
        self._workers = workers.Workers()
        self._swept: gates.Kinds = frozenset()
        self._led_at = 0
        self._threads: _Threads | None = None

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
        self._threads = await asyncio.get_running_loop().run_in_executor(None, self._start)

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

    async def complete(self, done: Sequence[Completion], *, now: datetime | None = None) -> list[Refusal]:
        return await self._write(lambda db: work.complete(db, done, self._clock(now)))

    async def settle(
        self, changes: Sequence[Change], *, lapsed_only: bool = False, now: datetime | None = None
    ) -> list[Refusal]:
        return await self._write(lambda db: work.settle(db, changes, lapsed_only, self._clock(now)))

    def keeper(self) -> Keeper:
        threads = self._running()
        return SqliteKeeper(threads.writer, threads.reader, self._clock)

    @asynccontextmanager
    async def transaction(self, token: Token, result: Callable[[], str | None]) -> AsyncIterator[Transaction]:
        buffered = BufferedTransaction()
        try:
            yield buffered
        finally:
            buffered.close()
        text = result()
        await self._write(lambda db: buffered.apply(db, token, text, self._clock(None)))

    async def complete_within(self, connection: Any, token: Token, result: str | None) -> None:
        self.complete_within_sync(connection, token, result)

    def complete_within_sync(self, connection: Any, token: Token, result: str | None) -> None:
        with borrowed(connection, self._driver, self._path) as db:
            complete(db, token, result, self._clock(None))

    # Duties

    async def survey(self, worker_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> Survey:
        leads = self._leadership.take()
        found = await self._read(lambda db: survey.survey(db, leads, self._led_at, self._swept, self._clock(now)))
        if found.leading:
            self._led_at = micros(found.now)
        return found

    async def resign(self, worker_id: UUID) -> None:
        self._leadership.resign()

    async def promote(self, limit: int, *, now: datetime | None = None) -> Promotion:
        return await self._write(lambda db: duties.promote(db, limit, self._clock(now)))

    async def lapsed(self, limit: int, *, now: datetime | None = None) -> list[Lapsed]:
        return await self._read(lambda db: duties.lapsed(db, limit, self._clock(now)))

    async def held_by(self, worker_id: UUID) -> list[Lapsed]:
        return await self._read(lambda db: duties.held_by(db, worker_id))

    async def sweep(self, limit: int, *, now: datetime | None = None) -> Promotion:
        found = await self._browse(lambda db: gates.look(db, limit, self._swept))
        if not found.shut_out and not found.let_in:
            self._swept = found.swept
            return Promotion(0, next_run_at=maybe_moment(found.next_run_at))
        promotion = await self._write(lambda db: gates.move(db, found, self._clock(now)))
        self._swept = found.swept
        return promotion

    async def retain(
        self, older_than: timedelta, limit: int, cursor: UUID | None, *, now: datetime | None = None
    ) -> Retained:
        return await self._write(lambda db: duties.retain(db, older_than, limit, cursor, self._clock(now)))

    async def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        await self._write(lambda db: duties.put_schedules(db, schedules))

    async def fire(self, fired: Fired, *, now: datetime | None = None) -> bool:
        return await self._write(lambda db: duties.fire(db, fired, self._clock(now)))

    async def beat(self, worker: WorkerRecord, ttl: timedelta, *, now: datetime | None = None) -> None:
        worker = msgspec.structs.replace(worker, leading=self._leadership.held)
        if self._workers.is_news(worker):
            await self._write(lambda db: workers.put(db, worker, ttl, self._clock(now)))
            self._workers.remember(worker)

    async def leave(self, worker_id: UUID) -> None:
        self._workers.forget(worker_id)
        self._leadership.resign()
        await self._write(lambda db: workers.delete(db, worker_id))

    async def data_version(self) -> int:
        """A number that changes when another process has committed; to ask costs no file I/O."""
        return await self._submit(lambda db: int(db.value("PRAGMA data_version")), transaction=False)

    # Acts

    async def cancel(self, job_id: UUID, reason: str, *, now: datetime | None = None) -> CancelResult | None:
        return await self._write(lambda db: acts.cancel(db, job_id, reason, self._clock(now)))

    async def expedite(self, job_id: UUID, *, now: datetime | None = None) -> State | None:
        return await self._write(lambda db: acts.expedite(db, job_id, self._clock(now)))

    async def pause(self, pause: Pause, *, now: datetime | None = None) -> bool:
        return await self._write(lambda db: acts.pause(db, pause, self._clock(now)))

    async def resume(self, scope: PauseScope, name: str) -> bool:
        return await self._write(lambda db: acts.resume(db, scope, name))

    async def enable_schedule(self, name: str, enabled: bool) -> bool:
        return await self._write(lambda db: acts.enable_schedule(db, name, enabled))

    # Reader

    async def find(self, job_id: UUID) -> JobRecord | None:
        return await self._read(lambda db: looking.find(db, job_id))

    async def outcomes(self, job_ids: Sequence[UUID]) -> list[JobRecord]:
        return await self._read(lambda db: looking.outcomes(db, job_ids))

    async def jobs(self, filter: JobFilter) -> list[JobRecord]:
        return await self._browse(lambda db: looking.jobs(db, filter))

    async def attempts(self, job_id: UUID) -> list[AttemptRecord]:
        return await self._read(lambda db: looking.attempts(db, job_id))

    async def dependencies(self, job_id: UUID) -> list[JobRecord]:
        return await self._read(lambda db: looking.dependencies(db, job_id))

    async def queues(self) -> list[QueueRecord]:
        return await self._browse(looking.queues)

    async def stats(self, since: timedelta, *, now: datetime | None = None) -> Stats:
        return await self._browse(lambda db: looking.stats(db, since, self._clock(now)))

    async def workers(self) -> list[WorkerRecord]:
        return await self._browse(lambda db: looking.workers(db, self._clock(None)))

    async def schedules(self) -> list[ScheduleRecord]:
        return await self._browse(looking.schedules)

    async def pauses(self) -> list[Pause]:
        return await self._browse(looking.pauses)

    async def check_places(self) -> list[str]:
        return await self._browse(check.check_places)

    async def health(self) -> dict[str, Any]:
        return await self._browse(lambda db: health.health(db, self._path, self._driver))

    # Threads

    async def _write(self, verb: Callable[[Connection], T]) -> T:
        return await self._submit(verb)

    def _submit(self, verb: Callable[[Connection], T], *, transaction: bool = True) -> "asyncio.Future[T]":
        reply: Reply[T] = Reply(asyncio.get_running_loop())
        self._running().writer.submit(Command(verb, reply, transaction))
        assert reply.future is not None
        return reply.future

    async def _read(self, verb: Callable[[Connection], T]) -> T:
        return await self._ask(self._running().reader, verb)

    async def _browse(self, verb: Callable[[Connection], T]) -> T:
        """Read something that may take long, without keeping quick reads waiting."""
        return await self._ask(self._running().browser, verb)

    async def _ask(self, reader: Reader, verb: Callable[[Connection], T]) -> T:
        reply: Reply[T] = Reply(asyncio.get_running_loop())
        reader.submit(Command(verb, reply))
        assert reply.future is not None
        return await reply.future

    def _running(self) -> "_Threads":
        if self._threads is None:
            raise StoreUnavailable(_CLOSED)
        return self._threads

    def _start(self) -> "_Threads":
        return _Threads(self._path, self._driver, self._synchronous, self._busy)

    def _give_back(self, asked: "asyncio.Future[list[Claim]]") -> None:
        if self._threads is None or asked.cancelled() or asked.exception() is not None:
            return
        tokens = [Token(claim.job_id, claim.claim_id) for claim in asked.result()]
        if tokens:
            self._submit(lambda db: work.release(db, tokens, self._clock(None)))

    @staticmethod
    def _clock(now: datetime | None) -> int:
        return time.time_ns() // 1000 if now is None else micros(now)


class _Threads:
    """The threads of an open store, each with its connection, in the process that opened it."""

    def __init__(self, path: str, driver: Driver, synchronous: str, busy: timedelta) -> None:
        self.pid = os.getpid()
        busy_ms = busy // timedelta(milliseconds=1)

        def opener() -> Connection:
            db = connect(path, driver, busy_ms)
            try:
                schema.prepare(db, synchronous)
            except BaseException:
                db.close()
                raise
            return db

        self._leave_library = LIBRARIES.enter(path, driver)
        self._lock = WriteLock(path, busy.total_seconds())
        try:
            self._lock.open()
        except BaseException:
            self._leave_library()
            raise
        self.writer = Writer(path, self._lock, opener)
        self.reader = Reader(path, "reader", opener)
        self.browser = Reader(path, "browser", opener)
        for thread in (self.writer, self.reader, self.browser):
            thread.start()

    def close(self) -> None:
        for thread in (self.reader, self.browser, self.writer):
            thread.close(_CLOSED)
        self._lock.close()
        self._leave_library()
