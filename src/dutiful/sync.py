"""The one blocking facade: an event loop in a thread of its own, and calls handed to it."""

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar
from uuid import UUID

from dutiful.client import Client, JobHandle
from dutiful.core.duration import Duration
from dutiful.core.job import JobRecord

T = TypeVar("T")
R = TypeVar("R")


class SyncJobHandle(Generic[R]):
    """A job that was enqueued from blocking code."""

    __slots__ = ("_handle", "_portal")

    def __init__(self, handle: JobHandle[R], portal: "Portal") -> None:
        self._handle = handle
        self._portal = portal

    @property
    def id(self) -> UUID:
        return self._handle.id

    @property
    def public_id(self) -> str:
        return self._handle.public_id

    @property
    def created(self) -> bool:
        return self._handle.created

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job is final; JobFailed, JobCancelled or ResultTimeout if there is no result."""
        return self._portal.run(lambda _: self._handle.result(timeout))

    def record(self) -> JobRecord:
        return self._portal.run(lambda _: self._handle.record())

    def cancel(self, reason: str = "cancelled") -> bool:
        return self._portal.run(lambda _: self._handle.cancel(reason))

    def __repr__(self) -> str:
        return repr(self._handle)


class Portal:
    """Runs async work for blocking callers, on a client of its own that it opens when first needed."""

    def __init__(
        self, open_client: Callable[[], Awaitable[Client]], close: Callable[[Client], Awaitable[None]]
    ) -> None:
        self._open_client = open_client
        self._close_client = close
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None
        self._opening: asyncio.Lock | None = None
        self._pid = os.getpid()

    def run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Run `work` on the portal's loop and wait for it; safe from any thread but that loop's own."""
        return asyncio.run_coroutine_threadsafe(self._with_client(work), self._started()).result()

    async def _with_client(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._client is None:
                self._client = await self._open_client()
        return await work(self._client)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._pid != os.getpid():  # forked: the thread is not in this process
                self._loop = self._thread = self._client = self._opening = None
                self._pid = os.getpid()
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="dutiful sync", daemon=True)
                self._thread.start()
                atexit.register(self.close)
            return self._loop

    def close(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            client, self._client, self._opening = self._client, None, None
            thread, self._thread = self._thread, None
        if loop is None or self._pid != os.getpid():
            return
        atexit.unregister(self.close)
        if client is not None:
            asyncio.run_coroutine_threadsafe(_run(self._close_client, client), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        if thread is not None:
            thread.join(5)
        loop.close()


async def _run(close: Callable[[Client], Awaitable[None]], client: Client) -> None:
    await close(client)
