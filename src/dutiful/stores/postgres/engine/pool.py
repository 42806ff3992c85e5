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
    """Up to `size` connections; closes those that are idle for a while, all but `keep`.

    A statement runs where it has been prepared and planned, if that connection is idle, because a claim takes ten times
    as long elsewhere. Of several, or if there is none, the one with most plans is lent: so one connection gets to know
    all statements. One that is lent for its plan, though that one is idle, is not needed and still counts as idle;
    otherwise statements that are repeated would keep it open for ever.
    """

    def __init__(self, connect: Connect, *, size: int, idle: float, keep: int = 1) -> None:
        self._connect = connect
        self._size = size
        self._idle_limit = idle
        self._keep = keep
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Any, float] = {}  # each with the time since when it is not needed
        self._unneeded: dict[Any, float] = {}  # the same of those that are lent only for their plans
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._busy: set[Any] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._plans: dict[Any, set[str]] = {}  # the statements that each connection has run
        self._closed = False
        self._shrinking: asyncio.TimerHandle | None = None

    def acquire(self, statement: str = "") -> "_Loan":
        """Lends a connection, for this statement, as in `async with pool.acquire() as connection:`."""
        return _Loan(self, statement)

    async def _take(self, statement: str) -> Any:
        while True:
            connection = self._pick(statement)
            if connection is None:
                if len(self._busy) + len(self._opening) < self._size:
                    self._open_another()
                # Another caller's may be given back sooner: statements are short, and a new one has no plans.
                connection = await self._wait()
            if connection is not None:
                self._plans.setdefault(connection, set()).add(statement)
                return connection

    def _pick(self, statement: str) -> Any:
        """Takes the best of the idle connections, if there is one."""
        for connection in [c for c in self._idle if c.is_closed()]:
            del self._idle[connection]
            self._forget(connection)
        if not self._idle:
            return None
        richest = max(self._idle, key=lambda c: len(self._plans[c]))
        best = richest
        if statement not in self._plans[richest]:
            planned = [c for c in self._idle if statement in self._plans[c]]
            best = max(planned, key=lambda c: len(self._plans[c]), default=richest)
        since = self._idle.pop(best)
        if best is not richest:
            self._unneeded[best] = since
            self._idle[richest] = time.monotonic()  # it would have done
        self._busy.add(best)
        return best

    def _open_another(self) -> None:
        # In an empty context, because the connection is also used by others, and keeps the one it was made in.
        self._opening.add(self._loop.create_task(self._open(), context=Context()))

    async def _open(self) -> None:
        """Opens a connection for the first caller that waits, or for a later one."""
        task = asyncio.current_task()
        assert task is not None
        try:
            connection = await self._connect()
        except BaseException as error:
            self._opening.discard(task)
            if isinstance(error, Exception):
                self._fail(error)
                self._wake(None)  # another connection may be opened
                return
            while self._waiting:  # the pool is closed
                self._fail(ConnectionError("the pool of connections is closed"))
            raise
        self._opening.discard(task)
        self._plans[connection] = set()
        self._busy.add(connection)
        self._give_back(connection)

    async def _wait(self) -> Any:
        """Waits for a released connection; None if the caller may open a new one."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # both at once: the next waiter gets it
                if future.exception() is not None or future.result() is None:
                    self._wake(None)
                else:
                    self._give_back(future.result())
            raise

    def _give_back(self, connection: Any) -> None:
        usable = not connection.is_closed() and not connection.is_in_transaction() and not self._closed
        if not usable:
            self._end(connection)
            self._wake(None)
            return
        since = self._unneeded.pop(connection, time.monotonic())
        if not self._wake(connection):
            self._busy.discard(connection)
            self._idle[connection] = since
            self._shrink_later()

    def _wake(self, connection: Any) -> bool:
        if (waiter := self._next_waiter()) is not None:
            waiter.set_result(connection)
        return waiter is not None

    def _fail(self, error: BaseException) -> None:
        if (waiter := self._next_waiter()) is not None:
            waiter.set_exception(error)

    def _next_waiter(self) -> "asyncio.Future[Any] | None":
        while self._waiting:
            if not (waiter := self._waiting.popleft()).done():
                return waiter
        return None

    def _end(self, connection: Any) -> None:
        connection.terminate()
        self._forget(connection)

    def _forget(self, connection: Any) -> None:
        self._busy.discard(connection)
        self._plans.pop(connection, None)
        self._unneeded.pop(connection, None)

    def _shrink_later(self) -> None:
        if self._shrinking is None and len(self._idle) > self._keep:
            due = min(self._idle.values()) + self._idle_limit - time.monotonic()
            self._shrinking = asyncio.get_running_loop().call_later(max(due, 0.01), self._shrink)

    def _shrink(self) -> None:
        self._shrinking = None
        limit = time.monotonic() - self._idle_limit
        for connection in sorted(self._idle, key=self._idle.__getitem__)[: len(self._idle) - self._keep]:
            if self._idle[connection] <= limit:
                del self._idle[connection]
                self._end(connection)
        self._shrink_later()

    async def close(self, patience: float) -> None:
        """Waits for connections in use or being opened, then closes all."""
        self._closed = True
        if self._shrinking is not None:
            self._shrinking.cancel()
        if self._loop.is_closed():
            for connection in [*self._busy, *self._idle]:
                _hang_up(connection)
            return
        until = time.monotonic() + patience
        while (self._busy or self._opening) and time.monotonic() < until:  # noqa: ASYNC110 (once in a life, and bounded)
            await asyncio.sleep(0.01)
        for task in self._opening:
            task.cancel()
        for connection in [*self._busy, *self._idle]:
            with contextlib.suppress(Exception):  # it is not used again in any case
                await asyncio.wait_for(connection.close(), 1)
        self._idle.clear()


class _Loan:
    """A class, because a generator's context manager takes three times as long, for each statement."""

    __slots__ = ("_connection", "_pool", "_statement")

    def __init__(self, pool: Pool, statement: str) -> None:
        self._pool = pool
        self._statement = statement

    async def __aenter__(self) -> Any:
        self._connection = await self._pool._take(self._statement)
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
