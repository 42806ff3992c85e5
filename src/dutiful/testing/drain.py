"""Runs due jobs one after the other, as a worker would."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.errors import UsageError
from dutiful.core.job import Claim, JobRecord
from dutiful.core.outcome import Done, Outcome
from dutiful.core.states import State
from dutiful.kind import Kind
from dutiful.maintenance.scheduler import Scheduler
from dutiful.settings import Settings
from dutiful.store import Store
from dutiful.store.claims import ClaimRequest, JobClaimRequest, QueueLevel
from dutiful.store.leadership import Survey
from dutiful.testing.clock import Clock
from dutiful.worker.batches import Batch, claim_more
from dutiful.worker.executor.attempt import Executor
from dutiful.worker.executor.outcomes import Settlement, UserCompletion
from dutiful.worker.leases import Leases
from dutiful.worker.settler import Settler
from dutiful.worker.slots import Slot, StopReason

WORKER = UUID(int=0)
BATCH = 1_000
TIMEOUT_CHECK = 0.02


class RanAttempt(msgspec.Struct, frozen=True):
    """One attempt: its outcome, and the job right after it."""

    job: JobRecord
    outcome: Outcome

    @property
    def kind(self) -> str:
        return self.job.kind

    @property
    def state(self) -> State:
        return self.job.state


class DrainRunner:
    """Runs one job at a time, by priority, then in the order in which they became ready; without jitter."""

    def __init__(
        self,
        store: Store,
        kinds: Mapping[str, Kind[Any, Any]],
        settings: Settings,
        executor: Executor,
        scheduler: Scheduler,
        clock: Clock | None,
    ) -> None:
        self._store = store
        self._kinds = kinds
        self._settings = settings
        self._executor = executor
        self._scheduler = scheduler
        self._clock = clock
        self._settler = Settler(store.claims, kinds, Leases(), lambda low, high: low)

    async def run(self, until: datetime | None, advance: bool, limit: int) -> list[RanAttempt]:
        ran: list[RanAttempt] = []
        async with self._settling():
            while True:
                while claims := await self._claim():
                    await self._attempt_all(claims, ran, limit)
                if not await self._move_clock(until, advance):
                    return ran

    async def run_delivered(self, next_jobs: Callable[[], Awaitable[list[UUID]]], limit: int) -> list[RanAttempt]:
        """Runs what `next_jobs` returns, until it returns nothing that can be claimed."""
        ran: list[RanAttempt] = []
        async with self._settling():
            while True:
                await self._promote()
                before = len(ran)
                for job_id in await next_jobs():
                    request = JobClaimRequest(
                        WORKER, "drain", [job_id], list(self._kinds), self._settings.lease, suspects=1
                    )
                    await self._attempt_all(await self._store.claims.claim_jobs(request), ran, limit)
                if len(ran) == before:
                    return ran

    @asynccontextmanager
    async def _settling(self) -> AsyncIterator[None]:
        settling = asyncio.create_task(self._settler.run(), name="dutiful drain")
        try:
            yield
        finally:
            settling.cancel()
            await asyncio.gather(settling, return_exceptions=True)

    async def _attempt_all(self, claims: list[Claim], ran: list[RanAttempt], limit: int) -> None:
        for claim in claims:
            if self._kinds[claim.kind].batch is None:
                ran.append(await self._attempt(claim))
            else:
                ran += await self._attempt_batch(claim)
        if len(ran) > limit:
            raise UsageError(
                f"more than {limit} attempts were made and jobs are still due; if none of them enqueues or "
                "snoozes itself for ever, give drain a higher limit"
            )

    async def _claim(self) -> list[Claim]:
        """Claims the next job; suspects, too."""
        await self._promote()
        found = await self._store.claims.peek(list(self._kinds))
        levels = [QueueLevel(one.queue, one.priority) for one in sorted(found, key=lambda one: (one.priority, one.seq))]
        if not levels:
            return []
        return await self._store.claims.claim(
            ClaimRequest(WORKER, "drain", levels, list(self._kinds), limit=1, lease=self._settings.lease, suspects=1)
        )

    async def _promote(self) -> None:
        if self._clock is not None:
            now = self._clock.now()
            await self._scheduler.tick(Survey(True, now, next_fire_at=await self._next_fire()))
        await self._store.promotion.promote(BATCH)
        await self._store.promotion.sweep(BATCH)

    async def _attempt(self, claim: Claim) -> RanAttempt:
        kind, slot = self._kinds[claim.kind], Slot("drain")
        slot.task = asyncio.current_task()
        with _timeouts(slot, kind):
            outcome = await self._executor.run(claim, kind, slot)
        return await self._settle(claim, outcome)

    async def _attempt_batch(self, first: Claim) -> list[RanAttempt]:
        """Runs the job with others of its batch that are due; those that run alone follow."""
        kind, slot = self._kinds[first.kind], Slot("drain")
        assert kind.batch is not None
        slot.task = asyncio.current_task()
        batch = slot.batch = Batch(first, kind.batch, slot, self._settler.settle, 0.0)
        alone: list[Claim] = []
        claim = partial(claim_more, self._store, WORKER, "drain", self._settings.lease, (), first)
        while batch.room and (found := await claim(batch.room, across_tenants=batch.across_tenants)):
            alone += [one for one in found if not batch.add(one)]
        with _timeouts(slot, kind):
            outcomes = await self._executor.run_batch(batch, kind, slot)
        batch.close()
        ran = [await self._settle(one, outcomes[one.claim_id]) for one in batch.claims]
        for one in alone:
            ran += await self._attempt_batch(one)
        return ran

    async def _settle(self, claim: Claim, outcome: Settlement) -> RanAttempt:
        self._settler.settle(claim, outcome)
        await self._settler.flush()
        job = await self._store.queries.job(claim.job_id)
        assert job is not None, "a job that just ran cannot be gone"
        if isinstance(outcome, UserCompletion):
            outcome = outcome.state if job.state.final else outcome.otherwise
        return RanAttempt(job, Done() if isinstance(outcome, State) else outcome)

    async def _move_clock(self, until: datetime | None, advance: bool) -> bool:
        """Moves to the next time at which something is due; False if that is too far, or nothing is due."""
        if self._clock is None or (until is None and not advance):
            return False
        times = [(await self._store.promotion.promote(BATCH)).next_run_at]
        times += [one.breaker.open_until for one in await self._store.breakers.all() if one.waiting]
        if until is not None:
            times.append(await self._next_fire())
        now = self._clock.now()
        soonest = min((moment for moment in times if moment is not None and moment > now), default=None)
        if soonest is None or (until is not None and soonest > until):
            if until is not None:
                self._clock.move_to(until)
            return False
        self._clock.move_to(soonest)
        return True

    async def _next_fire(self) -> datetime | None:
        return min((s.next_at for s in await self._store.schedules.all() if s.enabled), default=None)


@contextmanager
def _timeouts(slot: Slot, kind: Kind[Any, Any]) -> Iterator[None]:
    """Enforces the timeouts of the attempt and of its phases."""
    if kind.timeout is None and not any(phase.timeout for phase in kind.phases):
        yield
        return
    watching = asyncio.create_task(_watch(slot))
    try:
        yield
    finally:
        watching.cancel()


async def _watch(slot: Slot) -> None:
    while True:
        await asyncio.sleep(TIMEOUT_CHECK)
        if slot.deadline is not None and time.monotonic() >= slot.deadline and slot.stop is None:
            slot.request_stop(StopReason.TIMEOUT)
