"""A lane: its slots, and the loop that keeps them fed."""

import asyncio
import logging
import time
from collections import deque

from dutiful.core.error_info import describe
from dutiful.core.errors import DutifulError
from dutiful.core.job import Claim
from dutiful.core.outcome import Failed, Outcome, Released
from dutiful.core.transitions import State
from dutiful.settings import LaneSettings
from dutiful.worker.attempt import Attempts
from dutiful.worker.claimer import Claimer
from dutiful.worker.lease import Leases
from dutiful.worker.lines import Lines
from dutiful.worker.pile import Span
from dutiful.worker.plan import Plan
from dutiful.worker.settler import Settler
from dutiful.worker.slot import Slot, Stop
from dutiful.worker.slots import Slots
from dutiful.worker.suspects import Suspects

log = logging.getLogger("dutiful.worker")
# A no-op job never waits, so a slot lets the loop turn now and then.
TURN = 32
STALE = 1.0
# Work for at least this long is claimed at a time, for a claim's own cost is spread over what it brings.
WORTH = 0.02
SAMPLE = 0.005
LEAST_BACKLOG = 100  # outcomes that wait to be stored, beyond which nothing is claimed; twice a batch, if that is more
FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0


class Lane:
    def __init__(
        self,
        plan: Plan,
        settings: LaneSettings,
        lines: Lines,
        leases: Leases,
        suspects: Suspects,
        attempts: Attempts,
        settler: Settler,
        slots: Slots,
    ) -> None:
        """`slots` are those of the whole worker, which this lane adds its own to."""
        self.name = settings.name
        self.settings = settings
        self.slots = slots.make(settings.name, settings.slots)
        self.claimer = Claimer(plan, settings, lines, leases, suspects, self.wake)
        self._kinds = plan.kinds
        self._leases = leases
        self._suspects = suspects
        self._attempts = attempts
        self._settler = settler
        self._all_slots = slots
        self._lease_seconds = plan.settings.lease.total_seconds()
        self._batch = plan.settings.batch
        self._backlog = max(2 * self._batch, LEAST_BACKLOG)
        self._buffer: deque[Claim] = deque()
        self._buffered_at = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._wake = asyncio.Event()
        self._look = True  # whether a claim may find something
        self._open = True
        self._reconcile = False
        self._low = 0  # with so few in the buffer, it is time to claim
        self._taken = 0
        self._measured = (0, time.monotonic())
        self.pace = 0.0  # jobs taken from the buffer a second, while there are any
        self.round_trip = 0.005

    @property
    def busy(self) -> int:
        return sum(1 for slot in self.slots if slot.claim is not None)

    @property
    def running(self) -> list[str]:
        """The jobs in its slots, for whoever waits until it is empty."""
        return [str(slot.claim.job_id) for slot in self.slots if slot.claim is not None]

    @property
    def ahead(self) -> int:
        """How many it has claimed that no slot has taken up yet."""
        return len(self._buffer)

    @property
    def taken(self) -> int:
        """How many jobs its slots have taken up so far."""
        return self._taken

    def serves(self, queue: str) -> bool:
        return "*" in self.settings.queues or queue in self.settings.queues

    def wake(self) -> None:
        """There may be something to claim."""
        self._look = True
        self._wake.set()

    def close(self) -> None:
        """Claim no more, give back what is not started, and let idle slots see it."""
        self._open = False
        self._wake.set()
        while self._buffer:
            self._settler.settle(self._buffer.popleft(), Released())
        while self._waiting:
            self._wake_slot()

    # --- feeding

    async def feed(self) -> None:
        """Claim as many as slots will free up within a round trip, never more than `batch` at once or ahead."""
        pause = FIRST_RETRY
        while self._open:
            self._measure()
            want, free = self._wanted()
            if not self._look or want <= 0:
                self._wake.clear()
                await self._wake.wait()
                continue
            now = time.monotonic()
            self._look = False
            try:
                if self._reconcile:
                    await self._give_back_unknown()
                claims = await self.claimer.claim(want, free)
                pause = FIRST_RETRY
            except DutifulError as error:
                log.warning("lane %s could not claim: %s", self.name, error)
                self._look = self._reconcile = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_RETRY)
                continue
            self.round_trip = 0.8 * self.round_trip + 0.2 * (time.monotonic() - now)
            if claims:
                self._look = True  # a short batch does not mean that there is no more
                self._receive(claims)

    def _measure(self) -> None:
        """Up at once and down slowly: the pauses between batches are no reason to claim less."""
        taken, at = self._measured
        now = time.monotonic()
        if now - at >= SAMPLE:
            pace = (self._taken - taken) / (now - at)
            self.pace = pace if pace > self.pace else 0.9 * self.pace + 0.1 * pace
            self._measured = (self._taken, now)

    def _wanted(self) -> tuple[int, int]:
        """How many jobs to ask for, and how many slots stand idle."""
        free = len(self._waiting)
        if self._settler.pending > self._backlog:
            return 0, free
        ahead = min(self._batch, int(self.pace * max(2 * self.round_trip, WORTH)))
        # A claim costs a round trip whatever it brings: with work in hand, wait until half of it is done.
        self._low = ahead // 2
        want = min(self._batch, free + ahead - len(self._buffer))
        return (want if free or len(self._buffer) <= self._low else 0), free

    def _receive(self, claims: list[Claim]) -> None:
        if not self._open:
            for claim in claims:
                self._settler.settle(claim, Released())
            return
        for claim in claims:
            if claim.crashes:
                # Lost with its worker, which may be this one: nobody else would tell the handler that still runs.
                self._all_slots.tell(claim.job_id, Stop.LOST)
                self._buffer.appendleft(claim)
            else:
                self._buffer.append(claim)
        self._buffered_at = time.monotonic()
        for _ in range(min(len(self._waiting), len(self._buffer))):
            self._wake_slot()

    def _wake_slot(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def give_back_stale(self) -> None:
        """What was claimed ahead and could not be started soon is better off with somebody else."""
        if self._buffer and time.monotonic() - self._buffered_at > STALE:
            self.pace = 0.0
            while self._buffer:
                self._hand_over(self._buffer.popleft(), Released())

    async def _give_back_unknown(self) -> None:
        """A claim whose answer was lost holds jobs that nobody here knows of."""
        for lapsed in await self.claimer.unknown():
            self._settler.give_back(lapsed)
        self._reconcile = False

    # --- running

    async def run_slot(self, slot: Slot) -> None:
        task = asyncio.current_task()
        assert task is not None
        slot.task = task
        count = 0
        while True:
            if not self._buffer:
                if not self._open:
                    return
                await self._wait_for_claim(slot)
                continue
            claim = self._buffer.popleft()
            self._taken += 1
            if len(self._buffer) <= self._low:
                self._wake.set()
            claimed = self._leases.good_since(claim.claim_id, time.monotonic(), self._lease_seconds)
            if claimed is None:
                # Stopped or starved past its lease, this process would run what another one already runs.
                self._hand_over(claim, Released())
                continue
            try:
                outcome = await self._attempts.run(claim, self._kinds[claim.kind], slot)
            except Exception as error:
                # A fault of ours, and the end of this worker; this job was there, so it may not go unspent.
                if not slot.abandoned:
                    self._hand_over(claim, Failed(describe(error), type(error)), slot.span(claimed))
                raise
            if slot.abandoned:
                return
            self._hand_over(claim, outcome, slot.span(claimed))
            if slot.closing:
                return  # told so while its last word was stored, which must not cost the outcome
            count += 1
            if count % TURN == 0 or task.cancelling():
                with slot.unmoved():
                    await asyncio.sleep(0)

    def _hand_over(self, claim: Claim, outcome: Outcome | State, span: Span | None = None) -> None:
        if claim.crashes:
            self._forget_suspect(claim)
        self._settler.settle(claim, outcome, span)

    def _forget_suspect(self, claim: Claim) -> None:
        self._suspects.forget(claim)
        self.wake()  # there may be more of them

    async def _wait_for_claim(self, slot: Slot) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._wake.set()
        try:
            with slot.unmoved():
                await waiter
        finally:
            if not waiter.done():
                waiter.cancel()
