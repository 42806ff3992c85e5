"""The contract of a delivery, which passes on hints that there may be new jobs.

A hint may be lost, repeated or late. Workers also poll, so a lost one costs at most one poll interval.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

QueueLevels = frozenset[tuple[str, int]]
"""The (queue, priority) that may have got jobs; empty means any."""

EVERYWHERE: QueueLevels = frozenset()
MOST_LEVELS = 100  # hints that name more mean any


class Delivery(Protocol):
    def hint_in_commit(self, levels: QueueLevels, *, soon: bool = True) -> bool:
        """Whether the commit that is about to store jobs of these levels should carry their hint.

        That saves a round trip. If the commit comes `soon`, it may also carry the hint of earlier ones that is still to
        be sent; so if it fails, the caller sends the hint by itself.
        """

    def hint(self, levels: QueueLevels, *, sent: bool = False, known_to: object = None) -> None:
        """Sends a hint to workers, soon; called after the commit, never blocks, never raises.

        `sent`: the commit carried it, so only listeners of this process are left. `known_to`: the owner of a listener
        that needs no hint.
        """

    def listen(self, owner: object = None) -> AsyncIterator[QueueLevels]:
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


class Hints:
    """The hints that one listener has not read yet, merged: a flood of them takes neither memory nor time."""

    def __init__(self, owner: object = None) -> None:
        self.owner = owner
        self._levels: set[tuple[str, int]] = set()
        self._everywhere = False
        self._arrived = asyncio.Event()

    def put(self, levels: QueueLevels) -> None:
        self._levels |= levels
        if not levels or len(self._levels) > MOST_LEVELS:
            self._everywhere = True
            self._levels.clear()
        self._arrived.set()

    async def next(self) -> QueueLevels:
        """Waits for a hint; returns it together with all that came meanwhile."""
        await self._arrived.wait()
        self._arrived.clear()
        levels = EVERYWHERE if self._everywhere else frozenset(self._levels)
        self._levels, self._everywhere = set(), False
        return levels


class LocalSubscribers:
    """Listeners and watchers within this process."""

    def __init__(self) -> None:
        self.listeners: set[Hints] = set()
        self.watchers: set[asyncio.Event] = set()

    def hint(self, levels: QueueLevels, known_to: object = None) -> None:
        for listener in self.listeners:
            if known_to is None or listener.owner is not known_to:
                listener.put(levels)

    def wake_watchers(self) -> None:
        for watcher in self.watchers:
            watcher.set()
