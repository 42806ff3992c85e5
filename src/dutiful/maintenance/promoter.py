"""Makes scheduled jobs ready when their time has come."""

from dutiful.delivery.base import QueueLevels
from dutiful.store import Store
from dutiful.store.leadership import Survey

BATCH = 1_000
ROUNDS = 20


class Promoter:
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
