"""Enqueue, cancel, look up, wait for a result."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from dutiful.acting import CancelResult
from dutiful.core import ids
from dutiful.core.duration import Duration, brief, duration
from dutiful.core.errors import (
    DataRefused,
    DutifulError,
    JobCancelled,
    JobFailed,
    JobNotFound,
    ResultTimeout,
    StoreUnavailable,
    UniqueConflict,
)
from dutiful.core.job import Inserted, Insertion, JobRecord, NewJob, Scope
from dutiful.core.payload import clean
from dutiful.core.transitions import State
from dutiful.delivery import Delivery
from dutiful.store import Store
from dutiful.watcher import Watcher

if TYPE_CHECKING:
    from dutiful.observe.tracing import Tracer

log = logging.getLogger("dutiful.client")
R = TypeVar("R")
Asked = list[tuple[NewJob, "asyncio.Future[Inserted]"]]
BATCH = 1_000
REASON_LIMIT = 2_000
FIRST_LOOK, LONGEST_LOOK = 0.02, 0.5


class JobHandle(Generic[R]):
    """A job that was enqueued."""

    __slots__ = ("_client", "_read", "created", "id")

    def __init__(self, job_id: UUID, created: bool, client: "Client", read: Callable[[Any], Any] | None = None) -> None:
        self.id = job_id
        self.created = created
        self._client = client
        self._read = read

    @property
    def public_id(self) -> str:
        return ids.public(self.id)

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job is final; JobFailed, JobCancelled or ResultTimeout if there is no result."""
        value = await self._client.result(self.id, timeout)
        return self._read(value) if self._read else value  # type: ignore[no-any-return]

    async def record(self) -> JobRecord:
        return await self._client.get(self.id)

    async def cancel(self, reason: str = "cancelled") -> bool:
        """Cancel it if it waits, ask it to stop if it runs; False if it had ended."""
        return (await self._client.cancel(self.id, reason)).changed

    def __repr__(self) -> str:
        return f"<job {self.public_id}>"


