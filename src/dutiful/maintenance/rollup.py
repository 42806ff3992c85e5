"""Rolls up what workers have counted into minutes, hours and totals."""

import time
from datetime import timedelta

from dutiful.delivery.base import QueueLevels
from dutiful.store.leadership import Survey
from dutiful.store.metrics import MetricStore

INTERVAL = 10.0  # about as often as workers store their counts, so that readers find few rows not yet rolled up
KEEP = timedelta(days=7)  # how long hours are kept; totals are kept for good


class Rollup:
    """Readers do not depend on it, because they also read what is not yet rolled up."""

    name = "rollup"

    def __init__(self, store: MetricStore) -> None:
        self._store = store
        self._not_before = 0.0

    async def tick(self, survey: Survey) -> QueueLevels | None:
        if time.monotonic() >= self._not_before:
            while await self._store.roll_up(KEEP):
                pass
            self._not_before = time.monotonic() + INTERVAL
        return None
