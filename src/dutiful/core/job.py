"""A job as it is asked for, as it is claimed, and as it is looked up."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.pipeline import PhaseState
from dutiful.core.transitions import State


class Scope(StrEnum):
    """How long a unique key is held."""

    QUEUED = "queued"  # until the job is claimed for the first time
    ACTIVE = "active"  # until the job is final
    WINDOW = "window"  # for a span of time from enqueue, whatever becomes of the job
    FOREVER = "forever"  # for good; it outlives retention


class OnConflict(StrEnum):
    """What an enqueue does when its unique key is taken."""

    REJECT = "reject"  # raise UniqueConflict
    RETURN = "return"  # hand back the job that holds the key
    REPLACE = (
        "replace"  # cancel the holder if it still waits and take its key; a running holder is left alone and returned
    )


class Unique(msgspec.Struct, frozen=True):
    """One job at a time for a key, within a tenant and, unless `across_kinds`, within a kind."""

    key: str
    scope: Scope = Scope.ACTIVE
    on_conflict: OnConflict = OnConflict.RETURN
    window: timedelta | None = None
    across_kinds: bool = False


class NewJob(msgspec.Struct, frozen=True):
    """One request for work, checked and encoded, ready to be stored. JSON fields hold text."""

    id: UUID
    kind: str
    queue: str
    payload: str
    priority: int = 100
    max_attempts: int = 5
    run_at: datetime | None = None
    delay: timedelta | None = None  # instead of run_at: counted from the store's clock
    tenant: str | None = None
    correlation_id: str | None = None  # None: the job's own id
    parent_id: UUID | None = None
    retry_of: UUID | None = None
    subject: str | None = None
    created_by: str | None = None
    options: str | None = None
    unique: Unique | None = None
    depends_on: tuple[UUID, ...] = ()

    @property
    def plain(self) -> bool:
        """Nothing to look up before it is stored, so that it may share a batch."""
        return self.unique is None and not self.depends_on


class Insertion(StrEnum):
    MADE = "made"
    EXISTING = "existing"  # the id, or by OnConflict.RETURN the key, was there already
    REJECTED = "rejected"
    REPLACED = "replaced"


class Inserted(msgspec.Struct, frozen=True):
    """What became of one NewJob; `job_id` is the job that now stands for the request."""

    job_id: UUID
    insertion: Insertion


class Token(msgspec.Struct, frozen=True):
    """Proof of a claim."""

    job_id: UUID
    claim_id: int


class Claim(msgspec.Struct, frozen=True):
    """A job that is ours until its lease ends; (job_id, claim_id) is the proof. JSON fields hold text."""

    job_id: UUID
    claim_id: int
    attempt: int  # this one included, the first is 1
    crashes: int  # attempts lost with their worker, this one not included
    seq: int
    kind: str
    queue: str
    payload: str
    priority: int
    max_attempts: int
    tenant: str | None
    correlation_id: str | None
    parent_id: UUID | None
    subject: str | None
    options: str | None
    waited: float = 0.0  # seconds since it was due, by the store's clock

    @property
    def correlation(self) -> str:
        return self.correlation_id or str(self.job_id)


class Lapsed(msgspec.Struct, frozen=True):
    """A claim, for others than its worker: what the core needs to decide its job's fate."""

    job_id: UUID
    claim_id: int
    attempt: int
    crashes: int
    kind: str
    worker_id: UUID
    cancel_requested: bool
    tenant: str | None = None
    correlation_id: str | None = None

    @property
    def correlation(self) -> str:
        return self.correlation_id or str(self.job_id)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job has come, as its handler last said."""

    phase: str | None = None
    percent: float | None = None  # of the phase, or of a job that has none
    overall: int | None = None  # of the job
    message: str | None = None
    items: dict[str, Any] | None = None  # total, in_progress, completed, skipped, failed
    updated_at: datetime


class PhaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a pipeline, as far as it has come."""

    name: str
    position: int
    state: PhaseState
    attempt: int  # how often it was begun, interruptions not counted
    started_at: datetime | None = None
    ended_at: datetime | None = None
    result: Any = None
    error: dict[str, Any] | None = None


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One job with where it stands, as people look it up."""

    id: UUID
    kind: str
    queue: str
    state: State
    payload: Any
    priority: int
    attempt: int  # attempts spent, the running one included
    crashes: int
    max_attempts: int
    created_at: datetime
    run_at: datetime | None  # when it is due: the time it was asked for, or of its next retry
    started_at: datetime | None = None  # of the running or the final attempt
    finished_at: datetime | None = None
    expires_at: datetime | None = None  # end of the lease
    cancel_requested_at: datetime | None = None
    worker_id: UUID | None = None
    result: Any = None
    errors: list[dict[str, Any]] | None = None
    gate: str | None = None  # why it is blocked: "paused", "dependency" or "breaker"
    gate_key: str | None = None
    tenant: str | None = None
    correlation_id: str = ""
    parent_id: UUID | None = None
    retry_of: UUID | None = None
    subject: dict[str, Any] | None = None
    created_by: str | None = None
    options: dict[str, Any] | None = None
    progress: Progress | None = None
    stale_at: datetime | None = None  # retention has marked it: it will be deleted when its time is over
    last_error: dict[str, Any] | None = None  # of an attempt before, as long as the job has not ended

    @property
    def error(self) -> dict[str, Any] | None:
        """What went wrong last: at its end or, as long as it has not ended, in an attempt before."""
        return self.errors[0] if self.errors else self.last_error


class AttemptRecord(msgspec.Struct, frozen=True):
    """One claim that was not the final one and what came of it."""

    job_id: UUID
    claim_id: int
    attempt: int
    outcome: str
    worker_id: UUID | None
    claimed_at: datetime | None
    ended_at: datetime
    error: dict[str, Any] | None
