"""Re-checks every gate, so that a lost wake-up costs a second."""

import time

from dutiful.delivery import Lines
from dutiful.duties import Duties, Survey

BATCH = 1_000
ROUNDS = 10


class Gates:
    name = "gates"

    def __init__(self, duties: Duties) -> None:
        self._duties = duties
        self._not_before = 0.0

    async def tick(self, survey: Survey) -> Lines | None:
        lines: set[tuple[str, int]] = set()
        if not survey.blocked:
            return None
        if time.monotonic() < self._not_before:
            # Those who wait for a probe must not wait for that, too.
            return (await self._duties.let_out(BATCH)).lines or None
        began = time.monotonic()
        for _ in range(ROUNDS):
            promotion = await self._duties.sweep(BATCH)
            lines |= promotion.lines
            if promotion.moved < BATCH:
                break
        # Looking for late jobs of a paused kind walks its lines; a long walk is not taken often.
        now = time.monotonic()
        self._not_before = now + (0 if lines else 20 * (now - began))
        return frozenset(lines) or None
