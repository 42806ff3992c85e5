"""A job, as JobQueue shows it to its users."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from dutiful import JobRecord, PhaseRecord, PhaseState, Snapshot, State


class Status(StrEnum):
    PENDING = "pending"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STALE = "stale"  # it has ended, and retention will delete it soon


_STATUS = {
    State.SCHEDULED: Status.PENDING,
    State.READY: Status.PENDING,
    State.BLOCKED: Status.PENDING,
    State.RUNNING: Status.ACTIVE,
    State.COMPLETED: Status.COMPLETED,
    State.COMPLETED_WITH_ERRORS: Status.COMPLETED,
    State.FAILED: Status.FAILED,
    State.CANCELLED: Status.CANCELLED,
}


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    status: str  # pending, or one of Dutiful's PhaseState
    progress: float = 0
    result: Any = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    status: Status
    data: Any
    attempts: int
    progress: int  # of the whole, in percent
    message: str | None
    phases: list[Phase]
    webhook_sent: bool
    created_at: datetime
    scheduled_at: datetime | None
    finished_at: datetime | None
    result: Any
    error: str | None

    @classmethod
    def of(cls, seen: Snapshot) -> "Job":
        record, known = seen.job, {phase.name: phase for phase in seen.phases}
        names: list[str] = (record.options or {}).get("phases", [])
        return cls(
            id=str(record.id),
            status=Status.STALE if record.stale_at is not None else _STATUS[record.state],
            data=record.payload,
            attempts=record.attempt,
            progress=_progress(record),
            message=record.progress.message if record.progress else None,
            phases=[_phase(name, known.get(name), record) for name in names],
            webhook_sent=seen.webhook_sent,
            created_at=record.created_at,
            scheduled_at=record.run_at,
            finished_at=record.finished_at,
            result=record.result,
            error=_error(record),
        )


def _error(record: JobRecord) -> str | None:
    if not record.errors:
        return None
    error = record.errors[0]
    return str(error["message"]) if record.state is State.CANCELLED else f"{error['type']}: {error['message']}"


def _progress(record: JobRecord) -> int:
    if record.state is State.COMPLETED:
        return 100
    return (record.progress.overall or 0) if record.progress else 0


def _phase(name: str, known: PhaseRecord | None, record: JobRecord) -> Phase:
    if known is None:
        return Phase(name=name, status="pending")
    current = record.progress
    percent = (current.percent or 0.0) if current is not None and current.phase == name else 0.0
    progress = 100 if known.state is PhaseState.COMPLETED else percent
    return Phase(name=name, status=known.state.value, progress=progress, result=known.result)
