"""The contract of a delivery, which passes on hints that there may be new jobs.

A hint may be lost, repeated or late. Workers also poll, so a lost one costs at most one poll interval.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

QueueLevels = frozenset[tuple[str, int]]
"""The (queue, priority) that may have got jobs; empty means any."""

EVERYWHERE: QueueLevels = frozenset()


class Delivery(Protocol):
    def hint_in_commit(self) -> bool:
        """Whether the next commit should carry its hint, which saves a round trip if none was sent lately."""

    def hint(self, levels: QueueLevels, *, sent: bool = False) -> None:
        """Sends a hint to workers, soon; called after the commit, never blocks, never raises.

        `sent`: the commit carried it, so only listeners of this process are left.
        """

    def listen(self) -> AsyncIterator[QueueLevels]:
        """Yields hints until the iterator is closed; `EVERYWHERE` after a gap such as a reconnect."""

    def notify_watchers(self) -> None:
        """Notifies watchers, soon, that jobs have changed; costs nothing without watchers. Never raises."""

    def watch(self) -> AsyncIterator[None]:
        """Yields when jobs may have changed, in any process, until the iterator is closed."""

    def set_remote_watchers(self, present: bool) -> None:
        """Sets whether there are watchers in other processes; called with each heartbeat."""

    @property
    def healthy(self) -> bool:
        """Whether hints can be expected now; if not, workers poll more often."""

    async def close(self) -> None: ...


class LocalSubscribers:
    """Listeners and watchers within this process."""

    def __init__(self) -> None:
        self.listeners: set[asyncio.Queue[QueueLevels]] = set()
        self.watchers: set[asyncio.Event] = set()

    def hint(self, levels: QueueLevels) -> None:
        for listener in self.listeners:
            listener.put_nowait(levels)

    def wake_watchers(self) -> None:
        for watcher in self.watchers:
            watcher.set()


async def next_hint(hints: asyncio.Queue[QueueLevels]) -> QueueLevels:
    """Waits for a hint, and merges it with those that have come meanwhile."""
    levels = await hints.get()
    while not hints.empty():
        more = hints.get_nowait()
        levels = levels | more if levels and more else EVERYWHERE
    return levels
