"""Batches: a job of a kind that has them gathers others in its slot, and one call of the handler gets them all."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

from dutiful.core.job import Claim
from dutiful.core.outcome import Cancelled
from dutiful.declare.batch import BatchSpec
from dutiful.store import Store
from dutiful.store.claims import ClaimRequest, QueueLevel
from dutiful.store.control import EVERY_LANE, Pause, PauseScope
from dutiful.store.shares import ShareRequest, Take
from dutiful.worker.slots import Slot, StopReason

Settle = Callable[[Claim, Cancelled], None]


class Batch:
    """The jobs in one slot: the first was taken up by it, the others have joined it.

    Jobs that may harm others gather none and join none: one that has failed before, because an error that a handler
    raises says nothing about which job is at fault; and one that was lost with its worker.
    """

    def __init__(self, first: Claim, spec: BatchSpec, slot: Slot, settle: Settle, cancel_grace: float) -> None:
        """`settle` ends a job that was cancelled, without the handler: at once, or `cancel_grace` after it began."""
        self.first = first
        self.claims = [first]  # that have no outcome yet
        self.stopped: dict[int, StopReason] = {}  # by claim: jobs that need not be done any more
        self.may_find = True  # whether a claim for it may find something
        self._spec = spec
        self._slot = slot
        self._settle = settle
        self._cancel_grace = cancel_grace
        self._gathered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timers: list[asyncio.TimerHandle] = []
        if not _joins(first):
            self.start()

    @property
    def gathers(self) -> bool:
        return not self._gathered.done()

    @property
    def room(self) -> int:
        return self._spec.size - len(self.claims) if self.gathers else 0

    @property
    def size(self) -> int:
        return self._spec.size

    @property
    def across_tenants(self) -> bool:
        return self._spec.across_tenants

    def add(self, claim: Claim) -> bool:
        """Whether the job has joined it."""
        first = self.first
        if not self.room or claim.kind != first.kind or not _joins(claim):
            return False
        if claim.tenant != first.tenant and not self.across_tenants:
            return False
        self.claims.append(claim)
        if not self.room:
            self.start()
        return True

    def asked(self, found: int) -> None:
        """A claim for it has brought so many jobs."""
        if found:
            self.may_find = True  # fewer than asked for does not mean that there are no more
        elif not self._spec.linger and not self.may_find:
            self.start()

    def start(self) -> None:
        """Gathers no more, so that its slot goes on."""
        if self.gathers:
            self._gathered.set_result(None)

    async def gather(self) -> None:
        """Waits until it is full, has lingered for its time, or was started for another reason."""
        if self._spec.linger:
            self._after(self._spec.linger.total_seconds(), self.start)
        try:
            await self._gathered
        finally:
            self.start()
            self.close()

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def stop(self, claim: Claim, reason: StopReason) -> None:
        """Ends one of its jobs. The handler is stopped if it is the last; the others cannot do without it."""
        if claim.claim_id in self.stopped:
            return
        self.stopped[claim.claim_id] = reason
        if self._slot.claim is None:
            self._end(claim, reason)
            if not self.claims:
                self.start()
        elif all(one.claim_id in self.stopped for one in self.claims):
            cancelled = StopReason.CANCEL in (self.stopped[one.claim_id] for one in self.claims)
            self._slot.request_stop(StopReason.CANCEL if cancelled else StopReason.LOST)
        elif reason is StopReason.CANCEL:
            self._after(self._cancel_grace, lambda: self._end(claim, reason))

    def _end(self, claim: Claim, reason: StopReason) -> None:
        if claim in self.claims and not self._slot.abandoned:
            self.claims.remove(claim)
            if reason is StopReason.CANCEL:
                self._settle(claim, Cancelled("cancelled"))

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, call))


class Gathering:
    """The batches of a lane that gather jobs."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def jobs(self) -> tuple[UUID, ...]:
        return tuple(claim.job_id for batch in self._batches for claim in batch.claims)

    @contextmanager
    def adding(self, batch: Batch) -> Iterator[None]:
        """Lets jobs join it within the block."""
        self._batches.append(batch)
        try:
            yield
        finally:
            self._batches.remove(batch)

    def next(self) -> Batch | None:
        """A batch for which jobs may be found."""
        return next((batch for batch in self._batches if batch.may_find and batch.room), None)

    def join(self, claims: Iterable[Claim]) -> list[Claim]:
        """Lets jobs join the batches that they fit; returns the others."""
        return [claim for claim in claims if not any(batch.add(claim) for batch in self._batches)]

    def wake(self) -> None:
        for batch in self._batches:
            batch.may_find = True

    def start_all(self) -> None:
        for batch in self._batches:
            batch.start()

    def paused(self, lane: str, pauses: Sequence[Pause]) -> list[Batch]:
        """Those that may not start, because their kind, their queue or the lane is paused."""
        if not self._batches:
            return []
        names = {(pause.scope, pause.name) for pause in pauses}
        if (PauseScope.LANE, lane) in names or (PauseScope.LANE, EVERY_LANE) in names:
            return list(self._batches)
        return [
            batch
            for batch in self._batches
            if (PauseScope.KIND, batch.first.kind) in names or (PauseScope.QUEUE, batch.first.queue) in names
        ]


async def claim_more(
    store: Store,
    worker_id: UUID,
    lane: str,
    lease: timedelta,
    tenants: Sequence[str],
    first: Claim,
    want: int,
    *,
    across_tenants: bool,
) -> list[Claim]:
    """Claims up to `want` jobs of the first one's kind, of its tenant or of any of `tenants`.

    They come from its queue level and follow it there, so that no claim walks through a queue for one kind.
    """
    kinds = [first.kind]
    if across_tenants:
        levels = [QueueLevel(first.queue, first.priority, first.seq - 1, first.job_id)]
        return await store.claims.claim(ClaimRequest(worker_id, lane, levels, kinds, want, lease, tenants=tenants))
    take = Take(first.tenant, first.queue, first.priority, first.seq, want, first.job_id)
    return await store.shares.claim(ShareRequest(worker_id, lane, [take], kinds, lease))


def _joins(claim: Claim) -> bool:
    return claim.attempt == 1 and not claim.crashes
