"""A small connection pool; the driver's own starts a task for every release, which slows down short statements."""

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

Connect = Callable[[], Coroutine[Any, Any, Any]]


class Pool:
    """Up to `size` connections; lends the one used last, and closes idle ones after a while, all but `keep`."""

    def __init__(self, connect: Connect, *, size: int, idle: float, keep: int = 1) -> None:
        self._connect = connect
        self._size = size
        self._idle_limit = idle
        self._keep = keep
        self._loop = asyncio.get_running_loop()
        self._idle: deque[tuple[Any, float]] = deque()  # each with the time since when it is idle
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._busy: set[Any] = set()
        self._opening = 0
        self._closed = False
        self._shrinking: asyncio.TimerHandle | None = None

    def acquire(self) -> "_Loan":
        """Lends a connection, as in `async with pool.acquire() as connection:`."""
        return _Loan(self)

    async def _take(self) -> Any:
        while True:
            while self._idle:
                connection, _ = self._idle.pop()
                if not connection.is_closed():
                    self._busy.add(connection)
                    return connection
            if len(self._busy) + self._opening < self._size:
                return await self._open()
            connection = await self._wait()
            if connection is not None:
                return connection

    async def _open(self) -> Any:
        self._opening += 1
        try:
            # In an empty context, because the connection is also used by others, and keeps the one it was made in.
            connection = await asyncio.create_task(self._connect(), context=Context())
        except BaseException:
            self._opening -= 1
            self._wake(None)  # another connection may be opened
            raise
        self._opening -= 1
        self._busy.add(connection)
        return connection

    async def _wait(self) -> Any:
        """Waits for a released connection; None if the caller may open a new one."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # both at once: the next waiter gets it
                if future.result() is None:
                    self._wake(None)
                else:
                    self._give_back(future.result())
            raise

    def _give_back(self, connection: Any) -> None:
        usable = not connection.is_closed() and not connection.is_in_transaction() and not self._closed
        if not usable:
            connection.terminate()
            self._busy.discard(connection)
            self._wake(None)
        elif not self._wake(connection):
            self._busy.discard(connection)
            self._idle.append((connection, time.monotonic()))
            self._shrink_later()

    def _wake(self, connection: Any) -> bool:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(connection)
                return True
        return False

    def _shrink_later(self) -> None:
        if self._shrinking is None and len(self._idle) > self._keep:
            due = self._idle[0][1] + self._idle_limit - time.monotonic()
            self._shrinking = asyncio.get_running_loop().call_later(max(due, 0.01), self._shrink)

    def _shrink(self) -> None:
        self._shrinking = None
        limit = time.monotonic() - self._idle_limit
        while len(self._idle) > self._keep and self._idle[0][1] <= limit:
            self._idle.popleft()[0].terminate()
        self._shrink_later()

    async def close(self, patience: float) -> None:
        """Waits for connections in use, then closes all."""
        self._closed = True
        if self._shrinking is not None:
            self._shrinking.cancel()
        if self._loop.is_closed():
            for connection in [*self._busy, *(connection for connection, _ in self._idle)]:
                _hang_up(connection)
            return
        until = time.monotonic() + patience
        while self._busy and time.monotonic() < until:  # noqa: ASYNC110 (once in a life, and bounded)
            await asyncio.sleep(0.01)
        for connection in [*self._busy, *(connection for connection, _ in self._idle)]:
            with contextlib.suppress(Exception):  # it is not used again in any case
                await asyncio.wait_for(connection.close(), 1)
        self._idle.clear()


class _Loan:
    """A class, because a generator's context manager takes three times as long, for each statement."""

    __slots__ = ("_connection", "_pool")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def __aenter__(self) -> Any:
        self._connection = await self._pool._take()
        return self._connection

    async def __aexit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        # After a cancelled or timed-out statement its reply may still be on the way.
        if isinstance(error, (asyncio.CancelledError, TimeoutError)):
            self._connection.terminate()
        self._pool._give_back(self._connection)


def _hang_up(connection: Any) -> None:
    """Closes the socket, because the driver's own way needs the connection's loop, which is closed."""
    with contextlib.suppress(Exception):
        connection._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
