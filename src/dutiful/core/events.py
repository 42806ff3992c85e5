"""Events of a job, derived from what is stored, so that no event comes before its fact is durable."""

from collections.abc import Collection, Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.job import AttemptRecord, JobRecord, PhaseRecord, PhaseState, Progress
from dutiful.core.sealed import shown, shown_record
from dutiful.core.states import State
from dutiful.core.webhooks.endpoint import origin


class EventType(StrEnum):
    ENQUEUED = "enqueued"
    STARTED = "started"
    PHASE_COMPLETED = "phase_completed"
    PROGRESS = "progress"
    RETRYING = "retrying"
    COMPLETED = "completed"  # with errors, too: see its state
    FAILED = "failed"
    CANCELLED = "cancelled"
    WEBHOOK_DELIVERED = "webhook_delivered"
    WEBHOOK_FAILED = "webhook_failed"
    STALE = "stale"
    DELETED = "deleted"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One fact about one job; `key` is unique among the facts of that job."""

    type: EventType
    key: str
    at: datetime
    job_id: UUID
    kind: str
    queue: str
    tenant: str | None = None
    correlation_id: str
    data: dict[str, Any] = {}


class LeftOut(msgspec.Struct, frozen=True):
    """Stands for a large result until a reader is ready for it: that of a job, or of a phase, which ended then."""

    phase: str | None
    ended_at: datetime


class PostView(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one webhook message; `ended_at` is unset while it is pending."""

    id: UUID
    url: str
    state: str
    attempts: int
    ended_at: datetime | None = None
    status: int | None = None
    error: str | None = None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A consistent snapshot of a job with everything that events are derived from."""

    job: JobRecord
    claim_id: int | None = None  # of the running or the final attempt
    phases: list[PhaseRecord] = []
    attempts: list[AttemptRecord] = []
    posts: list[PostView] = []
    stale_sent_at: datetime | None = None

    def without(self, result: bool, phases: Collection[str]) -> "JobView":
        """The view with LeftOut for the result of the job, and for those of these phases."""
        job, kept = self.job, self.phases
        if result and job.finished_at is not None:
            job = msgspec.structs.replace(job, result=LeftOut(None, job.finished_at))
        if phases:
            kept = [
                msgspec.structs.replace(phase, result=LeftOut(phase.name, phase.ended_at))
                if phase.name in phases and phase.ended_at is not None
                else phase
                for phase in kept
            ]
        return msgspec.structs.replace(self, job=job, phases=kept)

    @property
    def webhook_sent(self) -> bool:
        return bool(self.posts) and all(post.state == "delivered" for post in self.posts)


_FINAL = {
    State.COMPLETED: EventType.COMPLETED,
    State.COMPLETED_WITH_ERRORS: EventType.COMPLETED,
    State.FAILED: EventType.FAILED,
    State.CANCELLED: EventType.CANCELLED,
}
_ORDER = {kind: rank for rank, kind in enumerate(EventType)}
# Outcomes without a `retrying` event.
_NO_RETRY = ("snoozed", "refused", "released")


def events_of(view: JobView, seen: Collection[str] = ()) -> list[Event]:
    """All events of the view whose keys are not in `seen`, in the order in which they happened."""
    events = [event for event in _derive(view) if event.key not in seen]
    return sorted(events, key=lambda event: (event.at, _ORDER[event.type]))


def _derive(view: JobView) -> Iterator[Event]:
    job = view.job
    yield _event(job, EventType.ENQUEUED, "", job.created_at, {"run_at": job.run_at} if job.run_at else {})
    for attempt in view.attempts:
        if attempt.claimed_at is not None:
            yield _event(job, EventType.STARTED, attempt.claim_id, attempt.claimed_at, {"attempt": attempt.attempt})
        if attempt.outcome not in _NO_RETRY:
            yield _event(job, EventType.RETRYING, attempt.claim_id, attempt.ended_at, _retry(attempt))
    if job.started_at is not None:
        yield _event(job, EventType.STARTED, view.claim_id, job.started_at, {"attempt": job.attempt})
    reported = job.progress.updated_at if job.progress is not None else None
    for phase in view.phases:
        # Kept with its phase, because the next report may replace it before a watcher reads it.
        if phase.progress is not None and phase.progress.updated_at != reported:
            yield _progress(job, phase.progress)
        if phase.state is PhaseState.COMPLETED and phase.ended_at is not None:
            key = f"{phase.name}:{phase.ended_at.timestamp()}"
            data = {"phase": phase.name, "position": phase.position, "result": shown(phase.result)}
            yield _event(job, EventType.PHASE_COMPLETED, key, phase.ended_at, data)
    if job.progress is not None:
        yield _progress(job, job.progress)
    if job.finished_at is not None:
        yield _event(job, _FINAL[job.state], "", job.finished_at, _end(job))
    for post in view.posts:
        if post.ended_at is not None:
            kind = EventType.WEBHOOK_DELIVERED if post.state == "delivered" else EventType.WEBHOOK_FAILED
            key = f"{post.id}:{post.ended_at.timestamp()}"
            # Only the origin, because the path may be a secret, and events go to browsers and tenants.
            data = msgspec.to_builtins(msgspec.structs.replace(post, url=origin(post.url)))
            yield _event(job, kind, key, post.ended_at, data)
    if view.stale_sent_at is not None:
        yield _event(job, EventType.STALE, "", view.stale_sent_at, {"stale_at": job.stale_at})


def _event(job: JobRecord, type: EventType, mark: object, at: datetime, data: dict[str, Any]) -> Event:
    return Event(
        type=type,
        key=f"{type}:{mark}" if mark != "" else type.value,
        at=max(at, job.created_at),  # a claim reads the clock first, and may then find a newer job
        job_id=job.id,
        kind=job.kind,
        queue=job.queue,
        tenant=job.tenant,
        correlation_id=job.correlation_id,
        data=data,
    )


def _progress(job: JobRecord, progress: Progress) -> Event:
    at = progress.updated_at
    return _event(job, EventType.PROGRESS, at.timestamp(), at, msgspec.to_builtins(shown_record(progress)))


def _retry(attempt: AttemptRecord) -> dict[str, Any]:
    return {"attempt": attempt.attempt, "outcome": attempt.outcome, "error": _brief(attempt.error)}


def _end(job: JobRecord) -> dict[str, Any]:
    errors = [_brief(error) for error in job.errors or []]
    return {"state": job.state, "attempt": job.attempt, "result": shown(job.result), "errors": errors}


def _brief(error: dict[str, Any] | None) -> dict[str, Any] | None:
    """The error without its traceback, which only readers of the job itself may see."""
    return None if error is None else {name: value for name, value in shown(error).items() if name != "traceback"}
