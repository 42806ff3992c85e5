"""Group commit of enqueues: while one insert runs, new jobs wait for the next one, without a timer."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextvars import Context

from dutiful.core.errors import DataRefused, DutifulError
from dutiful.core.job import Inserted, NewJob
from dutiful.delivery.base import Delivery, QueueLevels
from dutiful.store import Store

log = logging.getLogger("dutiful.client")
Batch = list[tuple[NewJob, "asyncio.Future[Inserted]"]]
BATCH = 1_000


def queue_levels(jobs: Sequence[NewJob]) -> QueueLevels:
    return frozenset((job.queue, job.priority) for job in jobs)


class BatchInserter:
    """Stores plain jobs in batches of up to BATCH."""

    def __init__(self, store: Store, delivery: Delivery) -> None:
        self._store = store
        self._delivery = delivery
        self._pending: Batch = []
        self._flushing: asyncio.Task[None] | None = None

    async def insert(self, job: NewJob) -> Inserted:
        future: asyncio.Future[Inserted] = asyncio.get_running_loop().create_future()
        self._pending.append((job, future))
        if self._flushing is None:
            # In an empty context, because it also works for other callers than the handler that happens to start it.
            self._flushing = asyncio.create_task(self._flush(), name="dutiful batch insert", context=Context())
        return await future

    async def _flush(self) -> None:
        batch: Batch = []
        try:
            while self._pending:
                batch, self._pending = self._pending[:BATCH], self._pending[BATCH:]
                try:
                    for store, part in self._by_tenant(batch):
                        await self._insert(store, part)
                except Exception as error:
                    log.exception("a batch of jobs was not stored; their callers get the error")
                    _fail(batch, error)
        except BaseException as error:  # cancelled, because the loop ends: no caller may be left waiting
            _fail(batch + self._pending, error)
            self._pending = []
            raise
        finally:
            self._flushing = None

    def _by_tenant(self, batch: Batch) -> Iterable[tuple[Store, Batch]]:
        """Splits a batch by tenant where the database isolates tenants, because each is stored on its own behalf."""
        if not self._store.isolates_tenants:
            return [(self._store, batch)]
        parts: dict[str | None, Batch] = {}
        for job, future in batch:
            parts.setdefault(job.tenant, []).append((job, future))
        return [(self._store if t is None else self._store.for_tenant(t), part) for t, part in parts.items()]

    async def _insert(self, store: Store, batch: Batch) -> None:
        """Inserts all jobs of the batch, also those whose callers were cancelled meanwhile."""
        jobs = [job for job, _ in batch]
        try:
            hinted = self._delivery.hint_in_commit()
            results = await store.jobs.insert(jobs, hint=hinted)
        except Exception as error:
            whole = isinstance(error, DutifulError) and not isinstance(error, DataRefused)
            if whole or len(batch) == 1:
                _fail(batch, error)
                return
            # The bad job, which the database refuses or cannot even be sent, must not fail the others: halves find it.
            middle = len(batch) // 2
            await self._insert(store, batch[:middle])
            await self._insert(store, batch[middle:])
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
        self._delivery.hint(queue_levels(jobs), sent=hinted)
        self._delivery.notify_watchers()

    async def close(self) -> None:
        if self._flushing is not None:
            await asyncio.gather(self._flushing, return_exceptions=True)


def _fail(batch: Batch, error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            if isinstance(error, asyncio.CancelledError):
                future.cancel()
            else:
                future.set_exception(error)
