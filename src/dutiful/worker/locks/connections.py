"""The connections that hold a worker's locks: few, besides the store's own, and open only while needed."""

import asyncio
from collections.abc import Callable

from dutiful.core.errors import ClaimLost, StoreUnavailable
from dutiful.store.locks import LockName, LockSession, LockStore

IDLE = 5.0  # seconds after which an unused connection is closed


class LockConnection:
    """One of the worker's lock connections, which is opened when it is first needed."""

    def __init__(self, store: LockStore) -> None:
        self._store = store
        self._session: LockSession | None = None
        self._mutex = asyncio.Lock()
        self._closing: asyncio.Future[None] | None = None
        self.closed = False
        self.on_lost: Callable[[], None] = _ignore

    @property
    def connected(self) -> bool:
        return self._session is not None

    async def connect(self) -> bool:
        """Opens the connection unless it is open; False if this store keeps locks as rows."""
        if self._session is not None:
            return True
        if self.closed:
            raise ClaimLost("the worker has stopped, so it takes no more locks")
        opened: list[LockSession] = []
        ended = asyncio.Event()

        def lost() -> None:
            ended.set()
            if self._session is not None and self._session in opened:
                self._session = None
                self.on_lost()

        opening = asyncio.ensure_future(self._store.session(lost))
        try:
            session = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._close_unused)
            raise
        if session is None:
            return False
        if ended.is_set():
            raise StoreUnavailable("the connection for a named lock ended as soon as it was made")
        opened.append(session)
        self._session = session
        return True

    async def acquire(self, name: LockName, seconds: float) -> bool:
        async with self._mutex:
            return await self._open_session().acquire(name, seconds)

    async def release(self, name: LockName) -> None:
        async with self._mutex:
            await self._open_session().release(name)

    async def disconnect(self) -> None:
        """Ends the connection, whatever it holds or waits for."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _close_unused(self, opening: "asyncio.Future[LockSession | None]") -> None:
        if opening.cancelled() or opening.exception() is not None:
            return
        session = opening.result()
        if session is not None:
            self._closing = asyncio.ensure_future(session.close())

    def _open_session(self) -> LockSession:
        if self._session is None:
            raise StoreUnavailable("the connection that held a named lock has ended")
        return self._session


class LockConnections:
    """Lends at most `limit` connections at once; further callers wait for one."""

    def __init__(self, store: LockStore, limit: int) -> None:
        self._store = store
        self._free = asyncio.Semaphore(limit)
        self._used: set[LockConnection] = set()
        self._idle: dict[LockConnection, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._open = True

    async def acquire(self) -> LockConnection:
        await self._free.acquire()
        if not self._open:
            self._free.release()
            raise ClaimLost("the worker has stopped, so it takes no more locks")
        connection = self._unused() or LockConnection(self._store)
        self._used.add(connection)
        return connection

    def release(self, connection: LockConnection) -> None:
        """Takes a connection back, to be used again or closed after a while."""
        connection.on_lost = _ignore
        self._used.discard(connection)
        if self._open and connection.connected:
            self._idle[connection] = asyncio.get_running_loop().call_later(IDLE, self._close, connection)
        self._free.release()

    async def close(self) -> None:
        """Ends every connection, in use or not, which frees what they hold."""
        self._open = False
        for connection in [*self._idle, *self._used]:
            connection.closed = True
            self._close(connection)
        if self._closing:
            await asyncio.wait(self._closing, timeout=5)

    def _unused(self) -> LockConnection | None:
        while self._idle:
            connection, timer = self._idle.popitem()  # the last one used, so that the others grow old and are closed
            timer.cancel()
            if connection.connected:
                return connection
        return None

    def _close(self, connection: LockConnection) -> None:
        timer = self._idle.pop(connection, None)
        if timer is not None:
            timer.cancel()
        closing = asyncio.get_running_loop().create_task(connection.disconnect())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _ignore() -> None:
    """The end of an unused connection concerns no lock."""
