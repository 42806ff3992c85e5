"""One open client for each event loop: what a client waits for, only its own loop can bring."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from typing import Any
from weakref import WeakKeyDictionary

from dutiful.client import Client
from dutiful.core.errors import DutifulError

log = logging.getLogger("dutiful.client")


class _Place:
    """Where the client of one loop is, the lock under which it is opened, and how many rely on its staying open."""

    __slots__ = ("client", "opening", "users")

    def __init__(self) -> None:
        self.client: Client | None = None
        self.opening = asyncio.Lock()
        self.users = 0


class Clients:
    """Whoever holds the client has it open until they release it; whoever only asks for it, until it is closed."""

    def __init__(
        self, open_client: Callable[[], Awaitable[Client]], close_client: Callable[[Client], Awaitable[None]]
    ) -> None:
        self._open_client = open_client
        self._close_client = close_client
        self._lock = threading.Lock()
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, _Place] = WeakKeyDictionary()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> bool:
        """Whether any loop that may still run has one."""
        with self._lock:
            return any(place.client is not None and not loop.is_closed() for loop, place in self._places.items())

    async def current(self) -> Client:
        """That of the running loop; opened when first asked for."""
        place = self._places.get(asyncio.get_running_loop())
        if place is not None and place.client is not None:
            return place.client
        place = self._place()
        for client in self._left_behind():
            await _bury(client)
        # Whoever gives up waiting must not leave a store that is half open: it is opened all the same, and kept.
        # In no context: what it opens stays open for others, too, than the handler who happens to come first.
        return await asyncio.shield(asyncio.create_task(self._open(place), context=Context()))

    async def hold(self) -> Client:
        """As current(), and it stays open until release()."""
        place = self._place()
        place.users += 1
        try:
            return await self.current()
        except BaseException:
            place.users -= 1
            # Not waited for: to open may take long, and whoever has given up wants to go.
            self._soon(self._close_unused(place))
            raise

    async def release(self) -> None:
        """Close that of the running loop, if nobody else holds it."""
        place = self._place()
        place.users -= 1
        await self._finish(place)

    async def close(self) -> None:
        """Close that of the running loop, if there is one; or leave that to the last one who holds it."""
        with self._lock:
            place = self._places.get(asyncio.get_running_loop())
        if place is not None:
            await self._finish(place)

    def _place(self) -> _Place:
        with self._lock:
            return self._places.setdefault(asyncio.get_running_loop(), _Place())

    def _left_behind(self) -> list[Client | None]:
        """The clients of loops that are no more."""
        with self._lock:
            return [self._places.pop(other).client for other in list(self._places) if other.is_closed()]

    async def _open(self, place: _Place) -> Client:
        async with place.opening:
            if place.client is None:
                place.client = await self._open_client()
            return place.client

    async def _finish(self, place: _Place) -> None:
        await asyncio.shield(self._soon(self._close_unused(place)))

    async def _close_unused(self, place: _Place) -> None:
        async with place.opening:
            if place.users or place.client is None:
                return
            client, place.client = place.client, None
        await self._close_client(client)

    def _soon(self, closing: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(closing)
        self._closing.add(task)  # the loop alone would not keep it alive
        task.add_done_callback(self._closing.discard)
        return task


async def _bury(client: Client | None) -> None:
    """What waited for a loop that is closed was cancelled with it; its store's threads and files were not."""
    try:
        if client is not None:
            await client.store.close()
    except DutifulError as error:
        log.warning("what a closed event loop had left open could not be closed: %s", error)
