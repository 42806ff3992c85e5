"""The connections that hold a worker's locks: few, apart from the store's own, and open only while they are needed."""

import asyncio
from collections.abc import Callable

from dutiful.core.errors import ClaimLost, StoreUnavailable
from dutiful.locking import Locking, LockName, LockSession

IDLE = 5.0  # seconds after which an unused connection is closed


class Link:
    """A place among the worker's lock connections, and the connection itself once it is needed."""

    def __init__(self, locking: Locking) -> None:
        self._locking = locking
        self._session: LockSession | None = None
        self._one = asyncio.Lock()
        self._closing: asyncio.Future[None] | None = None
        self.closed = False
        self.on_lost: Callable[[], None] = _nobody

    @property
    def connected(self) -> bool:
        return self._session is not None

    async def connect(self) -> bool:
        """Open the connection unless it is; False if this store has none for locks."""
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

        opening = asyncio.ensure_future(self._locking.lock_session(lost))
        try:
            session = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._not_wanted)
            raise
        if session is None:
            return False
        if ended.is_set():
            raise StoreUnavailable("the connection for a named lock ended as soon as it was made")
        opened.append(session)
        self._session = session
        return True

    async def acquire(self, name: LockName, patience: float) -> bool:
        async with self._one:
            return await self._living().acquire(name, patience)

    async def release(self, name: LockName) -> None:
        async with self._one:
            await self._living().release(name)

    async def drop(self) -> None:
        """End the connection, whatever it holds or is asked."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _not_wanted(self, opening: "asyncio.Future[LockSession | None]") -> None:
        if opening.cancelled() or opening.exception() is not None:
            return
        session = opening.result()
        if session is not None:
            self._closing = asyncio.ensure_future(session.close())

    def _living(self) -> LockSession:
        if self._session is None:
            raise StoreUnavailable("the connection that held a named lock has ended")
        return self._session


class Links:
    """At most `limit` links are in use at once; whoever wants one more waits in line."""

    def __init__(self, locking: Locking, limit: int) -> None:
        self._locking = locking
        self._free = asyncio.Semaphore(limit)
        self._used: set[Link] = set()
        self._idle: dict[Link, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._open = True

    async def take(self) -> Link:
        await self._free.acquire()
        if not self._open:
            self._free.release()
            raise ClaimLost("the worker has stopped, so it takes no more locks")
        link = self._unused() or Link(self._locking)
        self._used.add(link)
        return link

    def give(self, link: Link) -> None:
        """Back, to be used again or closed after a while."""
        link.on_lost = _nobody
        self._used.discard(link)
        if self._open and link.connected:
            self._idle[link] = asyncio.get_running_loop().call_later(IDLE, self._close, link)
        self._free.release()

    async def close(self) -> None:
        """End every connection, in use or not: what they hold is free then."""
        self._open = False
        for link in [*self._idle, *self._used]:
            link.closed = True
            self._close(link)
        if self._closing:
            await asyncio.wait(self._closing, timeout=5)

    def _unused(self) -> Link | None:
        while self._idle:
            link, timer = self._idle.popitem()  # the last one used: the others grow old and are closed
            timer.cancel()
            if link.connected:
                return link
        return None

    def _close(self, link: Link) -> None:
        timer = self._idle.pop(link, None)
        if timer is not None:
            timer.cancel()
        closing = asyncio.get_running_loop().create_task(link.drop())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _nobody() -> None:
    """An unused connection that ends is missed by nobody."""
