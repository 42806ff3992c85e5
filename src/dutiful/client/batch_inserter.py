"""Group commit of enqueues: while one insert runs, new jobs wait for the next one, without a timer."""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from contextvars import Context

from dutiful.client.dispatcher import Dispatcher
from dutiful.core.errors import DataRefused, DutifulError
from dutiful.core.job import Inserted, NewJob
from dutiful.delivery.base import EVERYWHERE, Delivery, QueueLevels
from dutiful.store import Store
from dutiful.store.jobs import hinted_levels

log = logging.getLogger("dutiful.client")
Batch = list[tuple[NewJob, "asyncio.Future[Inserted]"]]
BATCH = 1_000
FEW = 100  # jobs are stored within a few milliseconds
# A call that took longer may have stored jobs below what claims search: it waited for a unique key, or for its commit.
# The rest of LATE_COMMIT is for the hint and the claim.
SLOW = 0.4


async def insert_and_hint(
    store: Store, delivery: Delivery, jobs: Sequence[NewJob], dispatcher: Dispatcher | None = None
) -> list[Inserted]:
    """Stores the jobs in one transaction, hints that there are some, if one may be due soon, and has them delivered."""
    began, levels = time.monotonic(), hinted_levels(jobs)
    hinted = levels is not None and delivery.hint_in_commit(levels, soon=len(jobs) <= FEW)
    try:
        inserted = await store.jobs.insert(jobs, hint=levels if hinted else None)
    except BaseException:
        # A cancelled insert may be committed; and the hint was also for jobs of earlier commits.
        _hint(delivery, levels, began)
        raise
    _hint(delivery, levels, began, sent=hinted)
    if dispatcher is not None:
        dispatcher.dispatch(jobs, inserted)
    delivery.notify_watchers()
    return inserted


def _hint(delivery: Delivery, levels: QueueLevels | None, began: float, *, sent: bool = False) -> None:
    if time.monotonic() - began > SLOW and levels != EVERYWHERE:
        levels, sent = EVERYWHERE, False  # also for a time that was not near when the call began
    if levels is not None:
        delivery.hint(levels, sent=sent)


class BatchInserter:
    """Stores plain jobs in batches of up to BATCH."""

    def __init__(self, store: Store, delivery: Delivery, dispatcher: Dispatcher | None = None) -> None:
        self._store = store
        self._delivery = delivery
        self._dispatcher = dispatcher
        self._pending: Batch = []
        self._flushing: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    async def insert(self, job: NewJob) -> Inserted:
        if not self._idle.is_set():
            return await self._wait_with(job)
        self._idle.clear()
        begun = False
        try:
            try:
                await asyncio.sleep(0)  # who enqueues at the same moment shares the commit
                if not self._pending:
                    begun = True
                    # Alone, so no task of its own is needed, which would take as long as all the rest on this side.
                    store = self._store_of(job.tenant)
                    return (await insert_and_hint(store, self._delivery, [job], self._dispatcher))[0]
            except asyncio.CancelledError:
                # The caller gives up waiting, not the job. A statement that was interrupted may be committed or not:
                # repeated, it stores the job once.
                if not (begun and self._store.finishes_inserts):
                    self._wait_with(job, first=True).cancel()
                raise
            waiting = self._wait_with(job, first=True)
        finally:
            if self._pending:
                self._start()
            else:
                self._idle.set()
        return await waiting

    def _start(self) -> None:
        # In an empty context, because it works for other callers than the one that happens to start it.
        self._flushing = asyncio.create_task(self._flush(), name="dutiful batch insert", context=Context())

    def _wait_with(self, job: NewJob, *, first: bool = False) -> "asyncio.Future[Inserted]":
        future: asyncio.Future[Inserted] = asyncio.get_running_loop().create_future()
        self._pending.insert(0 if first else len(self._pending), (job, future))
        return future

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
            self._idle.set()

    def _by_tenant(self, batch: Batch) -> Iterable[tuple[Store, Batch]]:
        """Splits a batch by tenant where the database isolates tenants, because each is stored on its own behalf."""
        if not self._store.isolates_tenants:
            return [(self._store, batch)]
        parts: dict[str | None, Batch] = {}
        for job, future in batch:
            parts.setdefault(job.tenant, []).append((job, future))
        return [(self._store_of(tenant), part) for tenant, part in parts.items()]

    def _store_of(self, tenant: str | None) -> Store:
        return self._store if tenant is None or not self._store.isolates_tenants else self._store.for_tenant(tenant)

    async def _insert(self, store: Store, batch: Batch) -> None:
        """Inserts all jobs of the batch, also those whose callers were cancelled meanwhile."""
        try:
            results = await insert_and_hint(store, self._delivery, [job for job, _ in batch], self._dispatcher)
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

    async def close(self) -> None:
        await self._idle.wait()


def _fail(batch: Batch, error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            if isinstance(error, asyncio.CancelledError):
                future.cancel()
            else:
                future.set_exception(error)
