"""Hints within one process, and a look at a counter for what other processes did."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from dutiful.core.errors import DutifulError
from dutiful.delivery import EVERYWHERE, Lines

log = logging.getLogger("dutiful.delivery")


class InProcess:
    """Listeners of this process hear at once; `version`, if given, is watched for the writes of others."""

    healthy = True

    def __init__(self, version: Callable[[], Awaitable[int]] | None = None, every: float = 0.03) -> None:
        self._version = version
        self._every = every
        self._listeners: set[asyncio.Queue[Lines]] = set()
        self._watchers: set[asyncio.Event] = set()

    def rides(self) -> bool:
        return False

    def hint(self, lines: Lines, *, sent: bool = False) -> None:
        for listener in self._listeners:
            listener.put_nowait(lines)

    async def listen(self) -> AsyncIterator[Lines]:
        heard: asyncio.Queue[Lines] = asyncio.Queue()
        self._listeners.add(heard)
        counting = self._counting(lambda: heard.put_nowait(EVERYWHERE))
        try:
            while True:
                lines = await heard.get()
                while not heard.empty():
                    more = heard.get_nowait()
                    lines = lines | more if lines and more else EVERYWHERE
                yield lines
        finally:
            self._listeners.discard(heard)
            if counting:
                counting.cancel()

    def news(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    async def watch(self) -> AsyncIterator[None]:
        heard = asyncio.Event()
        self._watchers.add(heard)
        counting = self._counting(heard.set)
        try:
            while True:
                await heard.wait()
                heard.clear()
                yield
        finally:
            self._watchers.discard(heard)
            if counting:
                counting.cancel()

    def watched(self, by_others: bool) -> None:
        """Nothing to do: watchers of other processes see the counter move."""

    def _counting(self, tell: Callable[[], None]) -> "asyncio.Task[None] | None":
        return asyncio.create_task(self._count(self._version, tell)) if self._version else None

    async def _count(self, version: Callable[[], Awaitable[int]], tell: Callable[[], None]) -> None:
        seen: int | None = None  # so that the first look tells, too: nobody listened before it
        while True:
            try:
                now = await version()
                if now != seen:
                    seen = now
                    tell()
            except DutifulError as error:  # a hint may be late: the counter is still there when it can be read again
                log.debug("counter not read: %s", error)
            await asyncio.sleep(self._every)

    async def close(self) -> None:
        self._listeners.clear()
        self._watchers.clear()
