"""Locks inside one another: all that a task and those it started hold goes through one session.

So nobody who holds a session ever waits for another one, and no number of nested locks can use them all up.
"""

import asyncio
import logging

from dutiful.core.errors import LockLost, StoreUnavailable
from dutiful.locking import Locking, LockName
from dutiful.worker import lock_rows
from dutiful.worker.lock_hold import Hold
from dutiful.worker.lock_link import Link, Links

log = logging.getLogger("dutiful.worker")
# Postgres serves its waiters in line, but each slice stands at the end of it anew: long ones are fair.
ALONE = 30.0
NESTED = 2.0  # somebody else of the chain may come; long enough for Postgres to notice a deadlock
SHARED, SHORTEST = 0.25, 0.02  # somebody else waits to use the session
FIRST_RETRY, LONGEST_RETRY = 0.1, 2.0


class Chain:
    """`users` wait for a lock or hold one; the last one to leave gives the session back."""

    def __init__(self, locking: Locking, link: Link, links: Links) -> None:
        self._locking = locking
        self._link: Link | None = link  # none: this store keeps locks as rows
        self._links = links
        self._holds: list[Hold] = []
        self._users = 1
        self._waiting = 0
        self._lost = False
        link.on_lost = self._lose

    def join(self) -> None:
        self._users += 1

    def leave(self) -> None:
        self._users -= 1
        if self._users == 0 and self._link is not None:
            self._links.give(self._link)

    async def acquire(self, hold: Hold) -> None:
        """Wait for the lock; interrupted, it is neither held nor waited for. LockLost if the session ended."""
        self._waiting += 1
        try:
            if self._link is None:
                await lock_rows.acquire(self._locking, hold.token, hold.name)
            elif self._users == 1:
                await self._first(self._link, hold)
            else:
                await self._another(self._link, hold)
        finally:
            self._waiting -= 1
        hold.chain = self
        hold.held = True
        self._holds.append(hold)

    def part(self, hold: Hold) -> None:
        """Its block is over: who loses the session now loses nothing by it."""
        hold.held = False
        self._holds.remove(hold)

    async def release(self, hold: Hold) -> bool:
        """False if it was lost before."""
        if self._link is None:
            await lock_rows.release(self._locking, hold.token, hold.name)
            return True
        if hold.lost:
            return False
        try:
            await self._link.release(hold.name)
        except StoreUnavailable as error:
            log.warning("the lock %s was lost: %s", hold.name, error)
            await self._give_up(self._link)
            return False
        return True

    async def _first(self, link: Link, hold: Hold) -> None:
        """Nothing is held by this session, so if it ends, another one takes its place."""
        pause, away = FIRST_RETRY, False
        while True:
            try:
                if not await link.connect():
                    self._link = None
                    self._links.give(link)
                    return await lock_rows.acquire(self._locking, hold.token, hold.name)
                if await self._ask(link, hold.name, ALONE, alone=True):
                    self._lost = False
                    return None
                pause, away = FIRST_RETRY, False
            except StoreUnavailable as error:
                if not away:
                    log.warning("waiting for the lock %s, but the database is away: %s", hold.name, error)
                away = True
                await link.drop()
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_RETRY)

    async def _another(self, link: Link, hold: Hold) -> None:
        try:
            while not self._lost and not await self._ask(link, hold.name, self._patience(hold), alone=False):
                pass
        except StoreUnavailable as error:
            await self._give_up(link)
            raise LockLost(f"the locks around {hold.name} were given up: {error}") from error
        if self._lost:
            raise LockLost(f"the locks around {hold.name} were lost with their connection")

    def _patience(self, hold: Hold) -> float:
        own = sum(1 for outer in hold.around() if outer.chain is self)
        return NESTED if self._users == own + 1 else max(SHARED / self._waiting, SHORTEST)

    async def _ask(self, link: Link, name: LockName, patience: float, *, alone: bool) -> bool:
        asking = asyncio.create_task(link.acquire(name, patience))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            # The answer may be yes, and on its way.
            if alone:
                asking.cancel()
            await asyncio.wait([asking])
            if alone:
                await link.drop()
            elif asking.exception() is None and asking.result():
                await self._undo(link, name)
            raise

    async def _undo(self, link: Link, name: LockName) -> None:
        try:
            await link.release(name)
        except StoreUnavailable:
            await self._give_up(link)

    async def _give_up(self, link: Link) -> None:
        """Nobody knows what the session holds, so it is ended."""
        await link.drop()
        self._lose()

    def _lose(self) -> None:
        """The session has ended: everybody who holds a lock by it is told, each task once, at its innermost lock."""
        self._lost = bool(self._holds) or self._lost
        told: set[object] = set()
        for hold in reversed(self._holds):
            first = not hold.lost and hold.holder.whom not in told
            hold.lost = True
            told.add(hold.holder.whom)
            if first:
                hold.holder.tell()
