"""The blocking facade: runs async calls on an event loop in its own thread."""

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from dutiful.client.client import Client, JobHandle
from dutiful.concurrency.loop_call import LoopCall
from dutiful.core.duration import Duration
from dutiful.core.errors import StoreUnavailable
from dutiful.core.job import JobRecord

log = logging.getLogger("dutiful.client")

T = TypeVar("T")
R = TypeVar("R")
CLOSE_TIMEOUT = 10.0  # seconds that closing waits for running calls
CLOSED = "the app was closed while this call was under way; it may or may not have been stored"


class SyncJobHandle(Generic[R]):
    """A job that was enqueued from blocking code."""

    __slots__ = ("_handle", "_portal", "created", "id")

    def __init__(self, handle: JobHandle[R], portal: "Portal") -> None:
        self.id = handle.id
        self.created = handle.created
        self._handle = handle
        self._portal = portal

    @property
    def public_id(self) -> str:
        return self._handle.public_id

    def result(self, timeout: Duration | None = None) -> R:
        """Waits until the job is final; raises JobFailed, JobCancelled or ResultTimeout if there is no result."""
        return self._portal.run(lambda _: self._handle.result(timeout))

    def record(self) -> JobRecord:
        return self._portal.run(lambda _: self._handle.record())

    def cancel(self, reason: str = "cancelled") -> bool:
        return self._portal.run(lambda _: self._handle.cancel(reason))

    def __repr__(self) -> str:
        return repr(self._handle)


class Portal:
    """Runs async work for blocking callers, with its own client, which it opens when first needed."""

    def __init__(
        self, open_client: Callable[[], Awaitable[Client]], close: Callable[[Client], Awaitable[None]]
    ) -> None:
        self._open_client = open_client
        self._close_client = close
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None
        self._pid = os.getpid()

    def run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Runs `work` on the portal's loop and waits for it; safe from any thread but that loop's own."""
        with self._lock:  # so that no call starts on a thread that is being closed
            call = self._started().call(work)
        try:
            return call.wait()
        except concurrent.futures.CancelledError:
            raise StoreUnavailable(CLOSED) from None

    def _started(self) -> "_LoopThread":
        if self._pid != os.getpid():  # forked: the thread is not in this process
            self._thread, self._pid = None, os.getpid()
        if self._thread is None:
            self._thread = _LoopThread(self._open_client, self._close_client)
            atexit.register(self.close)
        return self._thread

    def close(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            atexit.unregister(self.close)
            thread.close()


class _LoopThread:
    """An event loop in its own thread, and the client that is opened on it."""

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
        self._thread = threading.Thread(target=self._run, name="dutiful sync", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()  # ends the calls that still wait

    def call(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> LoopCall[T]:
        return LoopCall(self._loop, lambda: self._call(work))

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
        """Waits for running calls, cancels those that do not end, and leaves no caller waiting."""
        try:
            asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(CLOSE_TIMEOUT + 5)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)

    async def _shut_down(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT), self._opening:
                self._closed = True
                if self._client is not None:
                    await self._close_client(self._client)
            if self._calls:
                await asyncio.wait(self._calls, timeout=1)
        except TimeoutError:
            log.warning("closing timed out after %g s, because the database does not answer", CLOSE_TIMEOUT)
        finally:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
