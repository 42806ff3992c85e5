"""The client of one open store: enqueues, cancels, looks up, and waits for results."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from uuid import UUID

from dutiful.client.batch_inserter import BatchInserter, insert_and_hint
from dutiful.client.dispatcher import Dispatcher
from dutiful.client.result_waiter import ResultWaiter, result_of
from dutiful.core import ids
from dutiful.core.duration import Duration, duration
from dutiful.core.errors import DutifulError, UniqueConflict
from dutiful.core.job import Inserted, Insertion, JobRecord, NewJob, Scope, job_not_found
from dutiful.core.retry.error_info import storable
from dutiful.core.review.audit import REASON_LIMIT
from dutiful.core.sealed import is_sealed
from dutiful.core.steps import SentEvent
from dutiful.delivery.backend import QueueBackend, StoreBackend
from dutiful.delivery.base import Delivery
from dutiful.events import Watcher
from dutiful.observe.producer import producing
from dutiful.payload.key_ring import KeyRing, no_keys
from dutiful.payload.sealing import open_outcome
from dutiful.store import Store
from dutiful.store.control import CancelResult
from dutiful.store.trees import TreeProgress

if TYPE_CHECKING:
    from dutiful.observe.tracing import Tracer

R = TypeVar("R")
DELIVERED = 100  # events that who sends one delivers, with those of others
TREE_STEP = 500  # jobs of a tree that one transaction cancels


class Sealing(Protocol):
    """Who knows which kinds are encrypted, and their keys."""

    @property
    def key_ring(self) -> KeyRing | None: ...
    @property
    def encrypts(self) -> bool: ...
    def seal(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]: ...
    @property
    def encrypts_events(self) -> bool: ...
    def seal_event(self, event: SentEvent) -> SentEvent: ...


class JobHandle(Generic[R]):
    """A job that was enqueued."""

    __slots__ = ("_client", "created", "id")

    def __init__(self, job_id: UUID, created: bool, client: "Client") -> None:
        self.id = job_id
        self.created = created
        self._client = client

    @property
    def public_id(self) -> str:
        return ids.public(self.id)

    async def result(self, timeout: Duration | None = None) -> R:
        """Waits until the job is final; raises JobFailed, JobCancelled or ResultTimeout if there is no result."""
        result: R = await self._client.result(self.id, timeout)
        return result

    async def record(self) -> JobRecord:
        return await self._client.get(self.id)

    async def cancel(self, reason: str = "cancelled") -> bool:
        """Cancels it if it waits, asks it to stop if it runs; False if it had ended, or was asked before."""
        return (await self._client.cancel(self.id, reason)).changed

    def __repr__(self) -> str:
        return f"<job {self.public_id}>"


class Client:
    """The client of one open store, on one event loop."""

    def __init__(
        self,
        store: Store,
        delivery: Delivery,
        tracer: "Tracer | None" = None,
        backend: QueueBackend | None = None,
        keys: "Sealing | None" = None,
    ) -> None:
        """`backend` delivers jobs; None: workers find them in the store. `keys` seals jobs of encrypted kinds."""
        self.keys = keys
        self.store = store
        self.delivery = delivery
        self.tracer = tracer
        self.backend = StoreBackend(store) if backend is None else backend
        self.dispatcher: Dispatcher | None = None
        if not isinstance(self.backend, StoreBackend):
            self.dispatcher = Dispatcher(self.backend, store.deliveries)
        self._inserter = BatchInserter(store, delivery, self.dispatcher)
        self._waiter = ResultWaiter(store)
        self.watcher = Watcher(store.events, delivery)
        # Callbacks of workers in this process, so that they stop a cancelled job before their next poll.
        self.on_cancel: set[Callable[[UUID], None]] = set()

    async def submit(self, job: NewJob) -> Inserted:
        """Stores one job; calls made while an insert runs share the next commit."""
        if self.keys is not None and self.keys.encrypts:
            (job,) = self.keys.seal((job,))
        if self.tracer is None:
            return await self._insert(job)
        with self.tracer.producing([job]) as production:
            inserted = await self._insert(production.jobs[0])
            production.stored([inserted])
            return inserted

    async def submit_many(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Stores all jobs in one transaction, or none."""
        with producing(self.tracer, self._sealed(jobs)) as production:
            return await self._insert_many(production.jobs)

    async def submit_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        """Stores jobs in the open transaction of the caller's connection or session."""
        with producing(self.tracer, self._sealed(jobs)) as production:
            return await self.store.jobs.insert_within(connection, production.jobs)

    def submit_within_sync(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        with producing(self.tracer, self._sealed(jobs)) as production:
            return self.store.jobs.insert_within_sync(connection, production.jobs)

    def _sealed(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        return jobs if self.keys is None or not self.keys.encrypts else self.keys.seal(jobs)

    async def _insert(self, job: NewJob) -> Inserted:
        if job.plain:
            return await self._inserter.insert(job)
        # Unique keys are locks, so they never wait inside a shared batch.
        return check_inserted((await self._insert_many([job]))[0], job)

    async def _insert_many(self, jobs: Sequence[NewJob]) -> list[Inserted]:
        return await insert_and_hint(self.store, self.delivery, jobs, self.dispatcher)

    async def find(self, job_id: UUID) -> JobRecord | None:
        return await self.store.queries.job(job_id)

    async def get(self, job_id: UUID) -> JobRecord:
        record = await self.store.queries.job(job_id)
        if record is None:
            raise job_not_found(job_id)
        return record

    async def cancel(self, job_id: UUID, reason: str) -> CancelResult:
        result = await self.store.control.cancel(job_id, storable(reason, REASON_LIMIT))
        if result is None:
            raise job_not_found(job_id)
        if result.requested:
            for callback in self.on_cancel:
                callback(job_id)
        self.delivery.notify_watchers()
        return result

    async def send_event(self, event: SentEvent, keep: timedelta, store: Store | None = None) -> None:
        """Stores an event and delivers it to jobs that wait; `store`: that of its tenant, where those are isolated."""
        if self.keys is not None and event.data is not None and self.keys.encrypts_events:
            event = self.keys.seal_event(event)
        steps = (store or self.store).steps
        await steps.send(event, keep)
        with suppress(DutifulError):  # a worker that leads delivers it within a second
            if woken := (await steps.deliver(DELIVERED)).levels:
                self.delivery.hint(woken)

    async def tree_progress(self, correlation_id: str, *, tenant: str | None = None) -> TreeProgress:
        return await self._store_of(tenant).trees.progress(correlation_id, tenant=tenant)

    async def cancel_tree(self, correlation_id: str, reason: str, *, tenant: str | None = None) -> int:
        """Cancels a tree from its newest job to its oldest, in bounded steps; returns how many jobs it reached.

        What running ones add meanwhile is found by another pass.
        """
        reached: set[UUID] = set()
        cancelled, reason = 0, storable(reason, REASON_LIMIT)
        trees = self._store_of(tenant).trees
        while True:
            before, found = None, 0
            while True:
                step = await trees.cancel(correlation_id, reason, before, TREE_STEP, tenant=tenant)
                for job_id in (news := set(step.requested) - reached):
                    for callback in self.on_cancel:
                        callback(job_id)
                reached |= news
                found += step.cancelled + len(news)
                cancelled += step.cancelled
                if (before := step.before) is None:
                    break
            self.delivery.notify_watchers()
            if not found:
                return cancelled + len(reached)

    def _store_of(self, tenant: str | None) -> Store:
        """Where tenants are isolated, the database holds a tenant's calls to its own rows."""
        return self.store if tenant is None else self.store.for_tenant(tenant)

    async def result(self, job_id: UUID, timeout: Duration | None = None) -> Any:
        limit = None if timeout is None else duration(timeout, "timeout")
        record = await self._waiter.wait(job_id, limit)
        ring = None if self.keys is None else self.keys.key_ring
        if ring is not None:
            record = open_outcome(ring, record)
        elif is_sealed(record.result):
            raise no_keys(f"the result of job {ids.public(job_id)} is sealed")
        return result_of(record)

    async def close(self) -> None:
        await self._inserter.close()
        if self.dispatcher is not None:
            await self.dispatcher.close()
        await self._waiter.close()
        await self.watcher.close()


def check_inserted(inserted: Inserted, job: NewJob) -> Inserted:
    """Raises UniqueConflict if the job was rejected because its key is held."""
    if inserted.insertion is Insertion.REJECTED:
        key = job.unique.key if job.unique else ""
        remedy = "; wait for it, or enqueue with on_conflict=return or replace"
        if job.unique is not None and job.unique.scope is Scope.FOREVER:
            remedy = " for good; use another key"
        raise UniqueConflict(
            f"{job.kind}: job {ids.public(inserted.job_id)} holds the unique key {key!r}{remedy}", inserted.job_id
        )
    return inserted
