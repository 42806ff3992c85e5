"""Finds queues with work: receives hints, polls in case one was lost, and wakes the lanes that serve them."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

from dutiful.core.errors import DutifulError
from dutiful.delivery.base import QueueLevels
from dutiful.store.claims import QueueLevel
from dutiful.worker.config import WorkerConfig
from dutiful.worker.lanes.fetcher import MOST_HINTED, FetchCursors
from dutiful.worker.lanes.lane import Lane
from dutiful.worker.lanes.selection import Selection

LONGEST_REST = 0.25  # seconds between two looks that hints have caused
SLOW = 0.02  # seconds; hints do not wait for peeks that take longer


class Poller:
    """A peek walks along the queue levels of all jobs, served or not, of which there may be many thousands.

    So a hint without names is first followed to the levels that had jobs before, while peeks go on at their own pace.
    """

    def __init__(self, config: WorkerConfig, cursors: Mapping[Selection, FetchCursors], lanes: Sequence[Lane]) -> None:
        """`cursors` by what their lanes take."""
        self._config = config
        self._cursors = cursors
        self._lanes = lanes
        self._unnamed = asyncio.Event()  # a hint came without names, or with too many
        self._from_others = False  # of which one may have scheduled a job
        self._asked = asyncio.Event()  # for a peek
        self._peeking = False  # or resting after a peek
        self._took = 0.0  # seconds of the last peek

    async def listen(self) -> None:
        maintenance = self._config.maintenance
        async for levels in self._config.delivery.listen(maintenance):
            if maintenance is not None:
                maintenance.hinted(levels)
            if levels and all(cursors.add_hinted(levels) for cursors in self._cursors.values()):
                self._wake(queue for queue, _ in levels)
            else:
                self._from_others = True
                self._unnamed.set()

    async def look(self) -> None:
        """Follows hints without names, and rests in between; those with names do not wait for that.

        Hints come from any role that may connect: a flood of them takes a fifth of a connection's time at most.
        """
        while True:
            await self._unnamed.wait()
            self._unnamed.clear()
            began = time.monotonic()
            try:
                if self._peeking or self._took > SLOW:
                    await self._peek_near()
                self._asked.set()
                from_others, self._from_others = self._from_others, False
                if from_others and self._config.maintenance is not None:
                    await self._config.maintenance.look_ahead()
            except DutifulError:
                self._from_others = True
                self._unnamed.set()  # for when it is run again
                raise
            await asyncio.sleep(min(4 * (time.monotonic() - began), LONGEST_REST))

    async def poll(self) -> None:
        """Finds jobs whose hint was lost; takes at most a twentieth of a connection's time."""
        while True:
            self._asked.set()
            for cursors in self._cursors.values():
                cursors.forget_idle()
            await asyncio.sleep(max(self._longest(), 20 * self._took))

    async def walk(self) -> None:
        """Peeks when it is asked to; takes at most a fifth of a connection's time."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            self._peeking = True
            try:
                await self.peek()
                await asyncio.sleep(min(4 * self._took, self._longest()))
            except DutifulError:
                self._asked.set()  # for when it is run again
                raise
            finally:
                self._peeking = False

    async def peek(self) -> None:
        asked_at = time.monotonic()
        for selection, cursors in self._cursors.items():
            began = time.monotonic()
            with self._config.outages.watching("poll"):
                found = await self._config.store.claims.peek(selection.kinds)
            self._found(cursors, found, began)
        self._took = time.monotonic() - asked_at

    async def _peek_near(self) -> None:
        for selection, cursors in self._cursors.items():
            with self._config.outages.watching("poll"):
                found = await self._config.store.claims.peek_at(selection.kinds, cursors.near())
            self._found(cursors, found, 0.0)

    def _found(self, cursors: FetchCursors, levels: Sequence[QueueLevel], asked_at: float) -> None:
        cursors.lower(levels, asked_at)
        self._wake(level.queue for level in levels)

    def _longest(self) -> float:
        longest = self._config.settings.poll.total_seconds()
        return longest if self._config.delivery.healthy else min(longest, 1.0)

    def on_jobs_moved(self, levels: QueueLevels, below: Sequence[QueueLevel] | None = None) -> None:
        """Wakes all lanes, because maintenance moved jobs into these queues, which may be many that no lane serves.

        `below`: the first of those that may be below the floors; None: that is not known, so that a peek finds them.
        """
        if below is None or len(below) > MOST_HINTED:
            self._unnamed.set()
            below = ()
        for cursors in self._cursors.values():
            cursors.lower(below, 0.0)
            if not cursors.add_hinted(levels):
                self._asked.set()
        for lane in self._lanes:
            lane.wake()

    def _wake(self, queues: Iterable[str]) -> None:
        names = set(queues)
        for lane in self._lanes:
            if any(lane.serves(name) for name in names):
                lane.wake()
