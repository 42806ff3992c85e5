"""Hints within one process; for changes by other processes, a counter of the store is polled."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from dutiful.core.errors import DutifulError
from dutiful.delivery.base import EVERYWHERE, Hints, LocalSubscribers, QueueLevels

log = logging.getLogger("dutiful.delivery")


class InProcessDelivery:
    """Hints reach listeners of this process at once; `version`, if given, changes with the writes of others."""

    healthy = True

    def __init__(self, version: Callable[[], Awaitable[int]] | None = None, every: float = 0.03) -> None:
        self._version = version
        self._every = every
        self._local = LocalSubscribers()

    def hint_in_commit(self) -> bool:
        return False

    def hint(self, levels: QueueLevels, *, sent: bool = False) -> None:
        self._local.hint(levels)

    async def listen(self) -> AsyncIterator[QueueLevels]:
        hints = Hints()
        self._local.listeners.add(hints)
        polling = self._poll_version(lambda: hints.put(EVERYWHERE))
        try:
            while True:
                yield await hints.next()
        finally:
            self._local.listeners.discard(hints)
            if polling:
                polling.cancel()

    def notify_watchers(self) -> None:
        self._local.wake_watchers()

    async def watch(self) -> AsyncIterator[None]:
        changed = asyncio.Event()
        self._local.watchers.add(changed)
        polling = self._poll_version(changed.set)
        try:
            while True:
                await changed.wait()
                changed.clear()
                yield
        finally:
            self._local.watchers.discard(changed)
            if polling:
                polling.cancel()

    def set_remote_watchers(self, present: bool) -> None:
        """Does nothing: watchers of other processes see the counter change."""

    def _poll_version(self, notify: Callable[[], None]) -> "asyncio.Task[None] | None":
        return asyncio.create_task(self._poll(self._version, notify)) if self._version else None

    async def _poll(self, version: Callable[[], Awaitable[int]], notify: Callable[[], None]) -> None:
        seen: int | None = None  # so that the first poll notifies, too: there was no listener before it
        while True:
            try:
                now = await version()
                if now != seen:
                    seen = now
                    notify()
            except DutifulError as error:  # a hint may be late: the change is seen when the counter can be read again
                log.debug("counter not read: %s", error)
            await asyncio.sleep(self._every)

    async def close(self) -> None:
        self._local.listeners.clear()
        self._local.watchers.clear()
