"""Makes waiting jobs ready: scheduled ones that are due, blocked ones whose gate is open."""

import time
from collections import deque

from dutiful.delivery.base import EVERYWHERE, QueueLevels
from dutiful.maintenance.dependents import release_all
from dutiful.store import Store
from dutiful.store.leadership import Survey

BATCH = 1_000
ROUNDS = 20
TICK_TIME = 1.0  # seconds, so that other services get their turn
SMALL_RELEASES, PER_SECONDS = 3, 1.0  # so many ticks in so many seconds may release less than a full batch


async def promote_due(store: Store, seconds: float) -> bool:
    """Makes all jobs ready that have become due, for so many seconds at most; whether there were any."""
    end, found = time.monotonic() + seconds, False
    while True:
        promotion = await store.promotion.promote(BATCH)
        found = found or promotion.moved > 0
        if promotion.moved < BATCH or time.monotonic() >= end:
            return found


class Promoter:
    """Makes scheduled jobs ready when their time has come."""

    name = "promoter"

    def __init__(self, store: Store) -> None:
        self._store = store

    async def tick(self, survey: Survey) -> QueueLevels | None:
        levels: set[tuple[str, int]] = set()
        if survey.next_run_at is not None and survey.next_run_at <= survey.now:
            # Bounded, so that a flood of due jobs does not delay the other services.
            for _ in range(ROUNDS):
                promotion = await self._store.promotion.promote(BATCH)
                levels |= promotion.levels
                if promotion.moved < BATCH:
                    break
        return frozenset(levels) or None


class Gates:
    """Blocks ready jobs of paused kinds and unblocks jobs whose gate is open, once a second."""

    name = "gates"

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sweep_not_before = 0.0
        self._small: deque[float] = deque(maxlen=SMALL_RELEASES)

    async def tick(self, survey: Survey) -> QueueLevels | None:
        if not survey.blocked:
            return None
        began = now = time.monotonic()
        if len(self._small) == SMALL_RELEASES and began - self._small[0] < PER_SECONDS:
            # A probe whose turn is over is followed by another. While no slot is free, that would make all jobs ready
            # one by one, and each release makes workers claim from the start of their queues.
            return None
        # A sweep for late jobs of a paused kind walks along its queues. A long one is not repeated soon, but jobs that
        # may run must not wait for it.
        sweeping = now >= self._sweep_not_before
        release = self._store.promotion.sweep if sweeping else self._store.promotion.unblock
        released, full = False, True
        while full and now < began + TICK_TIME:
            asked = now
            promotion = await release(BATCH)
            levels = promotion.levels
            if promotion.next:
                levels |= (await release_all(self._store.dependents, promotion.next, began + TICK_TIME))[0]
            now = time.monotonic()
            released = released or bool(levels)
            full = promotion.moved >= BATCH
            if sweeping and promotion.moved == 0:
                self._sweep_not_before = now + 20 * (now - asked)
        if released and not full:
            self._small.append(now)
        # They return to their old positions, below the floors of workers: only a claim from the start finds them.
        return EVERYWHERE if released else None
