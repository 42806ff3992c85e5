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

    def rides(self) -> bool:
        return False

    def hint(self, lines: Lines, *, sent: bool = False) -> None:
        for listener in self._listeners:
            listener.put_nowait(lines)

    async def listen(self) -> AsyncIterator[Lines]:
        heard: asyncio.Queue[Lines] = asyncio.Queue()
        self._listeners.add(heard)
        watching = asyncio.create_task(self._watch(heard)) if self._version else None
        try:
            while True:
                lines = await heard.get()
                while not heard.empty():
                    more = heard.get_nowait()
                    lines = lines | more if lines and more else EVERYWHERE
                yield lines
        finally:
            self._listeners.discard(heard)
            if watching:
                watching.cancel()

    async def _watch(self, heard: "asyncio.Queue[Lines]") -> None:
        assert self._version is not None
        seen: int | None = None  # so that the first look says everywhere: nobody listened before it
        while True:
            try:
                now = await self._version()
                if now != seen:
                    seen = now
                    heard.put_nowait(EVERYWHERE)
            except DutifulError as error:  # a hint may be late: the counter is still there when it can be read again
                log.debug("counter not read: %s", error)
            await asyncio.sleep(self._every)

    async def close(self) -> None:
        self._listeners.clear()
