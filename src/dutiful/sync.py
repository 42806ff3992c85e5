"""The one blocking facade: an event loop in a thread of its own, and calls handed to it."""

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar
from uuid import UUID

from dutiful.client import Client, JobHandle
from dutiful.core.duration import Duration
from dutiful.core.errors import StoreUnavailable
from dutiful.core.job import JobRecord
from dutiful.errand import Errand

log = logging.getLogger("dutiful.client")

T = TypeVar("T")
R = TypeVar("R")
LAST_WORDS = 10.0  # how long closing may wait for what is under way
CLOSED = "the app was closed while this call was under way; it may or may not have been stored"


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
        self._room: _Room | None = None
        self._pid = os.getpid()

    def run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Run `work` on the portal's loop and wait for it; safe from any thread but that loop's own."""
        with self._lock:  # also while it is handed over: a room that is being closed takes nothing more
            errand = self._entered().call(work)
        try:
            return errand.wait()
        except concurrent.futures.CancelledError:
            raise StoreUnavailable(CLOSED) from None

    def _entered(self) -> "_Room":
        if self._pid != os.getpid():  # forked: the thread is not in this process
            self._room, self._pid = None, os.getpid()
        if self._room is None:
            self._room = _Room(self._open_client, self._close_client)
            atexit.register(self.close)
        return self._room

    def close(self) -> None:
        with self._lock:
            room, self._room = self._room, None
        if room is not None and self._pid == os.getpid():
            atexit.unregister(self.close)
            room.close()


class _Room:
    """An event loop in its thread, and the client that was opened on it."""

    def __init__(
        self, open_client: Callable[[], Awaitable[Client]], close: Callable[[Client], Awaitable[None]]
    ) -> None:
        self._open_client = open_client
        self._close_client = close
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._calls: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="dutiful sync", daemon=True)
        self._thread.start()

    def _live(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()  # tells whoever still waits

    def call(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> Errand[T]:
        return Errand(self._loop, lambda: self._call(work))

    async def _call(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            async with self._opening:
                if self._closed:
                    raise StoreUnavailable(CLOSED)
                if self._client is None:
                    self._client = await self._open_client()
            return await work(self._client)
        finally:
            self._calls.discard(task)

    def close(self) -> None:
        """Let what is under way come to an end, give up what does not, and leave nobody waiting."""
        try:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(LAST_WORDS + 5)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(LAST_WORDS), self._opening:
                self._closed = True
                if self._client is not None:
                    await self._close_client(self._client)
            if self._calls:
                await asyncio.wait(self._calls, timeout=1)
        except TimeoutError:
            log.warning("closing was given up after %g s: the database does not answer", LAST_WORDS)
        finally:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
