"""The contract of dead letters: jobs that failed for good, as people review them."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

import msgspec

from dutiful.core.job import NewJob
from dutiful.core.review.audit import AuditEvent
from dutiful.core.review.state import ReviewAct, ReviewState


class LetterCursor(msgspec.Struct, frozen=True):
    """Where a page of dead letters ended: they are listed by when they died, the newest first."""

    died_at: datetime
    id: UUID


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A job that failed for good, kept whole; it outlives its job, whose id it has."""

    id: UUID
    status: ReviewState
    died_at: datetime
    kind: str
    queue: str
    tenant: str | None = None
    correlation_id: str
    unique_key: str | None = None
    created_at: datetime  # of the job
    attempt: int  # attempts spent
    max_attempts: int
    error_class: str | None = None
    error_type: str | None = None
    message: str | None = None  # of the last error
    fingerprint: str | None = None  # the same for errors that are alike
    payload: Any
    job: dict[str, Any]  # the whole row as it was asked for
    errors: list[dict[str, Any]]
    history: list[dict[str, Any]]  # every earlier attempt with its error, the first one first
    reviewed_by: str | None = None
    reviewed_at: datetime | None = None
    acknowledged_by: str | None = None  # the first who has seen it, whatever was decided later
    acknowledged_at: datetime | None = None
    notes: str | None = None
    new_job_id: UUID | None = None
    resolution: str | None = None  # how it came to be resolved, or is to be reviewed again

    @property
    def place(self) -> LetterCursor:
        return LetterCursor(self.died_at, self.id)

    def notes_for(self, by: str, notes: str | None) -> str | None:
        """The notes of an act by `by`; without any, the earlier ones stay, with the name of their author."""
        if notes is not None or self.notes is None or self.reviewed_by in (by, None):
            return notes
        return f"{self.reviewed_by}: {self.notes}"


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters; `text` is looked for in the error's message, without regard to case."""

    status: Sequence[ReviewState] = ()  # none: any
    kinds: Sequence[str] = ()  # none: any
    queue: str | None = None
    tenant: str | None = None
    correlation_id: str | None = None
    error_class: str | None = None
    error_type: str | None = None
    fingerprint: str | None = None
    text: str | None = None
    since: datetime | None = None  # died then or later
    until: datetime | None = None  # died before


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters whose errors are alike."""

    fingerprint: str | None
    kind: str
    error_class: str | None
    error_type: str | None
    message: str | None  # of the newest
    count: int
    first_at: datetime
    last_at: datetime
    newest_id: UUID


class DeadLetterCounts(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    by_status: dict[str, int]
    by_kind: dict[str, int]
    by_class: dict[str, int]  # "" for errors without one
    oldest_open_at: datetime | None = None


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """One decided act on one dead letter; `job` is the new one, if it is reprocessed."""

    id: UUID
    act: ReviewAct
    by: str
    notes: str | None = None
    job: NewJob | None = None
    event: AuditEvent | None = None  # appended in the same transaction, if the act is applied
    refusal: AuditEvent | None = None  # appended instead if it is not, with where the dead letter stands in its `after`


class Reviewed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: where the dead letter stands now (None: there is none), and whether this act took it there."""

    id: UUID
    status: ReviewState | None
    applied: bool
    new_job_id: UUID | None = None


class BulkState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"  # by an operator


class BulkRun(msgspec.Struct, frozen=True, kw_only=True):
    """One act on all dead letters that a filter finds, in steps that any process may take; the cursor is the truth."""

    id: UUID  # also the `act` of its audit events
    act: ReviewAct
    filter: DeadLetterFilter  # its `until` is when the run began, so that it never meets what it made
    by: str
    role: str | None = None
    origin: str = "python"
    reason: str | None = None
    created_at: datetime
    total: int  # found when it began
    done: int = 0
    skipped: int = 0  # another reviewer was faster, or they could not be acted on
    state: BulkState = BulkState.RUNNING
    cursor: LetterCursor | None = None
    ended_at: datetime | None = None


class BulkStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a run: it counts only if the run's cursor is still `after` and it is still running."""

    run_id: UUID
    after: LetterCursor | None
    to: LetterCursor | None
    skipped: int = 0  # of the page, those that no Review was made for
    last: bool = False  # nothing is left beyond `to`
    event: AuditEvent | None = None  # of the run's end; appended in the same transaction, if the step counts
    events: Sequence[AuditEvent] = ()  # of those that were passed over; likewise


class DeadLetterStore(Protocol):
    async def find(self, job_id: UUID) -> DeadLetter | None: ...

    async def search(
        self, filter: DeadLetterFilter, *, after: LetterCursor | None = None, limit: int = 50
    ) -> list[DeadLetter]:
        """The newest first, beyond `after`."""

    async def count(self, filter: DeadLetterFilter) -> int: ...

    async def counts(self, filter: DeadLetterFilter) -> DeadLetterCounts: ...

    async def groups(self, filter: DeadLetterFilter, limit: int = 50) -> list[DeadLetterGroup]:
        """The largest first."""

    async def review(
        self, reviews: Sequence[Review], *, step: BulkStep | None = None, now: datetime | None = None
    ) -> list[Reviewed]:
        """Apply each whose dead letter is in a state that core.review allows its act in, all in one transaction.

        A new job is stored in the same transaction as an enqueue would store it; if its unique key is taken, that one
        is not applied. With a `step` that no longer counts nothing is applied and the answer is empty.
        """

    async def start_bulk(self, run: BulkRun, event: AuditEvent) -> None: ...

    async def bulk_run(self, run_id: UUID) -> BulkRun | None: ...

    async def bulk_runs(self, *, running: bool = False, tenant: str | None = None, limit: int = 50) -> list[BulkRun]:
        """The newest first; `running`: only those, the oldest first; `tenant`: only those on its dead letters alone."""

    async def stop_bulk(self, run_id: UUID, *, now: datetime | None = None) -> bool:
        """False if it was not running."""

    async def resolve_reprocessed(
        self, limit: int, *, new_job_id: UUID | None = None, now: datetime | None = None
    ) -> int:
        """Take up to `limit` that are reprocessing, and whose new job has ended or is gone, where core.review says.

        With `new_job_id` only the one that this job stands for. Returns how many. One that is to be reviewed again
        has no new job any more.
        """
