"""Re-checks every gate, so that a lost wake-up costs a second."""

import time
from collections import deque

from dutiful.delivery import EVERYWHERE, Lines
from dutiful.duties import Duties, Survey

BATCH = 1_000
PATIENCE = 1.0  # for one tick, so that other services have their turn
SMALL, SECOND = 3, 1.0  # so many ticks in a second may let out no more than a few


class Gates:
    name = "gates"

    def __init__(self, duties: Duties) -> None:
        self._duties = duties
        self._not_before = 0.0
        self._small: deque[float] = deque(maxlen=SMALL)

    async def tick(self, survey: Survey) -> Lines | None:
        if not survey.blocked:
            return None
        began = now = time.monotonic()
        if len(self._small) == SMALL and began - self._small[0] < SECOND:
            # Those who try a service are let out one by one, and others after them as long as none has called: if no
            # slot is free, that would bring them all back into line, and have all workers look from the start.
            return None
        # Looking for late jobs of a paused kind walks along its lines; a long walk is not taken often. Those who may go
        # must not wait for that, too.
        walks = now >= self._not_before
        look = self._duties.sweep if walks else self._duties.let_out
        let_out, full = False, True
        while full and now < began + PATIENCE:
            asked = now
            promotion = await look(BATCH)
            now = time.monotonic()
            let_out = let_out or bool(promotion.lines)
            full = promotion.moved >= BATCH
            if walks and promotion.moved == 0:
                self._not_before = now + 20 * (now - asked)
        if let_out and not full:
            self._small.append(now)
        # They go back to their places in line, below the floors of workers: only a look from the start finds them.
        return EVERYWHERE if let_out else None
