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


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    tenant: int
    category: str
    job_type: str
    payload_version: str
    payload: dict[str, Any]
    idempotency_key: str
    correlation_id: UUID
    priority: int
    status: Status
    scheduled_at: datetime | None  # when it is due, or was
    attempt_count: int
    max_attempts: int
    worker_id: UUID | None
    result: Any
    error_class: str | None
    error_message: str | None
    created_at: datetime

    @classmethod
    def of(cls, job: JobRecord) -> "QueueRecord":
        payload, error = job.payload, (job.errors or [{}])[0]
        return cls(
            id=job.id,
            tenant=payload["tenant_id"],
            category=CATEGORY_OF[job.kind],
            job_type=job.kind,
            payload_version=payload["payload_version"],
            payload=payload,
            idempotency_key=payload["idempotency_key"],
            correlation_id=UUID(job.correlation_id),
            priority=job.priority,
            status=_STATUS[job.state],
            scheduled_at=job.run_at,
            attempt_count=job.attempt,
            max_attempts=job.max_attempts,
            worker_id=job.worker_id,
            result=job.result,
            error_class=error.get("class"),
            error_message=error.get("message"),
            created_at=job.created_at,
        )
