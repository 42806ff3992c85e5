"""Hints within one process, and to and from those that use the same file."""

import asyncio
from collections.abc import AsyncIterator
from contextvars import Context

from dutiful.delivery.base import EVERYWHERE, Hints, LocalSubscribers, QueueLevels
from dutiful.delivery.file_changes import FileChanges


class InProcessDelivery:
    """Hints reach listeners of this process at once, and other processes through `changes`, if they are given."""

    healthy = True

    def __init__(self, changes: FileChanges | None = None) -> None:
        self._changes = changes
        self._following: asyncio.Task[None] | None = None
        self._local = LocalSubscribers()

    def hint_in_commit(self, levels: QueueLevels, *, soon: bool = True) -> bool:
        return False

    def hint(self, levels: QueueLevels, *, sent: bool = False, known_to: object = None) -> None:
        self._local.hint(levels, known_to)
        if self._changes is not None:
            self._changes.signal()

    async def listen(self, owner: object = None) -> AsyncIterator[QueueLevels]:
        hints = Hints(owner)
        if self._following is not None:
            hints.put(EVERYWHERE)  # earlier hints did not reach this listener
        self._local.listeners.add(hints)
        self._follow()
        try:
            while True:
                yield await hints.next()
        finally:
            self._local.listeners.discard(hints)
            self._stop_following()

    def notify_watchers(self) -> None:
        self._local.wake_watchers()

    async def watch(self) -> AsyncIterator[None]:
        changed = asyncio.Event()
        if self._following is not None:
            changed.set()
        self._local.watchers.add(changed)
        self._follow()
        try:
            while True:
                await changed.wait()
                changed.clear()
                yield
        finally:
            self._local.watchers.discard(changed)
            self._stop_following()

    def set_remote_watchers(self, present: bool) -> None:
        """Does nothing: watchers of other processes see the file change."""

    def _follow(self) -> None:
        if self._changes is not None and self._following is None:
            following = self._changes.follow(self._on_change)
            self._following = asyncio.create_task(following, name="dutiful file changes", context=Context())

    def _stop_following(self) -> None:
        if self._following is not None and not self._local.listeners and not self._local.watchers:
            self._following.cancel()
            self._following = None

    def _on_change(self) -> None:
        self._local.hint(EVERYWHERE)
        self._local.wake_watchers()

    async def close(self) -> None:
        self._local.listeners.clear()
        self._local.watchers.clear()
        self._stop_following()
        if self._changes is not None:
            self._changes.close()
