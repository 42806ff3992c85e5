"""Delivers stored jobs through a backend, in the background and in batches, and stores what the backend calls them."""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from contextvars import Context
from itertools import islice
from uuid import UUID

import msgspec

from dutiful.core.errors import BackendAway, DutifulError, QueueRefused
from dutiful.core.job import Inserted, Insertion, NewJob
from dutiful.delivery.backend import BatchBackend, ClosableBackend, Message, NamesDeliveries, QueueBackend
from dutiful.observe.outage import OutageLog
from dutiful.observe.sparse import SparseLog
from dutiful.store.deliveries import Delivered, DeliveryStore, WaitingJob

log = logging.getLogger("dutiful.delivery")
BATCH = 1_000
MOST_PENDING = 100_000  # more than that are left to the maintenance service
REST = 1.0  # seconds without a try after one that failed
CLOSING = 5.0  # seconds that pending deliveries may take when the client is closed
_NEW = (Insertion.MADE, Insertion.REPLACED)


class Parcel(msgspec.Struct, frozen=True, gc=False):
    """A job to deliver: `number` counts its deliveries, `attempt` those attempts that are spent."""

    job_id: UUID
    kind: str
    queue: str
    priority: int
    number: int = 1
    attempt: int = 0


class Dispatcher:
    """A delivery that fails is not repeated here: the maintenance service finds the job."""

    def __init__(self, backend: QueueBackend, deliveries: DeliveryStore) -> None:
        self.backend = backend
        self._deliveries = deliveries
        self._pending: dict[UUID, Parcel] = {}
        self._flushing: asyncio.Task[None] | None = None
        self._tried_at = float("-inf")  # the last time in vain
        self.outages = OutageLog("Redis", BackendAway, log)
        self._refused = SparseLog(log)
        self.outages.waiting = lambda: "jobs are stored, and delivered when it is back"

    def dispatch(self, jobs: Iterable[NewJob], inserted: Iterable[Inserted]) -> None:
        """Delivers jobs that were just stored and are due, soon; never blocks, never raises."""
        if time.monotonic() - self._tried_at < REST:
            return
        for job, result in zip(jobs, inserted, strict=True):
            waits = job.run_at is not None or job.delay is not None or job.depends_on
            if not waits and result.insertion in _NEW and len(self._pending) < MOST_PENDING:
                self._pending[result.job_id] = Parcel(result.job_id, job.kind, job.queue, job.priority)
        if self._pending and self._flushing is None:
            # In an empty context, because it works for other callers than the one that happens to start it.
            self._flushing = asyncio.create_task(self._flush(), name="dutiful deliveries", context=Context())

    async def _flush(self) -> None:
        try:
            while self._pending:
                batch = [*islice(self._pending.values(), BATCH)]
                for parcel in batch:
                    del self._pending[parcel.job_id]
                await self.deliver(batch)
        except Exception as error:  # the service delivers them
            self._tried_at = time.monotonic()
            self._pending.clear()
            if not isinstance(error, BackendAway):
                level = logging.DEBUG if isinstance(error, DutifulError) else logging.ERROR
                log.log(level, "jobs were not delivered yet: %s", error, exc_info=level == logging.ERROR)
        finally:
            self._flushing = None

    async def deliver(self, parcels: Sequence[Parcel]) -> int:
        """Sends these jobs, and stores that they were; returns how many.

        Those of a queue that the broker refuses are left out: they keep no others from delivery.
        """
        while parcels:
            try:
                return await self._deliver(parcels)
            except QueueRefused as error:  # what it has taken of the others is sent again, and changes nothing
                left = [one for one in parcels if one.queue not in error.queues]
                if len(left) == len(parcels):
                    raise
                count = len(parcels) - len(left)
                self._refused.warning("refused", "%d ready jobs are not delivered: %s", count, error)
                parcels = left
        return 0

    async def _deliver(self, parcels: Sequence[Parcel]) -> int:
        messages = [Message.of(one.kind, one.queue, one.job_id, one.priority, one.number) for one in parcels]
        with self.outages.watching("deliveries"):
            if isinstance(self.backend, BatchBackend):
                names = await self.backend.enqueue_many(messages)
            else:
                names = [await self.backend.enqueue(m.job_type, m.payload, queue_name=m.queue_name) for m in messages]
        sent = zip(parcels, names, strict=True)
        await self._deliveries.record([Delivered(one.job_id, name, one.number, one.attempt) for one, name in sent])
        return len(parcels)

    async def missing(self, delivered: Sequence[WaitingJob]) -> set[UUID]:
        """The jobs whose last delivery the broker has lost; of one that it gives no name, nothing is known."""
        jobs = {(job.queue, name): job.job_id for job in delivered if (name := self._name_of(job))}
        if not jobs:
            return set()
        with self.outages.watching("deliveries"):
            if isinstance(self.backend, BatchBackend):
                lost = await self.backend.missing([*jobs])
            else:
                lost = {name for _, name in jobs if await self.backend.get_job_metadata(name) is None}
        return {job_id for (_, name), job_id in jobs.items() if name in lost}

    def _name_of(self, job: WaitingJob) -> str | None:
        if isinstance(self.backend, NamesDeliveries):
            return self.backend.delivery_name(job.job_id, job.number)
        return job.backend_job_id

    async def flush(self) -> None:
        """Waits until all that is pending was delivered, or could not be."""
        while self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def close(self) -> None:
        try:
            await asyncio.wait_for(self.flush(), CLOSING)
        except TimeoutError:
            if self._flushing is not None:
                self._flushing.cancel()
        if isinstance(self.backend, ClosableBackend):
            await self.backend.close()
