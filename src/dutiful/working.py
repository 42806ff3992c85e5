"""The contract of work: claim, settle, renew, and the handler's own transaction."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

import msgspec

from dutiful.core.job import Claim, Token
from dutiful.core.settle import Change

Errors = Sequence[dict[str, Any]]


class Line(msgspec.Struct, frozen=True):
    """One queue at one priority; `seq` is its first job, or where to begin to look."""

    queue: str
    priority: int
    seq: int = 0


class Ask(msgspec.Struct, frozen=True):
    """What a lane wants to claim: from these lines, in their order, beyond each one's seq."""

    worker_id: UUID
    lane: str
    lines: Sequence[Line]
    kinds: Sequence[str]
    limit: int
    lease: timedelta
    suspects: int = 0  # besides `limit`: jobs with a lost attempt, to be run at once and one at a time
    tenants: Sequence[str] = ()  # none: any; jobs of others at the head of a line are passed over


class Completion(msgspec.Struct, frozen=True):
    """The common outcome: done, with or without a result."""

    job_id: UUID
    claim_id: int
    result: str | None = None
    webhook: bool = False  # the job names a webhook of its own


class Verdict(StrEnum):
    """Why a settlement was not applied."""

    LOST = "lost"  # the claim is no longer held; recorded as a refused attempt
    REPEATED = "repeated"  # it had been applied before (its reply was lost)
    CANCEL_REQUESTED = "cancel_requested"  # it would leave the job alive, but somebody cancelled it: decide again
    LOCKED = "locked"  # somebody's open transaction holds the lease: try again later (only with skip_locked)


class Refusal(msgspec.Struct, frozen=True):
    job_id: UUID
    claim_id: int
    verdict: Verdict


class Renewal(msgspec.Struct, frozen=True):
    """What a renewal found out: claims that are gone, and jobs that somebody wants cancelled.

    Claims, not their jobs: a job that was lost and claimed again has a dead claim and a living one.
    """

    lost: frozenset[int] = frozenset()
    cancel: frozenset[UUID] = frozenset()


class Keeper(Protocol):
    """Renews leases on a connection of its own; its calls block, and are made from one thread only."""

    def renew(self, tokens: Sequence[Token], lease: timedelta, *, now: datetime | None = None) -> Renewal: ...

    def check(self, tokens: Sequence[Token]) -> Renewal:
        """What a renewal would find out, without writing: cheap enough for every second."""
        ...

    def release(self, tokens: Sequence[Token]) -> None:
        """Give claims back unspent, with their old places in line."""

    def close(self) -> None: ...


class Transaction(Protocol):
    """The handler's own writes, committed together with its job's completion."""

    async def execute(self, statement: str, *args: Any) -> None: ...

    @property
    def connection(self) -> Any:
        """The driver's connection; refused where statements are buffered (SQLite)."""
        ...


class Work(Protocol):
    async def peek(self, kinds: Sequence[str], *, now: datetime | None = None) -> list[Line]:
        """Every line that has a job of `kinds`, with the seq of its first; finds what a floor would pass over."""
        ...

    async def claim(self, ask: Ask, *, now: datetime | None = None) -> list[Claim]:
        """Take up to `limit` jobs, in order of lines and seq; fewer does not mean that there are no more."""
        ...

    async def complete(
        self, done: Sequence[Completion], *, skip_locked: bool = False, now: datetime | None = None
    ) -> list[Refusal]:
        """Settle many that are done; returns only those that were not applied.

        `skip_locked`: wait for nobody's transaction; what one holds is answered with LOCKED.
        """
        ...

    async def settle(
        self,
        changes: Sequence[Change],
        *,
        lapsed_only: bool = False,
        skip_locked: bool = False,
        now: datetime | None = None,
    ) -> list[Refusal]:
        """Apply decided changes, each claim at most once a call; with `lapsed_only`, to claims still expired."""
        ...

    def keeper(self) -> Keeper: ...

    def transaction(
        self, token: Token, result: Callable[[], str | None], errors: Callable[[], Errors] = tuple
    ) -> AbstractAsyncContextManager[Transaction]:
        """A block whose writes commit with the job's completion; asked at its end, `result()` gives JSON text.

        With `errors()` the job ends as completed_with_errors. What either of them raises rolls the block back.
        Raises ClaimLost, and rolls back, if the claim is no longer held.
        """
        ...

    async def complete_within(self, connection: Any, token: Token, result: str | None, errors: Errors = ()) -> None:
        """Complete the job in the transaction open on the user's async `connection`; ClaimLost if it is not held."""

    def complete_within_sync(self, connection: Any, token: Token, result: str | None, errors: Errors = ()) -> None: ...
