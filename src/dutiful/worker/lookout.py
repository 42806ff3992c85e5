"""Looks out for work: hears hints, polls in case one was lost, and wakes the lanes that may take it."""

import asyncio
import time
from collections.abc import Sequence

from dutiful.delivery import Lines as Hinted
from dutiful.worker.lane import Lane
from dutiful.worker.lines import Lines
from dutiful.worker.plan import Plan


class Lookout:
    def __init__(self, plan: Plan, lines: Lines, lanes: Sequence[Lane]) -> None:
        self._store = plan.store
        self._delivery = plan.delivery
        self._names = list(plan.kinds)
        self._longest = plan.settings.poll.total_seconds()
        self._lines = lines
        self._lanes = lanes

    async def hear(self) -> None:
        async for lines in self._delivery.listen():
            if lines:
                self._lines.note(lines)
                self._wake({queue for queue, _ in lines})
            else:
                await self.peek()

    async def poll(self) -> None:
        """The net under the hints; costs at most a twentieth of a connection's time."""
        while True:
            began = time.monotonic()
            await self.peek()
            self._lines.forget_idle()
            longest = self._longest if self._delivery.healthy else min(self._longest, 1.0)
            await asyncio.sleep(max(longest, 20 * (time.monotonic() - began)))

    async def peek(self) -> None:
        found = await self._store.peek(self._names)
        self._lines.found(found)
        self._wake({line.queue for line in found})

    def moved(self, lines: Hinted) -> None:
        """A service moved jobs into these lines."""
        self._lines.note(lines)
        for lane in self._lanes:
            lane.wake()

    def _wake(self, queues: set[str]) -> None:
        for lane in self._lanes:
            if any(lane.serves(queue) for queue in queues):
                lane.wake()
