"""A lane: its slots, and the loop that keeps them fed."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from dutiful.acting import Pause
from dutiful.core.error_info import describe
from dutiful.core.errors import DutifulError
from dutiful.core.job import Claim
from dutiful.core.outcome import Failed, Outcome, Released
from dutiful.kind import Kind
from dutiful.settings import LaneSettings
from dutiful.store import Store
from dutiful.worker.attempt import Attempts
from dutiful.worker.lease import Leases
from dutiful.worker.lines import Lines
from dutiful.worker.settler import Settler
from dutiful.worker.slot import Slot
from dutiful.worker.tallies import Tallies
from dutiful.working import Ask

log = logging.getLogger("dutiful.worker")
# A no-op job never waits, so a slot lets the loop turn now and then.
TURN = 32
STALE = 1.0
# Work for at least this long is claimed at a time, for a claim's own cost is spread over what it brings.
WORTH = 0.02
SAMPLE = 0.005
LEAST_BACKLOG = 100  # outcomes that wait to be stored, beyond which nothing is claimed; twice a batch, if that is more
FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0


class Suspects:
    """The job in this process that was there at a worker's death: one at a time, lest two condemn each other."""

    def __init__(self) -> None:
        self._taken = False  # one is being claimed, or is here
        self._job_id: UUID | None = None
        self._denied: set[Lane] = set()

    def seek(self, lane: "Lane") -> bool:
        """Whether this lane may claim one now; if not, it is woken when another may."""
        if self._taken:
            self._denied.add(lane)
            return False
        self._taken = True
        return True

    def found(self, claims: Sequence[Claim]) -> None:
        """What came of it."""
        self._job_id = next((claim.job_id for claim in claims if claim.crashes), None)
        if self._job_id is None:
            self._free()

    def forget(self, claim: Claim) -> None:
        if claim.job_id == self._job_id:
            self._free()

    def _free(self) -> None:
        self._taken, self._job_id = False, None
        denied, self._denied = self._denied, set()
        for lane in denied:
            lane.wake()


