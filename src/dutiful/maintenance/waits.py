"""Delivers events to the jobs that wait for them, and ends waits whose time is over."""

import time

from dutiful.delivery.base import EVERYWHERE, QueueLevels
from dutiful.store.leadership import Survey
from dutiful.store.steps import StepStore

BATCH = 500
TICK_TIME = 1.0  # seconds, so that other services get their turn


class EventDelivery:
    """A service of the leader; who sends an event delivers it at once, if it may."""

    name = "events"

    def __init__(self, steps: StepStore) -> None:
        self._steps = steps

    async def tick(self, survey: Survey) -> QueueLevels | None:
        if not survey.waits:
            return None
        end = time.monotonic() + TICK_TIME
        woken, full = False, True
        while full and time.monotonic() < end:
            delivered = await self._steps.deliver(BATCH)
            woken, full = woken or bool(delivered.levels), delivered.seen >= BATCH
        return EVERYWHERE if woken else None
