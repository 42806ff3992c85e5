"""The contract of dead letters: permanently failed jobs, and their review."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

import msgspec

from dutiful.core.job import NewJob
from dutiful.core.review.audit import AuditEvent
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.core.sealed import shown_within

DETAILS = ("payload", "job", "errors", "history")  # of a DeadLetter


class LetterCursor(msgspec.Struct, frozen=True):
    """The last dead letter of a page; pages are ordered by time of failure, newest first."""

    died_at: datetime
    id: UUID


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a permanently failed job, with the same id; it is kept when its job is deleted."""

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
    fingerprint: str | None = None  # the same for similar errors
    payload: Any
    job: dict[str, Any]  # the whole row as it was enqueued
    errors: list[dict[str, Any]]
    history: list[dict[str, Any]]  # every earlier attempt with its error, oldest first
    reviewed_by: str | None = None
    reviewed_at: datetime | None = None
    acknowledged_by: str | None = None  # who acknowledged it first
    acknowledged_at: datetime | None = None
    notes: str | None = None
    new_job_id: UUID | None = None
    resolution: str | None = None  # why it is resolved, or has to be reviewed again

    @property
    def cursor(self) -> LetterCursor:
        return LetterCursor(self.died_at, self.id)

    def notes_for(self, by: str, notes: str | None) -> str | None:
        """The notes to store for an act by `by`; without `notes`, earlier ones are kept, with their author's name."""
        if notes is not None or self.notes is None or self.reviewed_by in (by, None):
            return notes
        return f"{self.reviewed_by}: {self.notes}"


def shown_letter(letter: DeadLetter) -> DeadLetter:
    """The dead letter without ciphertext."""
    return msgspec.structs.replace(letter, **{name: shown_within(getattr(letter, name)) for name in DETAILS})


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects dead letters; `text` is searched for in the error's message, ignoring case."""

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
    """Dead letters with similar errors."""

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
    """A decision about one dead letter; `job` is the new job, if it is reprocessed."""

    id: UUID
    act: ReviewAct
    by: str
    notes: str | None = None
    job: NewJob | None = None
    event: AuditEvent | None = None  # appended in the same transaction, if the act is applied
    refusal: AuditEvent | None = (
        None  # appended instead if it is not; `after` gets the dead letter's state, and `held_by`
    )


class Reviewed(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letter's state (None: there is none), and whether this review changed it."""

    id: UUID
    status: ReviewState | None
    applied: bool
    new_job_id: UUID | None = None
    holder: UUID | None = None  # if it was not applied for that: the job that holds a unique key of the new one


class BulkState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"  # by an operator


class BulkRun(msgspec.Struct, frozen=True, kw_only=True):
    """One act on all dead letters that match a filter, in steps; any process continues at the stored cursor."""

    id: UUID  # also the `act` of its audit events
    act: ReviewAct
    filter: DeadLetterFilter  # `until` is the start of the run, so that it excludes dead letters of jobs it made
    by: str
    role: str | None = None
    origin: str = "python"
    reason: str | None = None
    created_at: datetime
    total: int  # found when it began
    done: int = 0
    skipped: int = 0  # already reviewed by another person, or the act was not possible
    state: BulkState = BulkState.RUNNING
    cursor: LetterCursor | None = None
    ended_at: datetime | None = None


class BulkStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a run; applied only if the run is still running and its cursor is still `after`."""

    run_id: UUID
    after: LetterCursor | None
    to: LetterCursor | None
    skipped: int = 0  # dead letters of the page without a Review
    last: bool = False  # there is nothing after `to`
    event: AuditEvent | None = None  # of the run's end; appended in the same transaction, if the step is applied
    events: Sequence[AuditEvent] = ()  # of skipped dead letters; appended likewise


class DeadLetterStore(Protocol):
    async def find(self, job_id: UUID) -> DeadLetter | None: ...

    async def find_all(self, job_ids: Sequence[UUID]) -> list[DeadLetter]:
        """Those of these that are dead letters, newest first."""

    async def search(
        self, filter: DeadLetterFilter, *, after: LetterCursor | None = None, limit: int = 50, details: bool = True
    ) -> list[DeadLetter]:
        """Dead letters after the cursor `after`, newest first.

        Without `details` they have no payload, job, errors and history, and cost the same however large those are.
        """

    async def states(self, job_ids: Sequence[UUID]) -> dict[UUID, ReviewState]:
        """The state of each of these that is a dead letter."""

    async def count(self, filter: DeadLetterFilter) -> int: ...

    async def counts(self, filter: DeadLetterFilter) -> DeadLetterCounts: ...

    async def groups(self, filter: DeadLetterFilter, limit: int = 50) -> list[DeadLetterGroup]:
        """Groups of similar errors, the largest first."""

    async def review(
        self, reviews: Sequence[Review], *, step: BulkStep | None = None, now: datetime | None = None
    ) -> list[Reviewed]:
        """Applies, in one transaction, the reviews that core.review allows in the state of their dead letter.

        New jobs are stored in the same transaction; a review whose new job's unique key is taken is not applied. If
        `step` can no longer be applied, nothing is, and the result is empty.
        """

    async def start_bulk(self, run: BulkRun, event: AuditEvent) -> None: ...

    async def bulk_run(self, run_id: UUID) -> BulkRun | None: ...

    async def bulk_runs(self, *, running: bool = False, tenant: str | None = None, limit: int = 50) -> list[BulkRun]:
        """Newest first; `running`: only running ones, oldest first; `tenant`: only runs limited to that tenant."""

    async def stop_bulk(self, run_id: UUID, *, now: datetime | None = None) -> bool:
        """False if it was not running."""

    async def resolve_reprocessed(
        self, limit: int, *, new_job_id: UUID | None = None, now: datetime | None = None
    ) -> int:
        """Resolves or reopens, as core.review says, up to `limit` dead letters whose new job has ended or was deleted.

        With `new_job_id`, only the dead letter that this job replaces. Returns how many. A reopened dead letter no
        longer has a `new_job_id`.
        """