class Lane:
    def __init__(
        self,
        settings: LaneSettings,
        worker_id: UUID,
        store: Store,
        kinds: Mapping[str, Kind[Any, Any]],
        lines: Lines,
        attempts: Attempts,
        settler: Settler,
        leases: Leases,
        suspects: Suspects,
        lost: Callable[[UUID], None],
        *,
        lease: timedelta,
        batch: int,
        tenants: Sequence[str] = (),
        tallies: Tallies | None = None,
    ) -> None:
        self.name = settings.name
        self.settings = settings
        self.slots = [Slot(settings.name) for _ in range(settings.slots)]
        self._worker_id = worker_id
        self._store = store
        self._kinds = kinds
        self._names = list(kinds)
        self._lines = lines
        self._attempts = attempts
        self._settler = settler
        self._leases = leases
        self._suspects = suspects
        self._lost = lost
        self._lease = lease
        self._lease_seconds = lease.total_seconds()
        self._batch = batch
        self._backlog = max(2 * batch, LEAST_BACKLOG)
        self._tenants = tenants
        self._tallies = tallies
        self._buffer: deque[Claim] = deque()
        self._buffered_at = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._wake = asyncio.Event()
        self._look = True  # whether a claim may find something
        self._open = True
        self._reconcile = False
        self._asking = False
        self._asked = 0  # claims so far, the one under way included
        self._seen: dict[str, int] = {}  # by the marks of pauses: how many claims may have been asked before it
        self._low = 0  # with so few in the buffer, it is time to claim
        self._taken = 0
        self._looks = self._found_busy = 0  # since somebody last asked how full it is
        self._measured = (0, time.monotonic())
        self.pace = 0.0  # jobs taken from the buffer a second, while there are any
        self.round_trip = 0.005

    @property
    def busy(self) -> int:
        return sum(1 for slot in self.slots if slot.claim is not None)

    def look(self) -> None:
        """See how many slots are busy; what is full now and then is not full all the time."""
        self._looks += 1
        self._found_busy += self.busy

    def utilisation(self) -> float:
        """The share of its slots that were busy, on average since this was last asked."""
        self.look()
        share = self._found_busy / (self._looks * len(self.slots))
        self._looks = self._found_busy = 0
        return round(share, 4)

    @property
    def running(self) -> list[str]:
        """The jobs in its slots, for whoever waits until it is empty."""
        return [str(slot.claim.job_id) for slot in self.slots if slot.claim is not None]

    @property
    def ahead(self) -> int:
        """How many it has claimed that no slot has taken up yet."""
        return len(self._buffer)

    def hear(self, pauses: Sequence[Pause]) -> list[str]:
        """Tell it what is paused; returns the marks of those that no claim still under way can have missed."""
        self._seen = {pause.mark: self._seen.get(pause.mark, self._asked) for pause in pauses}
        return [mark for mark, asked in self._seen.items() if asked < self._asked or not self._asking]

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

    def close(self) -> list[Claim]:
        """Claim no more; returns what was claimed ahead and is not started."""
        self._open = False
        self._wake.set()
        rest = list(self._buffer)
        self._buffer.clear()
        return rest

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
                claims = await self._claim(want, free)
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

    async def _claim(self, want: int, free: int) -> list[Claim]:
        lines = self._lines.serve(self.settings.queues)
        if not lines:
            return []
        seeks = free > 0 and self._suspects.seek(self)
        ask = Ask(self._worker_id, self.name, lines, self._names, want, self._lease, int(seeks), self._tenants)
        claims: list[Claim] = []
        try:
            self._asking = True
            self._asked += 1
            with self._leases.claiming():
                claims = await self._store.claim(ask)
                self._leases.add(claims)
        finally:
            self._asking = False
            if seeks:
                self._suspects.found(claims)
        if claims:
            self._lines.claimed(claims)
        return claims

    def _receive(self, claims: list[Claim]) -> None:
        if not self._open:
            for claim in claims:
                self._settler.settle(claim, Released())
            return
        for claim in claims:
            if claim.crashes:
                # Lost with its worker, which may be this one: nobody else would tell the handler that still runs.
                self._lost(claim.job_id)
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
        held = await self._store.held_by(self._worker_id)
        await self._leases.answered()  # what another lane is claiming just now is about to be known
        for lapsed in held:
            if self._leases.claim(lapsed.claim_id) is None:
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
            if not self._leases.good(claim.claim_id, time.monotonic(), self._lease_seconds):
                # Stopped or starved past its lease, this process would run what another one already runs.
                self._hand_over(claim, Released())
                continue
            try:
                outcome = await self._attempts.run(claim, self._kinds[claim.kind], slot)
            except Exception as error:
                # A fault of ours, and the end of this worker; this job was there, so it may not go unspent.
                if not slot.abandoned:
                    self._hand_over(claim, Failed(describe(error), type(error)))
                raise
            if slot.abandoned:
                return
            if self._tallies is not None:
                self._tallies.ended(claim, time.monotonic() - slot.started)
            self._hand_over(claim, outcome)
            if slot.closing:
                return  # told so while its last word was stored, which must not cost the outcome
            count += 1
            if count % TURN == 0 or task.cancelling():
                with slot.unmoved():
                    await asyncio.sleep(0)

    def _hand_over(self, claim: Claim, outcome: Outcome | None) -> None:
        if claim.crashes:
            self._forget_suspect(claim)
        if outcome is None:
            self._leases.drop([claim.claim_id])
            if self._tallies is not None:
                self._tallies.completed([claim])  # by its handler's own transaction
        else:
            self._settler.settle(claim, outcome)

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

    def release_slots(self) -> None:
        """Let idle slots see that the lane is closed."""
        while self._waiting:
            self._wake_slot()
