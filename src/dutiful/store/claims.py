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
from dutiful.core.job import Claim, ClaimToken, HeldClaim
from dutiful.core.settle import Change

Errors = Sequence[dict[str, Any]]
NEAR_JOBS = 1_000


class QueueLevel(msgspec.Struct, frozen=True):
    """One queue at one priority; `seq` is that of its first job, or where a search begins: a floor.

    `after`: of the jobs at `seq` + 1, a claim need not search those up to this id. Thousands may have one `run_at`.
    """

    queue: str
    priority: int
    seq: int = 0
    after: UUID | None = None


class ClaimRequest(msgspec.Struct, frozen=True):
    """What a lane wants to claim: from these queue levels, in their order, after the seq of each.

    What became due lately is searched in any case: it may have been committed after a later job was claimed.
    """

    worker_id: UUID
    lane: str
    levels: Sequence[QueueLevel]
    kinds: Sequence[str]
    limit: int
    lease: timedelta
    suspects: int = 0  # besides `limit`: jobs with a lost attempt, to be run at once and one at a time
    tenants: Sequence[str] = ()  # none: any; jobs of other tenants at the head of a queue are skipped


class JobClaimRequest(msgspec.Struct, frozen=True):
    """Which jobs a lane wants to claim, because a broker has delivered their ids."""

    worker_id: UUID
    lane: str
    job_ids: Sequence[UUID]
    kinds: Sequence[str]
    lease: timedelta
    suspects: int = 0  # the most of `job_ids` with a lost attempt that are claimed
    tenants: Sequence[str] = ()  # none: any; so with queues
    queues: Sequence[str] = ()


class Completion(msgspec.Struct, frozen=True, gc=False):
    """The common outcome: done, with or without a result."""

    job_id: UUID
    claim_id: int
    result: str | None = None
    webhook: bool = False  # the job names a webhook of its own


class RefusalReason(StrEnum):
    """Why a settlement was not applied."""

    LOST = "lost"  # the claim is no longer held; recorded as a refused attempt
    REPEATED = "repeated"  # it had been applied before (its reply was lost)
    CANCEL_REQUESTED = "cancel_requested"  # a cancel was requested, so the job can only be cancelled: decide again
    LOCKED = "locked"  # an open transaction of a user holds the lease: try again later (only with skip_locked)


class Refusal(msgspec.Struct, frozen=True):
    job_id: UUID
    claim_id: int
    reason: RefusalReason


class Renewal(msgspec.Struct, frozen=True):
    """Claims found to be lost, and jobs whose cancellation was requested.

    Claims instead of jobs, because a job that was claimed again has a lost claim and a held one.
    """

    lost: frozenset[int] = frozenset()
    cancel: frozenset[UUID] = frozenset()


class LeaseRenewer(Protocol):
    """Renews leases without the event loop; its calls block, and are made from one thread only.

    Postgres: on a connection of its own. SQLite: on the store's own threads.
    """

    def renew(self, tokens: Sequence[ClaimToken], lease: timedelta, *, now: datetime | None = None) -> Renewal: ...

    def check(self, tokens: Sequence[ClaimToken]) -> Renewal:
        """Returns the same as `renew`, without renewing: cheap enough to be called every second."""

    def release(self, tokens: Sequence[ClaimToken]) -> None:
        """Releases claims: their jobs are ready again with their old seqs, and no attempt is counted."""

    def close(self) -> None: ...


class Transaction(Protocol):
    """The handler's own writes, committed together with its job's completion."""

    async def execute(self, statement: str, *args: Any) -> None: ...

    @property
    def connection(self) -> Any:
        """The driver's connection; refused where statements are buffered (SQLite)."""


def completion_lost(token: ClaimToken) -> ClaimLost:
    return ClaimLost(
        f"the claim of job {public(token.job_id)} is lost: its lease ended, or it was settled or cancelled before; "
        "nothing of this transaction is kept"
    )


class ClaimStore(Protocol):
    async def peek(self, kinds: Sequence[str], *, now: datetime | None = None) -> list[QueueLevel]:
        """Every queue level that has a job of `kinds`, with the seq of its first; includes jobs below the floors."""

    async def peek_at(
        self, kinds: Sequence[str], levels: Sequence[QueueLevel], *, now: datetime | None = None
    ) -> list[QueueLevel]:
        """The same of these levels alone, beyond the seq of each; of each only the first `NEAR_JOBS` jobs are read."""

    async def claim(self, ask: ClaimRequest, *, now: datetime | None = None) -> list[Claim]:
        """Claims up to `limit` jobs, in order of levels and seq; fewer does not mean that there are no more."""

    async def claim_jobs(self, ask: JobClaimRequest, *, now: datetime | None = None) -> list[Claim]:
        """Claims those of `job_ids` that are ready and may run, in their order; their deliveries count as taken."""

    async def complete(
        self, done: Sequence[Completion], *, skip_locked: bool = False, now: datetime | None = None
    ) -> list[Refusal]:
        """Settles completed jobs; returns only those that were not applied.

        `skip_locked`: does not wait for users' transactions; a lease that one of them locks is refused as LOCKED.
        """

    async def settle(
        self,
        changes: Sequence[Change],
        *,
        expired_only: bool = False,
        skip_locked: bool = False,
        now: datetime | None = None,
    ) -> list[Refusal]:
        """Applies decided changes, at most one per claim; `expired_only`: only to claims that are still expired."""

    def renewer(self) -> LeaseRenewer: ...

    def transaction(
        self, token: ClaimToken, result: Callable[[], str | None], errors: Callable[[], Errors] = tuple
    ) -> AbstractAsyncContextManager[Transaction]:
        """A block whose writes commit with the job's completion; `result()` is called at its end and returns JSON text.

        If `errors()` returns any, the job ends as completed_with_errors. An error that either of them raises rolls the
        block back. Raises ClaimLost, and rolls back, if the claim is no longer held.
        """

    async def complete_within(
        self, connection: Any, token: ClaimToken, result: str | None, errors: Errors = ()
    ) -> None:
        """Completes the job in the open transaction of the user's async `connection`; ClaimLost if it is not held."""

    def complete_within_sync(
        self, connection: Any, token: ClaimToken, result: str | None, errors: Errors = ()
    ) -> None: ...

    async def expired(self, limit: int, *, now: datetime | None = None) -> list[HeldClaim]:
        """Claims whose leases are over; none while their workers may not have had time to renew after an outage."""

    async def held_by(self, worker_id: UUID) -> list[HeldClaim]:
        """The claims of one worker, for a supervisor that saw it exit."""

    async def held(self, job_id: UUID) -> HeldClaim | None:
        """The claim of one job; None if it does not run."""

    async def orphans(self) -> list[HeldClaim]:
        """Claims of workers that are known to be dead, even if their leases have not ended."""
