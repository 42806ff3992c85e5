"""A job as it is enqueued, as it is claimed, and as it is looked up."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.errors import JobNotFound
from dutiful.core.ids import public
from dutiful.core.states import State


class Scope(StrEnum):
    """How long a unique key is held."""

    QUEUED = "queued"  # until the job is claimed for the first time
    ACTIVE = "active"  # until the job is final
    WINDOW = "window"  # for a length of time from enqueue, even if the job ends earlier
    FOREVER = "forever"  # even after retention has deleted the job


class OnConflict(StrEnum):
    """What an enqueue does when its unique key is taken."""

    REJECT = "reject"  # raise UniqueConflict
    RETURN = "return"  # return the job that holds the key
    # Cancel the holder if it is waiting, and take its key; a running holder is left alone and returned.
    REPLACE = "replace"


class Unique(msgspec.Struct, frozen=True):
    """Allows one job at a time for a key, within a tenant and, unless `across_kinds`, within a kind."""

    key: str
    scope: Scope = Scope.ACTIVE
    on_conflict: OnConflict = OnConflict.RETURN
    window: timedelta | None = None
    across_kinds: bool = False

    def as_options(self) -> dict[str, Any]:
        """What a job's options keep of its key: it is shown when it is free again, and a new run takes it as it was."""
        held: dict[str, Any] = {"scope": self.scope.value} if self.scope is not Scope.ACTIVE else {}
        if self.window is not None:
            held["window_ms"] = round(self.window / timedelta(milliseconds=1))
        if self.across_kinds:
            held["across_kinds"] = True
        return {"unique": self.key, "unique_as": held} if held else {"unique": self.key}

    @classmethod
    def of_options(cls, key: str, options: Mapping[str, Any]) -> "Unique | None":
        """The key as `as_options` has kept it; None if it kept no more than the key."""
        held = options.get("unique_as")
        if not isinstance(held, dict):
            return None
        window = held.get("window_ms")
        return cls(
            key,
            Scope(held.get("scope", Scope.ACTIVE)),
            window=None if window is None else timedelta(milliseconds=window),
            across_kinds=held.get("across_kinds", False),
        )


class OnFailure(StrEnum):
    """What happens to a job when one that it depends on fails or is cancelled."""

    CANCEL = "cancel"  # it is cancelled at once
    RUN = "run"  # it runs when all others have ended, and sees what became of each
    FAIL = "fail"  # it fails at once, and leaves a dead letter


SUBJECT_LIMIT = 8 * 1024  # bytes of JSON: references to what a job is about; data belongs into its payload


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A checked and encoded job, ready to be stored. JSON fields hold text.

    The garbage collector need not visit it, because it cannot be part of a cycle, and a bulk has thousands.
    """

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
    policies: tuple[OnFailure, ...] = ()  # one for each of depends_on; empty: all of them are to cancel it
    joins: UUID | None = None  # what waits for that job waits for this one too, by the same policy
    # Keys that it takes over from jobs that have ended; while another job that has not ended holds one, it is rejected.
    inherits: tuple[Unique, ...] = ()

    @property
    def edges(self) -> list[tuple[UUID, OnFailure]]:
        """The jobs that it depends on, each with what happens if that does not complete."""
        policies = self.policies or (OnFailure.CANCEL,) * len(self.depends_on)
        return list(zip(self.depends_on, policies, strict=True))

    @property
    def plain(self) -> bool:
        """Whether nothing must be looked up before it is stored, so that it may share a batch."""
        return self.unique is None and not self.depends_on and not self.inherits and self.joins is None


class Insertion(StrEnum):
    MADE = "made"
    EXISTING = "existing"  # the id, or by OnConflict.RETURN the key, existed already
    REJECTED = "rejected"
    REPLACED = "replaced"


class Inserted(msgspec.Struct, frozen=True, gc=False):
    """How one NewJob was stored; `job_id` is the job that now represents it."""

    job_id: UUID
    insertion: Insertion


class ClaimToken(msgspec.Struct, frozen=True):
    """Proof of a claim: each write of its worker names it."""

    job_id: UUID
    claim_id: int


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A job that its worker owns until the lease ends; (job_id, claim_id) is the proof. JSON fields hold text.

    Without `gc`, because it refers to no container, and thousands are alive: the collector's looks at them were a tenth
    of a worker's time.
    """

    job_id: UUID
    claim_id: int
    attempt: int  # including this one; the first is 1
    crashes: int  # attempts lost with their worker, before this one
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
    waited: float = 0.0  # seconds from due to claimed, by the store's clock

    @property
    def correlation(self) -> str:
        return self.correlation_id or str(self.job_id)


class HeldClaim(msgspec.Struct, frozen=True):
    """A claim as others than its worker see it, with what is needed to decide the job's next state."""

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
    """The progress that a job's handler reported last."""

    phase: str | None = None
    percent: float | None = None  # of the phase, or of a job without phases
    overall: int | None = None  # of the job
    message: str | None = None
    items: dict[str, Any] | None = None  # total, in_progress, completed, skipped, failed
    updated_at: datetime


class PhaseState(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    SKIPPED = "skipped"  # by its condition
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # its worker died or stopped, or it snoozed; it runs again from its start
    CANCELLED = "cancelled"

    @property
    def over(self) -> bool:
        """Whether a retry that resumes skips it."""
        return self in (PhaseState.COMPLETED, PhaseState.SKIPPED)


class PhaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one phase of a pipeline."""

    name: str
    position: int
    state: PhaseState
    attempt: int  # how often it was started, interruptions not counted
    started_at: datetime | None = None
    ended_at: datetime | None = None
    result: Any = None
    error: dict[str, Any] | None = None
    progress: Progress | None = None  # the last before it ended


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its current state."""

    id: UUID
    kind: str
    queue: str
    state: State
    payload: Any
    priority: int
    attempt: int  # attempts spent, including the running one
    crashes: int
    max_attempts: int
    created_at: datetime
    run_at: datetime | None  # when it is due: as enqueued, or its next retry
    started_at: datetime | None = None  # of the running or the final attempt
    finished_at: datetime | None = None
    expires_at: datetime | None = None  # end of the lease
    cancel_requested_at: datetime | None = None
    worker_id: UUID | None = None
    result: Any = None
    errors: list[dict[str, Any]] | None = None
    gate: str | None = None  # why it is blocked: "paused", "dependency", "breaker", "limit" or "event"
    gate_key: str | None = None
    tenant: str | None = None
    correlation_id: str = ""
    parent_id: UUID | None = None
    retry_of: UUID | None = None
    subject: dict[str, Any] | None = None
    created_by: str | None = None
    options: dict[str, Any] | None = None
    progress: Progress | None = None
    stale_at: datetime | None = None  # set by retention, which will delete it later
    last_error: dict[str, Any] | None = None  # of an earlier attempt, until the job ends
    backend_job_id: str | None = None  # of its last delivery to a broker; None: there was none

    @property
    def error(self) -> dict[str, Any] | None:
        """The last error: that of its end or, until it ends, of an earlier attempt."""
        return self.errors[0] if self.errors else self.last_error


class AttemptRecord(msgspec.Struct, frozen=True):
    """A claim that was not the final one, with its outcome."""

    job_id: UUID
    claim_id: int
    attempt: int
    outcome: str
    worker_id: UUID | None
    claimed_at: datetime | None
    ended_at: datetime
    error: dict[str, Any] | None


def job_not_found(job_id: UUID) -> JobNotFound:
    return JobNotFound(f"there is no job {public(job_id)}: it never existed, or retention has deleted it")
