"""One open client for each event loop, because its connections and futures belong to that loop."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from dutiful.client.client import Client
from dutiful.core.errors import DutifulError

log = logging.getLogger("dutiful.client")


@dataclass(slots=True)
class _LoopClient:
    """The client of one loop, the lock under which it is opened and closed, and the number of its holders."""

    client: Client | None = None
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    holders: int = 0


class Clients:
    """Opens the client of a loop when it is first needed; a holder keeps it open until it releases it."""

    def __init__(
        self, open_client: Callable[[], Awaitable[Client]], close_client: Callable[[Client], Awaitable[None]]
    ) -> None:
        self._open_client = open_client
        self._close_client = close_client
        self._lock = threading.Lock()
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClient] = WeakKeyDictionary()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> bool:
        """Whether any loop that is not closed has an open client."""
        with self._lock:
            return any(entry.client is not None and not loop.is_closed() for loop, entry in self._by_loop.items())

    async def current(self) -> Client:
        """The client of the running loop; opened when first needed."""
        entry = self._by_loop.get(asyncio.get_running_loop())
        if entry is not None and entry.client is not None:
            return entry.client
        entry = self._entry()
        for client in self._of_closed_loops():
            await _close_store(client)
        # Shielded, so that a caller that is cancelled leaves no half-open store. In an empty context, because what is
        # opened stays open for other callers than the handler that happens to come first.
        return await asyncio.shield(asyncio.create_task(self._open(entry), context=Context()))

    async def hold(self) -> Client:
        """Like current(), but keeps the client open until release()."""
        entry = self._entry()
        entry.holders += 1
        try:
            return await self.current()
        except BaseException:
            entry.holders -= 1
            # Not awaited, because opening may take long, and the caller was cancelled.
            self._start(self._close_unused(entry))
            raise

    async def release(self) -> None:
        """Closes the client of the running loop, if it has no other holder."""
        entry = self._entry()
        entry.holders -= 1
        await self._finish(entry)

    async def close(self) -> None:
        """Closes the client of the running loop, if there is one; if it has holders, the last of them closes it."""
        with self._lock:
            entry = self._by_loop.get(asyncio.get_running_loop())
        if entry is not None:
            await self._finish(entry)

    def _entry(self) -> _LoopClient:
        with self._lock:
            return self._by_loop.setdefault(asyncio.get_running_loop(), _LoopClient())

    def _of_closed_loops(self) -> list[Client | None]:
        with self._lock:
            return [self._by_loop.pop(other).client for other in list(self._by_loop) if other.is_closed()]

    async def _open(self, entry: _LoopClient) -> Client:
        async with entry.opening:
            if entry.client is None:
                entry.client = await self._open_client()
            return entry.client

    async def _finish(self, entry: _LoopClient) -> None:
        await asyncio.shield(self._start(self._close_unused(entry)))

    async def _close_unused(self, entry: _LoopClient) -> None:
        async with entry.opening:
            if entry.holders or entry.client is None:
                return
            client, entry.client = entry.client, None
        await self._close_client(client)

    def _start(self, closing: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(closing)
        self._closing.add(task)  # the loop keeps only a weak reference
        task.add_done_callback(self._closing.discard)
        return task


async def _close_store(client: Client | None) -> None:
    """Closes the threads and files of a closed loop's store; its tasks ended with the loop."""
    try:
        if client is not None:
            await client.store.close()
    except DutifulError as error:
        log.warning("the store of a closed event loop could not be closed: %s", error)
