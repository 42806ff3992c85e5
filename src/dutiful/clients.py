"""One open client for each event loop: what a client waits for, only its own loop can bring."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

from dutiful.client import Client
from dutiful.core.errors import DutifulError

log = logging.getLogger("dutiful.client")


class _Place:
    """Where the client of one loop is, and the lock under which it is opened."""

    __slots__ = ("client", "opening")

    def __init__(self) -> None:
        self.client: Client | None = None
        self.opening = asyncio.Lock()


class Clients:
    def __init__(
        self, open_client: Callable[[], Awaitable[Client]], close_client: Callable[[Client], Awaitable[None]]
    ) -> None:
        self._open_client = open_client
        self._close_client = close_client
        self._lock = threading.Lock()
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, _Place] = WeakKeyDictionary()

    @property
    def open(self) -> bool:
        """Whether any loop that may still run has one."""
        with self._lock:
            return any(place.client is not None and not loop.is_closed() for loop, place in self._places.items())

    async def current(self) -> Client:
        """That of the running loop; opened when first asked for."""
        loop = asyncio.get_running_loop()
        place = self._places.get(loop)
        if place is not None and place.client is not None:
            return place.client
        with self._lock:
            place = self._places.setdefault(loop, _Place())
            left = [self._places.pop(other).client for other in list(self._places) if other.is_closed()]
        for client in left:
            await _bury(client)
        async with place.opening:
            if place.client is None:
                place.client = await self._open_client()
            return place.client

    async def close(self) -> None:
        """Close that of the running loop, if there is one."""
        with self._lock:
            place = self._places.get(asyncio.get_running_loop())
        if place is not None and place.client is not None:
            client, place.client = place.client, None
            await self._close_client(client)


async def _bury(client: Client | None) -> None:
    """What waited for a loop that is closed was cancelled with it; its store's threads and files were not."""
    try:
        if client is not None:
            await client.store.close()
    except DutifulError as error:
        log.warning("what a closed event loop had left open could not be closed: %s", error)
