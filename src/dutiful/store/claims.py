"""The contract of claims: claim, settle, renew, and the handler's own transaction."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

import msgspec

from dutiful.core.errors import ClaimLost
from dutiful.core.ids import public
from dutiful.core.job import Claim, HeldClaim, Token
from dutiful.core.settle import Change

Errors = Sequence[dict[str, Any]]


class QueueLevel(msgspec.Struct, frozen=True):
    """One queue at one priority; `seq` is its first job, or where to begin to look."""

    queue: str
    priority: int
    seq: int = 0


class ClaimRequest(msgspec.Struct, frozen=True):
    """What a lane wants to claim: from these queue levels, in their order, beyond each one's seq."""

    worker_id: UUID
    lane: str
    levels: Sequence[QueueLevel]
    kinds: Sequence[str]
    limit: int
    lease: timedelta
    suspects: int = 0  # besides `limit`: jobs with a lost attempt, to be run at once and one at a time
    tenants: Sequence[str] = ()  # none: any; jobs of other tenants at the head of a queue are skipped


class Completion(msgspec.Struct, frozen=True):
    """The common outcome: done, with or without a result."""

    job_id: UUID
    claim_id: int
    result: str | None = None
    webhook: bool = False  # the job names a webhook of its own


class RefusalReason(StrEnum):
    """Why a settlement was not applied."""

    LOST = "lost"  # the claim is no longer held; recorded as a refused attempt
    REPEATED = "repeated"  # it had been applied before (its reply was lost)
    CANCEL_REQUESTED = "cancel_requested"  # it would leave the job alive, but a cancel was requested: decide again
    LOCKED = "locked"  # an open transaction of a user holds the lease: try again later (only with skip_locked)


class Refusal(msgspec.Struct, frozen=True):
    job_id: UUID
    claim_id: int
    reason: RefusalReason


class Renewal(msgspec.Struct, frozen=True):
    """What a renewal found out: claims that are gone, and jobs whose cancellation was requested.

    Claims, not their jobs: a job that was lost and claimed again has a dead claim and a living one.
    """

    lost: frozenset[int] = frozenset()
    cancel: frozenset[UUID] = frozenset()


class LeaseRenewer(Protocol):
    """Renews leases on a connection of its own; its calls block, and are made from one thread only."""

    def renew(self, tokens: Sequence[Token], lease: timedelta, *, now: datetime | None = None) -> Renewal: ...

    def check(self, tokens: Sequence[Token]) -> Renewal:
        """What a renewal would find out, without writing: cheap enough for every second."""

    def release(self, tokens: Sequence[Token]) -> None:
        """Return claims unspent, with their old seqs."""

    def close(self) -> None: ...


class Transaction(Protocol):
    """The handler's own writes, committed together with its job's completion."""

    async def execute(self, statement: str, *args: Any) -> None: ...

    @property
    def connection(self) -> Any:
        """The driver's connection; refused where statements are buffered (SQLite)."""


def completion_lost(token: Token) -> ClaimLost:
    return ClaimLost(
        f"job {public(token.job_id)} is no longer ours: its lease ended or it was settled before; "
        "nothing of this transaction is kept"
    )


class ClaimStore(Protocol):
    async def peek(self, kinds: Sequence[str], *, now: datetime | None = None) -> list[QueueLevel]:
        """Every queue level that has a job of `kinds`, with the seq of its first; finds also what is below a floor."""

    async def claim(self, ask: ClaimRequest, *, now: datetime | None = None) -> list[Claim]:
        """Take up to `limit` jobs, in order of levels and seq; fewer does not mean that there are no more."""

    async def complete(
        self, done: Sequence[Completion], *, skip_locked: bool = False, now: datetime | None = None
    ) -> list[Refusal]:
        """Settle many that are done; returns only those that were not applied.

        `skip_locked`: don't wait for users' transactions; a lease that one of them locks is refused as LOCKED.
        """

    async def settle(
        self,
        changes: Sequence[Change],
        *,
        expired_only: bool = False,
        skip_locked: bool = False,
        now: datetime | None = None,
    ) -> list[Refusal]:
        """Apply decided changes, each claim at most once a call; with `expired_only`, to claims still expired."""

    def renewer(self) -> LeaseRenewer: ...

    def transaction(
        self, token: Token, result: Callable[[], str | None], errors: Callable[[], Errors] = tuple
    ) -> AbstractAsyncContextManager[Transaction]:
        """A block whose writes commit with the job's completion; asked at its end, `result()` gives JSON text.

        With `errors()` the job ends as completed_with_errors. What either of them raises rolls the block back.
        Raises ClaimLost, and rolls back, if the claim is no longer held.
        """

    async def complete_within(self, connection: Any, token: Token, result: str | None, errors: Errors = ()) -> None:
        """Complete the job in the transaction open on the user's async `connection`; ClaimLost if it is not held."""

    def complete_within_sync(self, connection: Any, token: Token, result: str | None, errors: Errors = ()) -> None: ...

    async def expired(self, limit: int, *, now: datetime | None = None) -> list[HeldClaim]: ...

    async def held_by(self, worker_id: UUID) -> list[HeldClaim]:
        """The claims of one worker, for a supervisor that saw it exit."""

    async def held(self, job_id: UUID) -> HeldClaim | None:
        """The claim of one job; None if it does not run."""

    async def orphans(self) -> list[HeldClaim]:
        """Claims of workers that are known to be dead, whether or not their leases are over."""
