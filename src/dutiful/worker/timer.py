"""One timer for all slots and buffers of a worker, instead of one each."""

import asyncio
from collections.abc import Callable, Sequence

from dutiful.worker.lane import Lane
from dutiful.worker.presence import Presence
from dutiful.worker.settler import Settler
from dutiful.worker.slots import Slots

TICK = 0.1


class Timer:
    def __init__(
        self, lanes: Sequence[Lane], slots: Slots, settler: Settler, presence: Presence, news: Callable[[], None]
    ) -> None:
        self._lanes = lanes
        self._slots = slots
        self._settler = settler
        self._presence = presence
        self._news = news

    async def run(self) -> None:
        told = 0
        while True:
            await asyncio.sleep(TICK)
            moved = self._settler.count + sum(lane.taken for lane in self._lanes)
            if moved != told:
                told = moved
                self._news()  # one word to watchers for all that happened
            for lane in self._lanes:
                lane.give_back_stale()
            self._presence.look()
            self._slots.tell_overdue()
