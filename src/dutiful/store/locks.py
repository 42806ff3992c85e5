"""The contract of named locks: one holder per fleet; waiters queue, and a lock is freed with its holder."""

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import msgspec

from dutiful.core.errors import ClaimLost
from dutiful.core.ids import public
from dutiful.core.job import ClaimToken


class LockName(msgspec.Struct, frozen=True):
    """The number 7 and the text "7" are different keys."""

    namespace: str
    key: int | str

    def __str__(self) -> str:
        return f"{self.namespace}:{self.key}"


class LockSession(Protocol):
    """A connection of its own: the database frees its locks when it ends, for whatever reason.

    Calls must not overlap. Locks are counted, so each acquire needs its release; callers that share a session must not
    hold the same name at once.
    """

    async def acquire(self, name: LockName, patience: float) -> bool:
        """Waits in the queue for up to `patience` seconds; True if it was acquired."""

    async def release(self, name: LockName) -> None: ...

    async def close(self) -> None:
        """Ends the session, which frees its locks; never raises."""


class LockHolder(msgspec.Struct, frozen=True):
    """The session of the database that holds a lock; foreign: its role cannot be that of a worker."""

    pid: int
    role: str
    foreign: bool

    def __str__(self) -> str:
        session = f"process {self.pid} of the database, role {self.role}"
        return f"{session}, which is no worker: see `dutiful doctor`" if self.foreign else f"another worker ({session})"


class LockMode(StrEnum):
    """How a worker keeps locks; a fleet must use one mode, because locks of two modes do not exclude each other."""

    SESSIONS = "sessions"
    ROWS = "rows"


def lock_refused(token: ClaimToken, name: LockName) -> ClaimLost:
    return ClaimLost(
        f"the claim of job {public(token.job_id)} is lost, so it cannot have the lock {name}: "
        "another worker runs the job again"
    )


class LockStore(Protocol):
    async def mode(self) -> LockMode:
        """Whether `session` returns sessions; does not change while the store is open."""

    async def scheme(self) -> str:
        """The mode, and what else two workers must have in common for their locks to exclude each other."""

    async def session(self, lost: Callable[[], None]) -> LockSession | None:
        """A new session; `lost` is called on the event loop if it ends by itself. None in mode ROWS."""

    async def holder(self, name: LockName) -> LockHolder | None:
        """Who holds the lock now; None if it is free, or kept as a row."""

    async def try_acquire(self, token: ClaimToken, name: LockName, *, now: datetime | None = None) -> bool:
        """Takes the lock if it is free and it is this claim's turn, else joins the queue. Call it again until True.

        The lock, or the position in the queue, is kept as long as the claim's lease, so a killed worker frees both.
        A claim whose expired lock another claim has taken is lost, too: its lease cannot be renewed.
        Raises ClaimLost if the claim is no longer held.
        """

    async def free(self, token: ClaimToken, name: LockName) -> None:
        """Frees the lock, or leaves the queue."""
