"""Work for a thread that owns a connection, and how its results come back."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from dutiful.core.errors import StoreUnavailable
from dutiful.stores.sqlite.driver import Connection

T = TypeVar("T")


class Reply(Generic[T]):
    """Where a result goes: to an asyncio future, or to a thread that waits."""

    __slots__ = ("_done", "error", "future", "loop", "value")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop
        self.future: asyncio.Future[T] | None = loop.create_future() if loop else None
        self._done = None if loop else threading.Event()
        self.value: T | None = None
        self.error: BaseException | None = None

    def wait(self) -> T:
        assert self._done is not None
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]

    def deliver(self) -> None:
        """Make the outcome known; in the loop's thread if it is for a future."""
        if self._done is not None:
            self._done.set()
        elif self.future is not None and not self.future.done():
            if self.error is not None:
                self.future.set_exception(self.error)
            else:
                self.future.set_result(self.value)  # type: ignore[arg-type]


class Command(Generic[T]):
    """Something to do with the connection; `transaction` says whether it needs one."""

    __slots__ = ("reply", "transaction", "work")

    def __init__(self, work: Callable[[Connection], T], reply: Reply[T], transaction: bool = True) -> None:
        self.work = work
        self.reply = reply
        self.transaction = transaction


class Inbox:
    """Commands that wait for the thread, urgent ones first; it takes none once it is closed."""

    def __init__(self) -> None:
        self._urgent: deque[Command[Any]] = deque()
        self._normal: deque[Command[Any]] = deque()
        # One token for each command; the last one wakes the thread after the inbox was closed.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed: str | None = None

    def put(self, command: Command[Any], *, urgent: bool = False) -> None:
        with self._lock:
            if self._closed is not None:
                raise StoreUnavailable(self._closed)
            (self._urgent if urgent else self._normal).append(command)
            self._bell.put(None)

    def get(self) -> Command[Any] | None:
        """The next command, when there is one; None once the inbox is closed and empty."""
        self._bell.get()
        return self._next()

    def get_nowait(self) -> Command[Any] | None:
        try:
            self._bell.get_nowait()
        except Empty:
            return None
        command = self._next()
        if command is None:
            self._bell.put(None)  # The closing token is for get().
        return command

    def close(self, reason: str) -> None:
        with self._lock:
            if self._closed is None:
                self._closed = reason
                self._bell.put(None)

    def abandon(self, reason: str) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        self._closed = reason

    def _next(self) -> Command[Any] | None:
        if self._urgent:
            return self._urgent.popleft()
        return self._normal.popleft() if self._normal else None


def deliver(replies: Iterable[Reply[Any]]) -> None:
    """Hand out many results with one wake-up for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Reply[Any]]] = {}
    for reply in replies:
        if reply.loop is None:
            reply.deliver()
        else:
            by_loop.setdefault(reply.loop, []).append(reply)
    for loop, waiting in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver_all, waiting)
        except RuntimeError:
            continue  # The loop is closed: nobody is left to be told.


def _deliver_all(replies: list[Reply[Any]]) -> None:
    for reply in replies:
        reply.deliver()
