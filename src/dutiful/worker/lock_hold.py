"""One named lock in somebody's hands, and how to reach him when it is lost."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from dutiful.core.errors import LockLost
from dutiful.core.job import Token
from dutiful.locking import LockName
from dutiful.worker.interrupt import raise_in

if TYPE_CHECKING:
    from dutiful.worker.lock_chain import Chain


class Holder(Protocol):
    @property
    def whom(self) -> object:
        """Two locks of the same one need a single word."""
        ...

    def tell(self) -> None:
        """Stop him: what he does is no longer done under the lock."""


class Hold:
    """One lock, from when it is asked for; `outer` is the one inside whose block it was."""

    __slots__ = ("chain", "held", "holder", "lost", "name", "outer", "token", "unwanted")

    def __init__(self, name: LockName, token: Token, outer: "Hold | None", holder: Holder) -> None:
        self.name = name
        self.token = token
        self.outer = outer
        self.holder = holder
        self.chain: Chain | None = None
        self.held = False
        self.lost = False
        self.unwanted = False

    def around(self) -> Iterator["Hold"]:
        """The locks in whose blocks this one was asked for, the innermost first, as far as they are held still."""
        outer = self.outer
        while outer is not None:
            if outer.held and not outer.lost:
                yield outer
            outer = outer.outer

    def loss(self) -> LockLost:
        return LockLost(f"the lock {self.name} was lost with its connection; what was done since was not under it")


INNERMOST: ContextVar[Hold | None] = ContextVar("dutiful_innermost_lock", default=None)
"""Tasks that are started inside a lock's block inherit it, and with it the session."""


class TaskHolder:
    """Is cancelled, as asyncio.timeout does it: a cancellation by somebody else is told apart, and wins."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.whom: asyncio.Task[object] = task
        self._before = task.cancelling()
        self._told = False

    def tell(self) -> None:
        self._told = True
        self.whom.cancel("a named lock was lost")

    def take_back(self) -> bool:
        """Take our cancellation back; True if there was one and nobody else's."""
        return self._told and self.whom.uncancel() <= self._before


class ThreadHolder:
    """Gets LockLost raised in the middle of his code, but only inside the block.

    That may keep him from freeing the lock, so `abandon` does it for him.
    """

    def __init__(self, abandon: Callable[[], None]) -> None:
        self._abandon = abandon
        self.whom = threading.get_ident()
        self._inside = True
        self._guard = threading.Lock()

    def tell(self) -> None:
        with self._guard:
            if self._inside:
                raise_in(self.whom, LockLost)
        asyncio.get_running_loop().call_soon(self._abandon)

    def leave(self) -> None:
        with self._guard:
            self._inside = False
