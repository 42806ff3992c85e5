"""The named locks of one worker.

A task first waits for its turn among the tasks of this worker, which costs nothing, and only then for other workers.
It waits for a name's admission, then a session, then the name's turn, then the lock itself: in this order the waits
form no cycle. Inside another lock a task has a session already, and needs no admission.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import UUID

from dutiful.core import ids
from dutiful.core.errors import StoreUnavailable, UsageError
from dutiful.observe.outage import level_of
from dutiful.store import Store
from dutiful.store.locks import LockName, LockStore
from dutiful.worker.locks.connections import LockConnections
from dutiful.worker.locks.nesting import Hold, NestedLocks

T = TypeVar("T")
log = logging.getLogger("dutiful.worker")
LONG_WAIT = 10.0  # seconds after which a wait is logged
CLOSE_TIMEOUT = 5.0
PAUSE = 1.0  # seconds between two checks of the mode


class LocalLock:
    """The tasks of this worker that wait for one name or hold it."""

    def __init__(self) -> None:
        self.admission = asyncio.Lock()
        self.turn = asyncio.Lock()
        self.users = 0
        self.holder: Hold | None = None


class LockManager:
    def __init__(self, store: LockStore, connections: int, mode_check: "LockModeCheck | None" = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.mode_check = mode_check  # None: there are no other workers
        self._store = store
        self._connections = LockConnections(store, connections)
        self._local: dict[LockName, LocalLock] = {}
        self._acquiring: set[asyncio.Task[Any]] = set()
        self._releasing: set[asyncio.Task[Any]] = set()

    def acquire(self, hold: Hold) -> "asyncio.Task[None]":
        """Starts a task that waits for the lock; cancelled, it leaves nothing behind."""
        if any(outer.name == hold.name for outer in hold.outer_holds()):
            raise UsageError(
                f"the lock {hold.name} is held already by the block around this one, which would wait for itself"
            )
        return self._spawn(self._acquire(hold), self._acquiring)

    def release(self, hold: Hold) -> "asyncio.Task[bool]":
        """Starts a task that releases the lock, and is never interrupted; False if it was lost before."""
        nested = hold.nested
        assert nested is not None
        nested.detach(hold)
        return self._spawn(self._release(hold, nested), self._releasing)

    def abandon(self, hold: Hold, acquiring: "asyncio.Task[None]") -> None:
        """Gives up a lock, whether it is waited for or held."""
        if hold.held:
            self.release(hold)
        else:
            acquiring.cancel()

    async def close(self) -> None:
        """Ends all sessions, so that this worker holds no lock any more."""
        for acquiring in self._acquiring:
            acquiring.cancel()
        if rest := self._acquiring | self._releasing:
            await asyncio.wait(rest, timeout=CLOSE_TIMEOUT)
        await self._connections.close()

    async def _acquire(self, hold: Hold) -> None:
        if self.mode_check is not None:
            await self.mode_check.check()
        local = self._local.setdefault(hold.name, LocalLock())
        local.users += 1
        timer = self.loop.call_later(LONG_WAIT, lambda: self._spawn(self._log_long_wait(hold, local), self._acquiring))
        try:
            nested = await self._wait_for_turn(hold, local)
            try:
                await nested.acquire(hold)
            except BaseException:
                local.turn.release()
                nested.leave()
                raise
            local.holder = hold
        except BaseException:
            self._leave(hold.name, local)
            raise
        finally:
            timer.cancel()

    async def _wait_for_turn(self, hold: Hold, local: LocalLock) -> NestedLocks:
        """Waits for the name's turn; returns the nested locks, which have a session by then."""
        nested = next((outer.nested for outer in hold.outer_holds()), None)
        if nested is not None:
            nested.join()
            try:
                await local.turn.acquire()
            except BaseException:
                nested.leave()
                raise
            return nested
        async with local.admission:
            async with local.turn:
                pass  # no task should hold a session only to wait for another task of this worker
            connection = await self._connections.acquire()
            try:
                await local.turn.acquire()
            except BaseException:
                self._connections.release(connection)
                raise
        return NestedLocks(self._store, connection, self._connections)

    async def _release(self, hold: Hold, nested: NestedLocks) -> bool:
        local = self._local[hold.name]
        try:
            return await nested.release(hold)
        finally:
            local.holder = None
            local.turn.release()
            nested.leave()
            self._leave(hold.name, local)

    async def _log_long_wait(self, hold: Hold, local: LocalLock) -> None:
        if local.holder is not None:
            by = f"job {ids.public(local.holder.token.job_id)} of this worker"
        else:
            found = None
            with contextlib.suppress(StoreUnavailable):
                found = await self._store.holder(hold.name)
            by = str(found or "another worker")
        job = ids.public(hold.token.job_id)
        log.warning("job %s has waited for the lock %s for %g s; it is held by %s", job, hold.name, LONG_WAIT, by)

    def _leave(self, name: LockName, local: LocalLock) -> None:
        local.users -= 1
        if local.users == 0:
            del self._local[name]

    def _spawn(self, work: Coroutine[Any, Any, T], among: "set[asyncio.Task[Any]]") -> "asyncio.Task[T]":
        task = self.loop.create_task(work)
        among.add(task)

        def ended(task: "asyncio.Task[T]") -> None:
            among.discard(task)
            if not task.cancelled():
                task.exception()  # marks it as retrieved, because no caller may be waiting

        task.add_done_callback(ended)
        return task


class LockModeCheck:
    """Checks that all workers keep locks by the same scheme, because two schemes do not see each other's locks.

    Checked at the start, and before each lock until the check has passed. A worker records its scheme before it takes a
    lock. So of two that differ, the one that checks later sees the other, and takes no lock until that one has gone; a
    worker that has passed need not check again.
    """

    def __init__(self, store: Store, worker_id: UUID) -> None:
        self._store = store
        self._worker_id = worker_id
        self._passed = False

    def reset(self) -> None:
        """Checks again, because others may have taken this worker for dead."""
        self._passed = False

    async def check_at_start(self) -> None:
        """Checks when the worker starts, so that it precedes workers that start later."""
        try:
            self._passed = await self._agreed()
        except (StoreUnavailable, UsageError) as error:
            log.warning("no job gets a lock here for now: %s", error)

    async def check(self) -> None:
        """Waits until the check has passed; UsageError if a live worker keeps locks by another scheme."""
        while not self._passed:
            try:
                self._passed = await self._agreed()
            except StoreUnavailable as error:
                log.log(level_of(error), "waiting for a lock, but the database is away: %s", error)
            if not self._passed:
                await asyncio.sleep(PAUSE)

    async def _agreed(self) -> bool:
        """Whether all schemes agree; False if our own is not recorded yet."""
        ours = await self._store.locks.scheme()
        workers = await self._store.workers.all()
        for worker in workers:
            if worker.alive and worker.id != self._worker_id and worker.locks not in (None, ours):
                raise UsageError(
                    f"this worker keeps locks as {ours}, but worker {worker.name} as {worker.locks}, so they would "
                    "not exclude each other: let all reach Postgres the same way, with the same lock_classes, or set "
                    "direct_url behind a pooler"
                )
        return any(worker.id == self._worker_id and worker.locks == ours for worker in workers)
