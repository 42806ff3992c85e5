"""A job in the platform's own terms."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from dutiful import JobRecord, State
from examples.practice.categories import JOB_TYPES

CATEGORY_OF = {job_type: category for category, job_types in JOB_TYPES.items() for job_type in job_types}


class Status(StrEnum):
    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"  # permanently: it has a dead letter
    CANCELLED = "cancelled"


_STATUS = {
    State.SCHEDULED: Status.PENDING,
    State.READY: Status.PENDING,
    State.BLOCKED: Status.PENDING,
    State.RUNNING: Status.PROCESSING,
    State.COMPLETED: Status.COMPLETED,
    State.COMPLETED_WITH_ERRORS: Status.COMPLETED,
    State.FAILED: Status.FAILED,
    State.CANCELLED: Status.CANCELLED,
}


def states_of(status: str) -> list[str]:
    """The states of Dutiful that a status stands for; none for a word that is no status."""
    return [state.value for state, known in _STATUS.items() if known == status]


def status_of(state: str) -> Status:
    return _STATUS[State(state)]


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    tenant: int | None
    category: str | None
    job_type: str
    payload_version: str | None
    payload: dict[str, Any]
    idempotency_key: str | None
    correlation_id: UUID | str
    priority: int
    status: Status
    scheduled_at: datetime  # when it is due, or was
    attempt_count: int
    max_attempts: int
    worker_id: UUID | None
    result: Any
    error_class: str | None
    error_message: str | None
    created_at: datetime

    @classmethod
    def of(cls, job: JobRecord) -> "QueueRecord":
        """A row that SQL wrote before the rules were stored may lack fields; it must not hide the others of a list."""
        payload, error = job.payload if isinstance(job.payload, dict) else {}, job.error or {}
        return cls(
            id=job.id,
            tenant=int(job.tenant) if job.tenant is not None and job.tenant.isdecimal() else None,
            category=CATEGORY_OF.get(job.kind),
            job_type=job.kind,
            payload_version=_text(payload.get("payload_version")),
            payload=payload,
            idempotency_key=_text(payload.get("idempotency_key")),
            correlation_id=_uuid(job.correlation_id),
            priority=job.priority,
            status=_STATUS[job.state],
            scheduled_at=job.run_at or job.created_at,
            attempt_count=job.attempt,
            max_attempts=job.max_attempts,
            worker_id=job.worker_id,
            result=job.result,
            error_class=error.get("class"),
            error_message=error.get("message"),
            created_at=job.created_at,
        )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _uuid(text: str) -> UUID | str:
    try:
        return UUID(text)
    except ValueError:
        return text
