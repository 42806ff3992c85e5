"""The named locks of one worker: who waits, who holds.

Whoever wants a lock first waits here for his turn among those of this worker, which costs nothing, and only then for
the fleet. The order in which things are waited for admits no circle: a name's door, then a session, then the name's
turn, then the lock itself. Who has a session already, being inside another lock, passes by the door.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from dutiful.core import ids
from dutiful.core.errors import UsageError
from dutiful.locking import Locking, LockName
from dutiful.worker.lock_accord import Accord
from dutiful.worker.lock_chain import Chain
from dutiful.worker.lock_hold import Hold
from dutiful.worker.lock_link import Links

T = TypeVar("T")
log = logging.getLogger("dutiful.worker")
LONG_WAIT = 10.0  # seconds after which a wait is worth a word
LAST_WORDS = 5.0


class Place:
    """One name in this worker."""

    __slots__ = ("door", "holder", "turn", "users")

    def __init__(self) -> None:
        self.door = asyncio.Lock()
        self.turn = asyncio.Lock()
        self.users = 0
        self.holder: Hold | None = None


class Locks:
    def __init__(self, locking: Locking, connections: int, accord: Accord | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.accord = accord  # none: there are no other workers
        self._locking = locking
        self._links = Links(locking, connections)
        self._places: dict[LockName, Place] = {}
        self._taking: set[asyncio.Task[Any]] = set()
        self._giving: set[asyncio.Task[Any]] = set()

    def take(self, hold: Hold) -> "asyncio.Task[None]":
        """Wait for the lock in a task of its own: cancelled, it leaves nothing behind."""
        if any(outer.name == hold.name for outer in hold.around()):
            raise UsageError(
                f"the lock {hold.name} is held already by the block around this one, which would wait for itself"
            )
        return self._spawn(self._take(hold), self._taking)

    def give(self, hold: Hold) -> "asyncio.Task[bool]":
        """Free it in a task that nobody interrupts; False if it was lost before."""
        chain = hold.chain
        assert chain is not None
        chain.part(hold)
        return self._spawn(self._give(hold, chain), self._giving)

    def abandon(self, hold: Hold, taking: "asyncio.Task[None]") -> None:
        """Nobody wants it any more, whether it is waited for or held."""
        if hold.held:
            self.give(hold)
        else:
            taking.cancel()

    async def close(self) -> None:
        """End all sessions, so that nothing is held by this worker any more."""
        for taking in self._taking:
            taking.cancel()
        if rest := self._taking | self._giving:
            await asyncio.wait(rest, timeout=LAST_WORDS)
        await self._links.close()

    async def _take(self, hold: Hold) -> None:
        if self.accord is not None:
            await self.accord.check()
        place = self._places.setdefault(hold.name, Place())
        place.users += 1
        late = self.loop.call_later(LONG_WAIT, _tell_late, hold, place)
        try:
            chain = await self._in_turn(hold, place)
            try:
                await chain.acquire(hold)
            except BaseException:
                place.turn.release()
                chain.leave()
                raise
            place.holder = hold
        except BaseException:
            self._leave(hold.name, place)
            raise
        finally:
            late.cancel()

    async def _in_turn(self, hold: Hold, place: Place) -> Chain:
        """Wait for the name's turn; the chain has a place in the pool then."""
        chain = next((outer.chain for outer in hold.around()), None)
        if chain is not None:
            chain.join()
            try:
                await place.turn.acquire()
            except BaseException:
                chain.leave()
                raise
            return chain
        async with place.door:
            async with place.turn:
                pass  # nobody should hold a session only to wait behind his neighbour
            link = await self._links.take()
            try:
                await place.turn.acquire()
            except BaseException:
                self._links.give(link)
                raise
        return Chain(self._locking, link, self._links)

    async def _give(self, hold: Hold, chain: Chain) -> bool:
        place = self._places[hold.name]
        try:
            return await chain.release(hold)
        finally:
            place.holder = None
            place.turn.release()
            chain.leave()
            self._leave(hold.name, place)

    def _leave(self, name: LockName, place: Place) -> None:
        place.users -= 1
        if place.users == 0:
            del self._places[name]

    def _spawn(self, work: Coroutine[Any, Any, T], among: "set[asyncio.Task[Any]]") -> "asyncio.Task[T]":
        task = self.loop.create_task(work)
        among.add(task)

        def ended(task: "asyncio.Task[T]") -> None:
            among.discard(task)
            if not task.cancelled():
                task.exception()  # whoever waits for it gets it, but there may be nobody

        task.add_done_callback(ended)
        return task


def _tell_late(hold: Hold, place: Place) -> None:
    by = f"job {ids.public(place.holder.token.job_id)} of this worker" if place.holder is not None else "somebody else"
    job = ids.public(hold.token.job_id)
    log.warning("job %s has waited for the lock %s for %g s; it is held by %s", job, hold.name, LONG_WAIT, by)
