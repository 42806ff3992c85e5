"""Nested locks: all locks that a task and the tasks it started hold use one session.

So no holder of a session ever waits for a second one, and nested locks cannot use up all sessions.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from dutiful.concurrency.daemon_pool import raise_in_thread
from dutiful.core.errors import LockLost, StoreUnavailable
from dutiful.core.job import ClaimToken
from dutiful.observe.outage import level_of
from dutiful.store.locks import LockName, LockStore
from dutiful.worker.locks.connections import LockConnection, LockConnections

log = logging.getLogger("dutiful.worker")
# Seconds that one request for a lock waits. Postgres serves its waiters in order, but each request starts at the end of
# the queue, so long ones are fair.
ALONE = 30.0
NESTED = 2.0  # other tasks may want the session; long enough for Postgres to notice a deadlock
SHARED, SHORTEST = 0.25, 0.02  # other tasks wait to use the session
FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0
FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.02, 0.25, 1.5  # between two requests for a row
TRIES = 5  # to free a row; after that it is freed when its claim ends


@dataclass(slots=True, eq=False)
class Hold:
    """One lock from its request to its release; `outer` is the one around its block."""

    name: LockName
    token: ClaimToken
    outer: "Hold | None"
    holder: "TaskHolder | ThreadHolder"
    nested: "NestedLocks | None" = None
    held: bool = False
    lost: bool = False
    abandoned: bool = False

    def outer_holds(self) -> Iterator["Hold"]:
        """The locks around this one that are still held, the innermost first."""
        outer = self.outer
        while outer is not None:
            if outer.held and not outer.lost:
                yield outer
            outer = outer.outer

    def lost_error(self) -> LockLost:
        return LockLost(f"the lock {self.name} was lost with its connection; what was done since was not under it")


INNERMOST: ContextVar[Hold | None] = ContextVar("dutiful_innermost_lock", default=None)
"""Tasks started inside a lock's block inherit it, and with it the session."""


