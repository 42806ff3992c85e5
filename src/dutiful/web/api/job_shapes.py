"""Jobs in requests and responses, with the field names of existing clients."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from pydantic import Field

from dutiful.app import Dutiful
from dutiful.core.job import JobRecord, PhaseState
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.states import State
from dutiful.core.steps import StepKind, StepState
from dutiful.store.queries import JobFilter
from dutiful.store.webhooks import PostState
from dutiful.web.listing import category_of, kinds_of
from dutiful.web.shapes import Ask, Cursor, JsonObject, Limit, Moment, PublicId, Reason, Receiver, Shape, Text, Texts


class QueueQuery(Ask):
    """Selects jobs that match all given fields."""

    status: list[State] = Field(default=[], max_length=len(State))
    category: Text | None = None
    job_type: Texts = Field(default=[], max_length=100)
    queue: Text | None = None
    correlation_id: Text | None = None
    tenant: Text | None = None
    subject: JsonObject | None = Field(
        default=None, description="Jobs whose subject contains these fields.", examples=['{"order": 7}']
    )
    error_class: ErrorClass | None = Field(
        default=None,
        description="Jobs whose last error is of this class: the final one, or that of the previous attempt.",
    )
    phase: Text | None = Field(default=None, description="Jobs that are in this phase, or ended in it.")
    text: Text | None = Field(default=None, description="Searched for in payload, subject and errors, ignoring case.")
    since: Moment | None = Field(default=None, description="Enqueued then or later.")
    until: Moment | None = Field(default=None, description="Enqueued before.")
    cursor: Cursor | None = Field(default=None, description="next_cursor of the previous page.")
    limit: Limit = 50

    def read(self, app: Dutiful, before: UUID | None) -> JobFilter:
        """All but the status."""
        return JobFilter(
            kinds=kinds_of(app, self.category, self.job_type) or None,
            queue=self.queue,
            correlation_id=self.correlation_id,
            tenant=self.tenant,
            subject=None if self.subject is None else msgspec.json.decode(self.subject),
            error_class=self.error_class,
            phase=self.phase,
            text=self.text,
            since=self.since,
            until=self.until,
            before=before,
            limit=self.limit,
            details=False,
        )


class Progress(Shape):
    phase: str | None
    percent: float | None
    overall: int | None
    message: str | None
    items: dict[str, Any] | None
    updated_at: datetime


class JobItem(Shape):
    job_id: PublicId
    category: str | None
    job_type: str
    status: State
    queue: str
    priority: int
    tenant: str | None
    idempotency_key: str | None
    correlation_id: str
    attempt_count: int
    max_attempts: int
    error_class: str | None = Field(description="Of the final error; before that, of the previous attempt.")
    error_message: str | None
    created_at: datetime
    scheduled_at: datetime = Field(description="When it is due, or was: as enqueued, or for its next attempt.")
    started_at: datetime | None
    finished_at: datetime | None
    progress: Progress | None


class Window(Shape):
    """The time that this page covers: filters without an index may end a page before it is full."""

    since: datetime | None = Field(description="null: from the beginning.")
    until: datetime | None


class QueuePage(Shape):
    jobs: list[JobItem]
    next_cursor: str | None
    window: Window


class Attempt(Shape):
    attempt: int
    outcome: str
    worker_id: UUID | None
    claimed_at: datetime | None
    ended_at: datetime | None
    error: dict[str, Any] | None


class Phase(Shape):
    name: str
    position: int
    state: PhaseState
    attempt: int
    started_at: datetime | None
    ended_at: datetime | None
    result: Any
    error: dict[str, Any] | None


class Need(Shape):
    job_id: PublicId
    job_type: str
    status: State


class Why(Shape):
    """Why it is in its state: `sentence` completes "It …"."""

    code: str
    sentence: str
    remedy: str | None


class Post(Shape):
    id: UUID
    job_id: PublicId | None = Field(description="null if it is about an alert.")
    webhook: str | None
    url: Receiver
    event: str
    state: PostState
    attempts: int
    created_at: datetime
    next_at: datetime | None
    ended_at: datetime | None
    status: int | None
    error: str | None


class Step(Shape):
    name: str = Field(examples=["charge"])
    kind: StepKind
    state: StepState
    code: str = Field(examples=["charge_card"], description="The function, or what it waits for.")
    started_at: datetime
    ended_at: datetime | None
    due_at: datetime | None = Field(description="The end of a sleep, or of the wait for an event.")
    event: str | None
    key: str | None
    result: Any = Field(description="Left empty beyond the first MiB of all steps' results.")


class JobDetail(JobItem):
    payload: Any
    payload_version: str | None
    subject: dict[str, Any] | None
    created_by: str | None
    backend_job_id: str | None = Field(description="Of its last delivery to a broker, if there is one.")
    worker_id: UUID | None
    parent_id: PublicId | None
    retry_of: PublicId | None
    cancel_requested_at: datetime | None
    lease_ends_at: datetime | None
    result: Any
    errors: list[dict[str, Any]]
    why: Why
    attempts: list[Attempt] = Field(description="Those before the running or final one.")
    phases: list[Phase]
    steps: list[Step]
    depends_on: list[Need]
    webhooks: list[Post]


class CancelAnswer(Shape):
    job_id: PublicId
    status: State
    changed: bool
    requested: bool = Field(description="It is running, and was asked to stop.")


class FailAsk(Reason):
    """The reason, and whether another attempt may follow."""

    retry: bool = Field(
        default=False,
        description="Fail only the running attempt, or the next of a waiting job; the kind's policy decides the rest.",
    )


NO_RETRY = FailAsk()


class FailAnswer(Shape):
    job_id: PublicId
    status: State = Field(description="failed: it is now a dead letter; otherwise another attempt follows.")


class RetryAnswer(Shape):
    job_id: PublicId = Field(description="The job that runs now; a new one if `made`.")
    status: State
    made: bool


def item(job: JobRecord, app: Dutiful) -> JobItem:
    return JobItem(**_item(job, app))


def detail(job: JobRecord, app: Dutiful, **more: Any) -> JobDetail:
    version = job.payload.get("payload_version") if isinstance(job.payload, dict) else None
    return JobDetail(
        **_item(job, app),
        payload=job.payload,
        payload_version=None if version is None else str(version),
        subject=job.subject,
        created_by=job.created_by,
        backend_job_id=job.backend_job_id,
        worker_id=job.worker_id,
        parent_id=job.parent_id,
        retry_of=job.retry_of,
        cancel_requested_at=job.cancel_requested_at,
        lease_ends_at=job.expires_at,
        result=job.result,
        errors=job.errors or [],
        **more,
    )


def _item(job: JobRecord, app: Dutiful) -> dict[str, Any]:
    error = job.error or {}
    return {
        "job_id": job.id,
        "category": category_of(app, job.kind),
        "job_type": job.kind,
        "status": job.state,
        "queue": job.queue,
        "priority": job.priority,
        "tenant": job.tenant,
        "idempotency_key": (job.options or {}).get("unique"),
        "correlation_id": job.correlation_id,
        "attempt_count": job.attempt,
        "max_attempts": job.max_attempts,
        "error_class": error.get("class"),
        "error_message": error.get("message"),
        "created_at": job.created_at,
        "scheduled_at": job.run_at or job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "progress": None if job.progress is None else Progress.model_validate(job.progress),
    }
