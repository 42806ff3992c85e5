"""Moves scheduled jobs whose time has come to their lines."""

from dutiful.delivery import Lines
from dutiful.duties import Duties, Survey

BATCH = 1_000
ROUNDS = 20


class Promoter:
    name = "promoter"

    def __init__(self, duties: Duties) -> None:
        self._duties = duties

    async def tick(self, survey: Survey) -> Lines | None:
        lines: set[tuple[str, int]] = set()
        if survey.next_run_at is not None and survey.next_run_at <= survey.now:
            # Bounded, so that a flood of due jobs does not keep the other duties waiting.
            for _ in range(ROUNDS):
                promotion = await self._duties.promote(BATCH)
                lines |= promotion.lines
                if promotion.moved < BATCH:
                    break
        return frozenset(lines) or None