class TaskHolder:
    """Cancels the task, as asyncio.timeout does: another cancellation is recognised, and wins."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.owner: asyncio.Task[object] = task
        self._before = task.cancelling()
        self._cancelled = False

    def interrupt(self) -> None:
        self._cancelled = True
        self.owner.cancel("a named lock was lost")

    def withdraw_cancellation(self) -> bool:
        """Takes the cancellation back; True if it was made, and there is no other."""
        return self._cancelled and self.owner.uncancel() <= self._before


class ThreadHolder:
    """Raises LockLost in the thread, but only inside the block; `abandon` releases what it then cannot release."""

    def __init__(self, abandon: Callable[[], None]) -> None:
        self._abandon = abandon
        self.owner = threading.get_ident()
        self._inside = True
        self._mutex = threading.Lock()

    def interrupt(self) -> None:
        with self._mutex:
            if self._inside:
                raise_in_thread(self.owner, LockLost)
        asyncio.get_running_loop().call_soon(self._abandon)

    def exit_block(self) -> None:
        with self._mutex:
            self._inside = False


class NestedLocks:
    """Counts the users of one session, who wait for a lock or hold one; the last one releases the session."""

    def __init__(self, store: LockStore, connection: LockConnection, pool: LockConnections) -> None:
        self._store = store
        self._connection: LockConnection | None = connection  # None: this store keeps locks as rows
        self._pool = pool
        self._holds: list[Hold] = []
        self._users = 1
        self._waiting = 0
        self._lost = False
        connection.on_lost = self._lose

    def join(self) -> None:
        self._users += 1

    def leave(self) -> None:
        self._users -= 1
        if self._users == 0 and self._connection is not None:
            self._pool.release(self._connection)

    async def acquire(self, hold: Hold) -> None:
        """Waits for the lock; LockLost if the session ended. An interruption leaves no request behind."""
        self._waiting += 1
        try:
            if self._connection is None:
                await acquire_row(self._store, hold)
            elif self._users == 1:
                await self._acquire_first(self._connection, hold)
            else:
                await self._acquire_nested(self._connection, hold)
        finally:
            self._waiting -= 1
        hold.nested = self
        hold.held = True
        self._holds.append(hold)

    def detach(self, hold: Hold) -> None:
        """Removes a lock whose block has ended, so that losing the session no longer interrupts its holder."""
        hold.held = False
        self._holds.remove(hold)

    async def release(self, hold: Hold) -> bool:
        """Releases the lock; False if it was lost before."""
        if self._connection is None:
            await release_row(self._store, hold)
            return True
        if hold.lost:
            return False
        try:
            await self._connection.release(hold.name)
        except StoreUnavailable as error:
            log.warning("the lock %s was lost: %s", hold.name, error)
            await self._give_up(self._connection)
            return False
        return True

    async def _acquire_first(self, connection: LockConnection, hold: Hold) -> None:
        """Acquires the first lock of a session, which is replaced if it ends, because it holds nothing yet."""
        pause, away = FIRST_RETRY, False
        while True:
            try:
                if not await connection.connect():
                    self._connection = None
                    self._pool.release(connection)
                    return await acquire_row(self._store, hold)
                if await self._request(connection, hold.name, ALONE, alone=True):
                    self._lost = False
                    return None
                pause, away = FIRST_RETRY, False
            except StoreUnavailable as error:
                if not away:
                    _log_away(hold, error)
                away = True
                await connection.disconnect()
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_RETRY)

    async def _acquire_nested(self, connection: LockConnection, hold: Hold) -> None:
        try:
            granted = False
            while not self._lost and not granted:
                granted = await self._request(connection, hold.name, self._wait_seconds(hold), alone=False)
        except StoreUnavailable as error:
            await self._give_up(connection)
            raise LockLost(f"the locks around {hold.name} were given up: {error}") from error
        if self._lost:
            raise LockLost(f"the locks around {hold.name} were lost with their connection")

    def _wait_seconds(self, hold: Hold) -> float:
        own = sum(1 for outer in hold.outer_holds() if outer.nested is self)
        return NESTED if self._users == own + 1 else max(SHARED / self._waiting, SHORTEST)

    async def _request(self, connection: LockConnection, name: LockName, seconds: float, *, alone: bool) -> bool:
        request = asyncio.create_task(connection.acquire(name, seconds))
        try:
            return await asyncio.shield(request)
        except asyncio.CancelledError:
            # The lock may just have been granted.
            if alone:
                request.cancel()
            await asyncio.wait([request])
            if alone:
                await connection.disconnect()
            elif request.exception() is None and request.result():
                try:
                    await connection.release(name)
                except StoreUnavailable:
                    await self._give_up(connection)
            raise

    async def _give_up(self, connection: LockConnection) -> None:
        """Ends a session of which it is unknown what it holds."""
        await connection.disconnect()
        self._lose()

    def _lose(self) -> None:
        """Interrupts all holders of the session, which has ended: each owner once, at its innermost lock."""
        self._lost = bool(self._holds) or self._lost
        interrupted: set[object] = set()
        for hold in reversed(self._holds):
            first = not hold.lost and hold.holder.owner not in interrupted
            hold.lost = True
            interrupted.add(hold.holder.owner)
            if first:
                hold.holder.interrupt()


# --- locks as rows, for stores without lock sessions: requested again and again, in order


async def acquire_row(store: LockStore, hold: Hold) -> None:
    """Waits for the lock; an interruption leaves no request behind."""
    try:
        pause, away = FIRST_PAUSE, False
        while True:
            try:
                if await _request_row(store, hold):
                    return
                away = False
            except StoreUnavailable as error:
                if not away:
                    _log_away(hold, error)
                away = True
            await asyncio.sleep(pause)
            pause = min(pause * GROWTH, LONGEST_PAUSE)
    except BaseException:
        await release_row(store, hold)
        raise


async def release_row(store: LockStore, hold: Hold) -> None:
    pause = FIRST_PAUSE
    for _ in range(TRIES):
        try:
            await store.free(hold.token, hold.name)
            return
        except StoreUnavailable as error:
            last = error
        await asyncio.sleep(pause)
        pause *= 4
    log.warning("could not free the lock %s, so it is held until its job ends: %s", hold.name, last)


async def _request_row(store: LockStore, hold: Hold) -> bool:
    request = asyncio.ensure_future(store.try_acquire(hold.token, hold.name))
    try:
        return await asyncio.shield(request)
    except asyncio.CancelledError:
        # It may still be granted; freed before that, it would stay held.
        await asyncio.gather(request, return_exceptions=True)
        raise


def _log_away(hold: Hold, error: StoreUnavailable) -> None:
    log.log(level_of(error), "waiting for the lock %s, but the database is away: %s", hold.name, error)
