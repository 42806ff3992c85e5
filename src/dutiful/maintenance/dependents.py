"""Releases jobs that wait for others as soon as those have ended."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from uuid import UUID

from dutiful.core.errors import DutifulError
from dutiful.delivery.base import QueueLevels
from dutiful.store.dependents import DependentStore

BATCH = 1_000  # jobs that one step decides
ENDED = 500  # jobs whose dependents one step looks for
LONGEST_REST = 0.1


async def release_all(
    dependents: DependentStore, ended: Iterable[UUID], until: float = float("inf")
) -> tuple[QueueLevels, list[UUID]]:
    """Releases what waits for these, and what waits for those that this ends, step by step.

    Returns the queue levels that got jobs, and what was not looked at `until` that moment.
    """
    waiting, levels = deque(ended), frozenset[tuple[str, int]]()
    while waiting and time.monotonic() < until:
        batch = [waiting.popleft() for _ in range(min(ENDED, len(waiting)))]
        step = await dependents.release(batch, BATCH)
        levels |= step.levels
        waiting.extend(step.next)
    return levels, list(waiting)


class Releaser:
    """Of each worker, for the jobs that have ended in it; what it misses, the leader's sweep finds within a second."""

    def __init__(self, dependents: DependentStore) -> None:
        self._dependents = dependents
        self._ended: dict[UUID, None] = {}
        self._wake = asyncio.Event()

    def ended(self, job_ids: Iterable[UUID]) -> None:
        self._ended |= dict.fromkeys(job_ids)
        self._wake.set()

    async def run(self, on_ready: Callable[[QueueLevels], None]) -> None:
        """Releases whenever jobs have ended, until cancelled; calls `on_ready` with the levels that got jobs."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            ended, self._ended = self._ended, {}
            began = time.monotonic()
            with contextlib.suppress(DutifulError):  # the leader's next sweep tries again, and logs what is wrong
                levels, _ = await release_all(self._dependents, ended)
                if levels:
                    on_ready(levels)
            # A flow of very many takes half of a connection's time at most.
            await asyncio.sleep(min((time.monotonic() - began) / 4, LONGEST_REST))
