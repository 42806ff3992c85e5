"""The contract of named locks: one holder in the whole fleet, who waits his turn and frees it on every way out."""

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import msgspec

from dutiful.core.errors import ClaimLost
from dutiful.core.ids import public
from dutiful.core.job import Token


class LockName(msgspec.Struct, frozen=True):
    """The number 7 and the text "7" are two keys."""

    namespace: str
    key: int | str

    def __str__(self) -> str:
        return f"{self.namespace}:{self.key}"


class LockSession(Protocol):
    """A connection of its own: the database frees what it holds when it ends, however it ends.

    Not for two calls at once. Locks are counted, so each acquire needs its release; callers that share a session make
    sure that two of them do not hold one name through it.
    """

    async def acquire(self, name: LockName, patience: float) -> bool:
        """Wait in the queue for up to `patience` seconds; True if it was acquired."""

    async def release(self, name: LockName) -> None: ...

    async def close(self) -> None:
        """End the session and so free all that it holds; never raises."""


class LockMode(StrEnum):
    """How a worker keeps locks; all workers of a fleet must use one mode, because the two do not exclude each other."""

    SESSIONS = "sessions"
    ROWS = "rows"


def lock_refused(token: Token, name: LockName) -> ClaimLost:
    return ClaimLost(
        f"job {public(token.job_id)} is no longer ours, so it cannot have the lock {name}: "
        "another worker runs the job again"
    )


class LockStore(Protocol):
    async def mode(self) -> LockMode:
        """Whether lock_session gives sessions; the answer is the same for as long as the store is open."""

    async def session(self, lost: Callable[[], None]) -> LockSession | None:
        """A new session, `lost` being called on the event loop if it ends by itself; None: use try_lock instead."""

    async def try_acquire(self, token: Token, name: LockName, *, now: datetime | None = None) -> bool:
        """Take the lock if it is free and our turn, else join the queue. Ask again until True.

        It is held, and a place in the queue kept, for as long as the claim's lease: a killed worker frees both.
        A lease that was over when its lock went to another cannot be renewed: that claim is lost with the lock.
        Raises ClaimLost if the claim is no longer held.
        """

    async def free(self, token: Token, name: LockName) -> None:
        """Free the lock, or leave the queue."""
