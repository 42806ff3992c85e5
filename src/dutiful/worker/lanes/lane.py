"""Lanes: each fetches claims ahead into a buffer, and runs them in its slots; the poller wakes them."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from dutiful.core.breaker.state import CallResult
from dutiful.core.errors import DutifulError
from dutiful.core.job import Claim
from dutiful.core.outcome import Failed, Released
from dutiful.core.retry.error_info import describe
from dutiful.core.states import State
from dutiful.declare.lane import ANY, LaneSettings
from dutiful.store.control import Pause
from dutiful.worker.batches import Gathering
from dutiful.worker.config import WorkerConfig
from dutiful.worker.counters import Timing
from dutiful.worker.executor.attempt import Executor
from dutiful.worker.executor.outcomes import (
    Settlement,
    breaker_result,
    outcome_without_handler,
    settlement_without_handler,
)
from dutiful.worker.lanes.batch_runner import BatchRunner
from dutiful.worker.lanes.fetcher import FetchCursors, Fetcher, Suspects
from dutiful.worker.lanes.lending import Lending
from dutiful.worker.lanes.selection import select
from dutiful.worker.lanes.shares import LONG, FairBuffer, FairSource
from dutiful.worker.leases import Leases
from dutiful.worker.settler import Settler
from dutiful.worker.slots import Slot, Slots, StopReason

YIELD_EVERY = 32  # jobs; a no-op job never waits, so a slot lets the loop turn now and then
UNSTARTED_FOR = 1.0
SOON = UNSTARTED_FOR / 4  # a slot that is free within this time can take up a suspect
# Work for at least this long is claimed at a time, because the cost of a claim is spread over what it brings; more of
# short jobs, of which claims are the largest cost. Not of others: a better priority waits for what is claimed already.
WORTH, WORTH_OF_SHORT = 0.02, 0.1
SHORT = 10_000  # jobs a second
SAMPLE = 0.005
LOWERED_BY, LOWERED_WITHIN = 0.1, 0.5  # a share with each sample, and seconds
AHEAD_SIZE = 64 * 2**20  # characters of payloads that are claimed ahead, because what waits should not fill the memory
LEAST_BACKLOG = 100  # outcomes that wait to be stored, beyond which nothing is claimed; twice a batch, if that is more
FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0


class Lane:
    def __init__(
        self,
        config: WorkerConfig,
        settings: LaneSettings,
        cursors: FetchCursors,
        leases: Leases,
        suspects: Suspects,
        executor: Executor,
        settler: Settler,
        slots: Slots,
    ) -> None:
        """Adds its slots to `slots`, which are those of the whole worker."""
        self.name = settings.name
        self.settings = settings
        self.selection = select(config, settings)
        self.slots = slots.add(settings.name, settings.slots)
        self.lending: Lending | None = None  # if a lane of this worker lends
        self._lent: dict[Slot, Lane] = {}  # slots that run a job of another lane
        self._fair = FairBuffer(settings.slots, settings.reserved) if settings.fair else None
        source = None if self._fair is None else FairSource(config, settings, cursors, self._fair)
        self.fetcher = Fetcher(config, settings, cursors, leases, suspects, self.wake, source)
        self._kinds = config.kinds
        # After a crash it is not known whether a job that was claimed ahead had begun.
        self._may_claim_ahead = all(kind.policy.retry_crashes for kind in config.kinds.values())
        self._outages = config.outages
        self._part = f"lane {settings.name} cannot claim"
        self._leases = leases
        self._suspects = suspects
        self._executor = executor
        self._settler = settler
        self._all_slots = slots
        self._lease_seconds = config.settings.lease.total_seconds()
        self._batch = config.settings.batch
        self._backlog = max(2 * self._batch, LEAST_BACKLOG)
        self._buffer: deque[Claim] | FairBuffer = deque() if self._fair is None else self._fair
        self._gathering = Gathering()
        self._idle: deque[asyncio.Future[None]] = deque()  # of slots that wait for a claim
        self._wake = asyncio.Event()
        self._batches = BatchRunner(
            config,
            settings.name,
            self._gathering,
            leases,
            executor,
            settler,
            self._take_buffered,
            self._wake.set,
            self._free,
        )
        self._may_find = True  # whether a fetch may find something
        self._claiming = False
        self._open = True
        self._reconcile = False
        self._low = 0  # with so few in the buffer, it is time to fetch
        self.taken = 0  # by its slots so far
        self._measured = (0, time.monotonic())
        self.rate = 0.0  # jobs taken from the buffer a second, while there are any
        self.round_trip = 0.005
        self._payload_size = 0.0  # of the jobs claimed lately, at a mean; raised at once and lowered slowly

    @property
    def busy(self) -> int:
        return sum(1 for slot in self.slots if slot.claim is not None or slot.batch is not None)

    @property
    def running(self) -> tuple[UUID, ...]:
        """The jobs in its slots."""
        return tuple(claim.job_id for slot in self.slots for claim in slot.claims)

    @property
    def gathering(self) -> tuple[UUID, ...]:
        """The jobs of batches that are not full."""
        return self._gathering.jobs

    @property
    def buffered(self) -> int:
        """How many claims no slot has taken up yet."""
        return len(self._buffer)

    @property
    def idle(self) -> int:
        """How many slots wait for a claim."""
        return len(self._idle)

    @property
    def may_lend(self) -> bool:
        """Whether it has no work of its own, as far as it knows, and one more slot to lend."""
        busy = self._may_find or self._claiming or self._buffer
        return self._open and not busy and len(self._lent) < self.settings.lend

    @property
    def lendable(self) -> int:
        """How many of its idle slots may run jobs of other lanes."""
        return min(len(self._idle), self.settings.lend - len(self._lent)) if self.may_lend else 0

    def serves(self, queue: str) -> bool:
        return ANY in self.settings.queues or queue in self.settings.queues

    def wake(self) -> None:
        """Fetches again, because there may be something to claim."""
        self._may_find = True
        self._gathering.wake()
        self._wake.set()

    def look_again(self) -> None:
        """Claims for slots that have become free, if there may be something to claim."""
        self._wake.set()

    def close(self) -> None:
        """Claims no more, releases what is not started, and lets idle slots end."""
        self._open = False
        self._wake.set()
        while len(self._buffer):
            self._settler.settle(self._buffer.popleft(), Released(began=False))
        self._batches.close()
        while self._idle:
            self.wake_slot()

    def pauses_seen(self, pauses: Sequence[Pause]) -> tuple[str, ...]:
        """Notes what is paused, and releases jobs of batches that may not start now; see the fetcher."""
        self._batches.release_paused(pauses)
        return self.fetcher.pauses_seen(pauses)

    # --- fetching

    async def run_fetcher(self) -> None:
        """Claims as many as slots will free up within a round trip, never more than `batch` at once or ahead."""
        pause = FIRST_RETRY
        while self._open:
            self._measure()
            want, free = self._demand()
            batch = self._gathering.next()
            if batch is None and (not self._may_find or want <= 0):
                self._outages.works(self._part)
                self._wake.clear()
                await self._wake.wait()
                continue
            now = time.monotonic()
            self._claiming = True
            if batch is None:
                self._may_find = False
            else:
                batch.may_find = False
            try:
                if self._reconcile:  # the store may have made claims for us whose answer was lost
                    for held in await self.fetcher.unknown_claims():
                        self._settler.release_unknown(held)
                    self._reconcile = False
                if batch is None:
                    # A suspect goes before all that is buffered, so that a backlog does not keep it waiting.
                    claims = await self.fetcher.fetch(want, free > 0 or self.rate * SOON >= 1)
                else:
                    # With other slots idle, for batches of theirs as well: a claim costs the same whatever it brings.
                    beside = 0 if self._fair is not None else min(free * batch.size, self._batch)
                    want, across = batch.room + beside, batch.across_tenants
                    claims = await self.fetcher.fetch_for(batch.first, want, across_tenants=across)
                pause = FIRST_RETRY
                self._outages.works(self._part)
            except DutifulError as error:
                self._outages.failed(self._part, error)
                self._may_find = self._reconcile = True
                if batch is not None:
                    batch.asked(0)  # it begins with the jobs that it has
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_RETRY)
                continue
            finally:
                self._claiming = False
            if batch is not None:
                self._receive(claims)
                batch.asked(len(claims))
                continue
            self.round_trip = 0.8 * self.round_trip + 0.2 * (time.monotonic() - now)
            if claims:
                self._may_find = True  # a short batch does not mean that there is no more
                self._receive(claims)
                if len(claims) < want:
                    await asyncio.sleep(0)  # idle slots begin their jobs before the next claim is sent
            elif self.lending is not None:
                self.lending.offer(self)

    def _measure(self) -> None:
        """Raises the rate at once and lowers it slowly: pauses between batches are no reason to claim less.

        But where all slots have work, a pause is that of long jobs: the longer it was, the more it counts.
        """
        taken, at = self._measured
        now = time.monotonic()
        if now - at >= SAMPLE:
            rate = (self.taken - taken) / (now - at)
            weight = LOWERED_BY if self._idle else min(max(LOWERED_BY, (now - at) / LOWERED_WITHIN), 1.0)
            self.rate = rate if rate > self.rate else (1 - weight) * self.rate + weight * rate
            self._measured = (self.taken, now)

    def _demand(self) -> tuple[int, int]:
        """How many jobs to claim, and how many slots are idle."""
        free = len(self._idle)
        if self.lending is not None:
            free += self.lending.free_for(self)
        if self._settler.pending > self._backlog:
            return 0, free
        if self._fair is not None:
            want, self._low = self._fair.demand(free, self._soon, self._most_ahead)
            return min(want, self._batch), free
        worth = WORTH + (WORTH_OF_SHORT - WORTH) * min(self.rate / SHORT, 1.0)
        ahead = min(self._most_ahead, int(self.rate * max(self._soon, worth)))
        # A claim costs a round trip whatever it brings: with work in hand, wait until half of it is done.
        self._low = ahead // 2
        want = min(self._batch, free + ahead - len(self._buffer))
        return (want if free or len(self._buffer) <= self._low else 0), free

    @property
    def _soon(self) -> float:
        """Two round trips; of a store that is slow, no more than a claim may wait for a slot."""
        return min(2 * self.round_trip, UNSTARTED_FOR / 2)

    @property
    def _most_ahead(self) -> int:
        return min(self._batch, int(AHEAD_SIZE / max(self._payload_size, 1))) if self._may_claim_ahead else 0

    def _receive(self, claims: list[Claim]) -> None:
        if not self._open:
            for claim in claims:
                self._settler.settle(claim, Released(began=False))
            return
        if claims:
            size = sum([len(claim.payload) for claim in claims]) / len(claims)
            self._payload_size = max(size, 0.9 * self._payload_size + 0.1 * size)
        if self._gathering:
            claims = self._gathering.join(claims)
        for claim in claims:
            if claim.crashes:
                # Lost with its worker, which may be this one: then its first handler still runs here, and has to stop.
                self._all_slots.stop_job(claim.job_id, StopReason.LOST)
                self._buffer.appendleft(claim)
            else:
                self._buffer.append(claim)
        if self.lending is not None:
            self.lending.hand_over(self)
        for _ in range(min(len(self._idle), len(self._buffer))):
            self.wake_slot()

    def wake_slot(self) -> None:
        while self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def release_unstarted(self) -> None:
        """Releases claims that could not be started soon, so that another worker can run them.

        By the one that has waited longest: others that come, or are started now and then, are no reason to keep it.
        """
        if self._waited_too_long():
            self.rate = 0.0  # or the same jobs would be claimed ahead again
            if self._fair is not None:
                # So long that of all its slots none ends soon.
                self._fair.usual_run = max(self._fair.usual_run, LONG, 2 * len(self.slots) * self._soon)
            while len(self._buffer):
                self._settle(self._buffer.popleft(), Released(began=False))

    def _waited_too_long(self) -> bool:
        now = time.monotonic()
        for claim in self._buffer.firsts() if isinstance(self._buffer, FairBuffer) else self._buffer:
            since = self._leases.valid_since(claim.claim_id, now, self._lease_seconds)
            if since is None or now - since > UNSTARTED_FOR:
                return True
            if not claim.crashes:  # those behind it came later; suspects go before what came first
                return False
        return False

    # --- running

    async def run_slot(self, slot: Slot) -> None:
        task = asyncio.current_task()
        assert task is not None
        slot.task = task
        count = 0
        while True:
            lane = self if self._buffer else self._borrower()
            if lane is None:
                if not self._open:
                    return
                await self._wait_for_claim(slot)
                continue
            claim = lane._buffer.popleft()
            lane.taken += 1
            if len(lane._buffer) <= lane._low:
                lane._wake.set()
            if lane is not self:
                self._lent[slot] = lane
            kind = self._kinds[claim.kind]
            if kind.batch is not None:
                goes_on = await lane._batches.run(claim, kind, kind.batch, slot)
                self._lent.pop(slot, None)
                if not goes_on:
                    return
                continue
            claimed_at = self._leases.valid_since(claim.claim_id, time.monotonic(), self._lease_seconds)
            if claimed_at is None:
                # After a stall longer than its lease, the job may already run in another process.
                lane._settle(claim, Released(began=False))
                self._lent.pop(slot, None)
                continue
            try:
                outcome = await self._executor.run(claim, kind, slot)
            except Exception as error:
                # A bug of Dutiful ends this worker. The attempt counts, so that this job cannot crash every worker.
                if not slot.abandoned:
                    lane._settle(claim, Failed(describe(error), type(error)), slot.timing(claimed_at))
                raise
            if slot.abandoned:
                self._settler.settle_late(claim, outcome)
                return
            if lane is not self:
                del self._lent[slot]
            lane._settle(claim, outcome, slot.timing(claimed_at))
            if slot.closing:
                return  # asked to while the last progress was stored, which must not cost the outcome
            count += 1
            if count % YIELD_EVERY == 0 or task.cancelling():
                with slot.absorb_cancellation():
                    await asyncio.sleep(0)

    def _take_buffered(self, joins: Callable[[Claim], bool]) -> None:
        """Removes the claims that join a batch."""
        if isinstance(self._buffer, FairBuffer):
            self._buffer.take(joins)
        else:
            kept = [claim for claim in self._buffer if not joins(claim)]
            self._buffer.clear()
            self._buffer.extend(kept)

    def _borrower(self) -> "Lane | None":
        """Another lane, whose claim a slot runs if its own has none: so what is lent is back within a job."""
        return None if self.lending is None or not self._open else self.lending.borrower(self)

    def give_up(self, slot: Slot) -> tuple[CallResult | None, Slot]:
        """Settles the job of a handler that does not stop, and puts another slot in the place of its own.

        Returns what the breaker of its kind is to know, and the new slot.
        """
        claim = slot.claim
        assert claim is not None
        slot.abandoned = True
        outcome = outcome_without_handler(slot)
        settlement = settlement_without_handler(slot, outcome)
        lane = self._lent.pop(slot, self)
        timing = Timing(0.0, slot.elapsed.total_seconds())
        for other in slot.claims:
            self._settler.settle(other, settlement, timing)
        lane._free(claim, timing)
        fresh = self._all_slots.replace(slot)
        self.slots[self.slots.index(slot)] = fresh
        return None if isinstance(settlement, State) else breaker_result(outcome, slot.stop), fresh

    def _settle(self, claim: Claim, outcome: Settlement, timing: Timing | None = None) -> None:
        if claim.crashes or self._fair is not None:
            self._free(claim, timing)
        self._settler.settle(claim, outcome, timing)

    def _free(self, claim: Claim, timing: Timing | None) -> None:
        """Lets others have the place of a claim that a slot or the buffer had."""
        if claim.crashes:
            # Not before its outcome is stored: if the next one kills the worker, a crash would be counted for this one.
            self._leases.on_drop(claim.claim_id, partial(self._release_suspect, claim))
        if self._fair is not None:
            self._fair.ended(claim, None if timing is None else timing.ran)

    def _release_suspect(self, claim: Claim) -> None:
        self._suspects.release(claim)
        self.wake()  # there may be more of them

    async def _wait_for_claim(self, slot: Slot) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        if self._fair is not None and self.fetcher.more:
            self._may_find = True
        self._wake.set()
        if self.lending is not None:
            self.lending.offer(self)
        try:
            with slot.absorb_cancellation():
                await waiter
        finally:
            if not waiter.done():
                waiter.cancel()