class Client:
    """The producing side of one open store, on one event loop."""

    def __init__(self, store: Store, delivery: Delivery, tracer: "Tracer | None" = None) -> None:
        self.store = store
        self.delivery = delivery
        self.tracer = tracer
        self._intake = _Intake(store, delivery)
        self._waiting = _Waiting(store)
        self.watcher = Watcher(store, delivery)
        # Workers on this client: they need not wait until they look whether somebody wants a job of theirs to stop.
        self.on_cancel: set[Callable[[UUID], None]] = set()

    async def submit(self, job: NewJob) -> Inserted:
        """Store one job; calls made while another is under way share its successor's commit."""
        if self.tracer is None:
            return await self._put(job)
        with self.tracer.producing([job]) as production:
            inserted = await self._put(production.jobs[0])
            production.stored([inserted])
            return inserted

    async def submit_many(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Store all of them in one transaction, or none."""
        if self.tracer is None:
            return await self._put_many(jobs)
        with self.tracer.producing(jobs) as production:
            return await self._put_many(production.jobs)

    async def submit_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Store them in the transaction that is open on somebody's connection or session."""
        if self.tracer is None:
            return await self.store.insert_within(connection, jobs)
        with self.tracer.producing(jobs) as production:
            return await self.store.insert_within(connection, production.jobs)

    def submit_within_sync(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        if self.tracer is None:
            return self.store.insert_within_sync(connection, jobs)
        with self.tracer.producing(jobs) as production:
            return self.store.insert_within_sync(connection, production.jobs)

    async def _put(self, job: NewJob) -> Inserted:
        if job.plain:
            return await self._intake.add(job)
        # Keys are locks: they never wait inside a batch that others share.
        return checked((await self._put_many([job]))[0], job)

    async def _put_many(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        along = self.delivery.rides()
        inserted = await self.store.insert(jobs, hint=along)
        self.delivery.hint(lines(jobs), sent=along)
        self.delivery.news()
        return inserted

    async def find(self, job_id: UUID) -> JobRecord | None:
        return await self.store.find(job_id)

    async def get(self, job_id: UUID) -> JobRecord:
        record = await self.store.find(job_id)
        if record is None:
            raise JobNotFound(f"there is no job {ids.public(job_id)}: it never was, or retention has removed it")
        return record

    async def cancel(self, job_id: UUID, reason: str) -> CancelResult:
        result = await self.store.cancel(job_id, clean(reason, REASON_LIMIT))
        if result is None:
            raise JobNotFound(f"there is no job {ids.public(job_id)}: it never was, or retention has removed it")
        if result.requested:
            for tell in self.on_cancel:
                tell(job_id)
        self.delivery.news()
        return result

    async def result(self, job_id: UUID, timeout: Duration | None = None) -> Any:
        limit = None if timeout is None else duration(timeout, "timeout")
        return _result_of(await self._waiting.final(job_id, limit))

    async def close(self) -> None:
        await self._intake.close()
        await self._waiting.close()
        await self.watcher.close()


def lines(jobs: Sequence[NewJob]) -> frozenset[tuple[str, int]]:
    return frozenset((job.queue, job.priority) for job in jobs)


def checked(inserted: Inserted, job: NewJob) -> Inserted:
    """Raise UniqueConflict if the job's key was taken and its caller wants to hear of it."""
    if inserted.insertion is Insertion.REJECTED:
        key = job.unique.key if job.unique else ""
        remedy = "; wait for it, or enqueue with on_conflict=return or replace"
        if job.unique is not None and job.unique.scope is Scope.FOREVER:
            remedy = " for good; use another key"
        raise UniqueConflict(
            f"{job.kind}: job {ids.public(inserted.job_id)} holds the unique key {key!r}{remedy}", inserted.job_id
        )
    return inserted


def _result_of(record: JobRecord) -> Any:
    match record.state:
        case State.COMPLETED | State.COMPLETED_WITH_ERRORS:
            return record.result
        case State.CANCELLED:
            raise JobCancelled(f"job {ids.public(record.id)} was cancelled: {_message(record)}")
        case _:
            error = record.errors[0] if record.errors else None
            raise JobFailed(f"job {ids.public(record.id)} failed: {_message(record)}", record.state, error)


def _message(record: JobRecord) -> str:
    error = record.errors[0] if record.errors else {}
    return f"{error.get('type', 'unknown')}: {error.get('message', '')}"


class _Intake:
    """Group commit: while one insert is under way, what arrives waits for the next one. No timer."""

    def __init__(self, store: Store, delivery: Delivery) -> None:
        self._store = store
        self._delivery = delivery
        self._pending: Asked = []
        self._flushing: asyncio.Task[None] | None = None

    async def add(self, job: NewJob) -> Inserted:
        future: asyncio.Future[Inserted] = asyncio.get_running_loop().create_future()
        self._pending.append((job, future))
        if self._flushing is None:
            # In no context: it works for others, too, than the handler who happens to come first.
            self._flushing = asyncio.create_task(self._flush(), name="dutiful intake", context=Context())
        return await future

    async def _flush(self) -> None:
        batch: Asked = []
        try:
            while self._pending:
                batch, self._pending = self._pending[:BATCH], self._pending[BATCH:]
                try:
                    for store, part in self._parts(batch):
                        await self._insert(store, part)
                except Exception as error:
                    log.exception("the intake met an error and goes on")
                    _fail(batch, error)
        except BaseException as error:  # cancelled, for the loop is about to end: nobody is left to wait for ever
            _fail(batch + self._pending, error)
            self._pending = []
            raise
        finally:
            self._flushing = None

    def _parts(self, batch: Asked) -> Iterable[tuple[Store, Asked]]:
        """Where the database keeps tenants apart, each one's jobs are stored on its own behalf."""
        if not self._store.guarded:
            return [(self._store, batch)]
        parts: dict[str | None, Asked] = {}
        for job, future in batch:
            parts.setdefault(job.tenant, []).append((job, future))
        return [(self._store if t is None else self._store.for_tenant(t), part) for t, part in parts.items()]

    async def _insert(self, store: Store, batch: Asked) -> None:
        """A caller that gave up is still stored: it may not know that it was too late to take its job back."""
        jobs = [job for job, _ in batch]
        try:
            along = self._delivery.rides()
            results = await store.insert(jobs, hint=along)
        except Exception as error:
            whole = isinstance(error, DutifulError) and not isinstance(error, DataRefused)
            if whole or len(batch) == 1:
                _fail(batch, error)
                return
            # One bad job must not fail its neighbours: one that the database refuses, or that cannot even be written.
            middle = len(batch) // 2
            await self._insert(store, batch[:middle])
            await self._insert(store, batch[middle:])
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
        self._delivery.hint(lines(jobs), sent=along)
        self._delivery.news()

    async def close(self) -> None:
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)


def _fail(batch: Asked, error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            if isinstance(error, asyncio.CancelledError):
                future.cancel()
            else:
                future.set_exception(error)


class _Waiting:
    """One look serves all callers of this process that wait for a result."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiters: dict[UUID, list[asyncio.Future[JobRecord]]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._fresh = asyncio.Event()

    async def final(self, job_id: UUID, limit: timedelta | None) -> JobRecord:
        if await self._store.find(job_id) is None:
            raise JobNotFound(f"there is no job {ids.public(job_id)}: it never was, or retention has removed it")
        future: asyncio.Future[JobRecord] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(job_id, []).append(future)
        self._fresh.set()
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="dutiful results", context=Context())
        try:
            return await asyncio.wait_for(future, None if limit is None else limit.total_seconds())
        except TimeoutError:
            assert limit is not None
            raise ResultTimeout(f"job {ids.public(job_id)} is not final after {brief(limit)}; it goes on") from None
        finally:
            rest = [f for f in self._waiters.pop(job_id, []) if f is not future]
            if rest:
                self._waiters[job_id] = rest

    async def _look(self) -> None:
        pause = FIRST_LOOK
        try:
            while self._waiters:
                self._fresh.clear()
                for record in await self._store.outcomes(list(self._waiters)):
                    pause = FIRST_LOOK
                    for future in self._waiters.pop(record.id, []):
                        if not future.done():
                            future.set_result(record)
                try:
                    await asyncio.wait_for(self._fresh.wait(), pause)
                    pause = FIRST_LOOK
                except TimeoutError:
                    pause = min(pause * 1.5, LONGEST_LOOK)
        except Exception as error:
            for future in [f for futures in self._waiters.values() for f in futures]:
                if not future.done():
                    future.set_exception(error)
        finally:
            self._looking = None

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        for job_id, futures in self._waiters.items():
            for future in futures:
                if not future.done():
                    future.set_exception(
                        StoreUnavailable(f"the app was closed before job {ids.public(job_id)} was final; it goes on")
                    )
