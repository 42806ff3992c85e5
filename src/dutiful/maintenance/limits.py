"""Admits jobs of limited kinds as soon as there are slots for them."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from dutiful.core.errors import DutifulError
from dutiful.delivery.base import EVERYWHERE, QueueLevels
from dutiful.store.claims import QueueLevel
from dutiful.store.leadership import Survey
from dutiful.store.limits import LimitStore

BATCH = 1_000
TICK_TIME = 1.0  # seconds, so that other services get their turn
LOOK_EVERYWHERE = 1.0  # seconds between two looks at every gate
SOONEST = 0.005
TRY_AGAIN = timedelta(seconds=1)
LONGEST_REST = 0.1


class Admitter:
    """A service of the leader, which looks at every gate now and then; any worker admits when a job of its own ends."""

    name = "limits"

    def __init__(self, limits: LimitStore) -> None:
        self._limits = limits
        self._everywhere_not_before = 0.0
        self._wake = asyncio.Event()
        self._ended: set[UUID] | None = set()  # jobs whose slots to look at next; None: all
        self._timer: asyncio.TimerHandle | None = None

    async def tick(self, survey: Survey) -> QueueLevels | None:
        promoted = survey.next_run_at is not None and survey.next_run_at <= survey.now
        if not survey.limited or not (survey.blocked or promoted):
            return None
        began = time.monotonic()
        everywhere = began >= self._everywhere_not_before
        moved = await self._admit(everywhere)
        if everywhere:
            # A look at very many gates is not repeated soon.
            self._everywhere_not_before = began + max(LOOK_EVERYWHERE, 20 * (time.monotonic() - began))
        return EVERYWHERE if moved else None

    def wake(self, ended: Iterable[UUID] = ()) -> None:
        """These jobs may have freed their slots, or a job may wait for one."""
        if self._ended is not None:
            self._ended.update(ended)
        self._wake.set()

    async def run(self, on_ready: Callable[[Sequence[QueueLevel]], None]) -> None:
        """Admits whenever it is woken, until cancelled; calls `on_ready` with the first jobs that became ready."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            began = time.monotonic()
            ended, self._ended = self._ended, set()
            try:
                if moved := await self._admit(ended=ended):
                    on_ready(moved)
            except DutifulError:  # the leader's tick logs what is wrong
                self._ended = None
                self._wake_after(TRY_AGAIN)
            # Hints come from any role that may connect: a flood of them takes half of a connection's time at most.
            await asyncio.sleep(min(time.monotonic() - began, LONGEST_REST))

    async def _admit(self, everywhere: bool = False, ended: Collection[UUID] | None = None) -> list[QueueLevel]:
        """Returns the levels in which jobs became ready, each with the first of them."""
        end = time.monotonic() + TICK_TIME
        moved: list[QueueLevel] = []
        full = True
        while full and time.monotonic() < end:
            admission = await self._limits.admit(BATCH, everywhere=everywhere, ended=ended)
            moved += admission.levels
            full = admission.seen >= BATCH
            self._wake_after(admission.wait)
        if full:
            self._wake.set()
        return moved

    def _wake_after(self, wait: timedelta | None) -> None:
        """Wakes when the next start ceases to count."""
        if self._timer is not None:
            self._timer.cancel()
        if wait is not None:
            seconds = max(wait.total_seconds(), SOONEST)
            self._timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
