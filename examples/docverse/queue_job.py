"""A job in the host's own terms: the record that users and operators see."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from dutiful import Dutiful, JobRecord, PhaseRecord, State
from examples.docverse import public_ids

STATUS = {
    State.SCHEDULED: "queued",
    State.READY: "queued",
    State.BLOCKED: "queued",
    State.RUNNING: "in_progress",
    State.COMPLETED: "completed",
    State.COMPLETED_WITH_ERRORS: "completed_with_errors",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}
# What the items of a job's progress are; those of other kinds are editions. The view in queue_job.sql says the same.
ITEMS = {
    "dashboard_sync": "projects",
    "git_ref_audit": "projects",
    "lifecycle_eval": "orgs",
    "purgatory_cleanup": "orgs",
    "credential_reencrypt": "orgs",
}


@dataclass(frozen=True)
class QueueJob:
    """`org_id`, `project_id` and `build_id` are what the job is about; a periodic job has none of them."""

    id: UUID
    public_id: str
    backend_job_id: str | None
    kind: str
    status: str
    phase: str | None
    org_id: int | None
    project_id: int | None
    build_id: int | None
    progress: dict[str, Any] | None
    errors: list[dict[str, Any]] | None
    date_created: datetime
    date_started: datetime | None
    date_completed: datetime | None

    @classmethod
    def of(cls, job: JobRecord, phases: Sequence[PhaseRecord] = ()) -> "QueueJob":
        about: Mapping[str, Any] = job.subject or {}
        return cls(
            id=job.id,
            public_id=public_ids.spell_job(job.id),
            backend_job_id=job.backend_job_id,
            kind=job.kind,
            status=STATUS[job.state],
            phase=job.progress.phase if job.progress else None,
            org_id=about.get("org_id"),
            project_id=about.get("project_id"),
            build_id=about.get("build_id"),
            progress=_progress(job, phases),
            errors=_without_tracebacks(job.errors),
            date_created=job.created_at,
            date_started=job.started_at,
            date_completed=job.finished_at,
        )

    def shown(self) -> dict[str, Any]:
        """As the API answers; the internal id stays inside."""
        return {name: value for name, value in asdict(self).items() if name != "id"}


def _without_tracebacks(errors: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Members see what failed, and nothing of the host's code; operators have `dutiful jobs show --full`."""
    return None if errors is None else [{k: v for k, v in error.items() if k != "traceback"} for error in errors]


async def find_queue_job(app: Dutiful, public_id: str) -> QueueJob | None:
    """MalformedId if it is not the id of a job; None if there is none, or its record has expired."""
    found = await app.snapshot(public_id)
    return None if found is None else QueueJob.of(found.job, found.phases)


def _progress(job: JobRecord, phases: Sequence[PhaseRecord]) -> dict[str, Any] | None:
    if job.finished_at is not None:
        # What became of the editions stays to be seen when the job has gone on to its dashboard.
        for phase in phases:
            if phase.name == "editions" and phase.result is not None:
                return dict(phase.result)
    if job.progress is None:
        return None
    if (items := job.progress.items) is None:
        return {"message": job.progress.message} if job.progress.message is not None else None
    noun = ITEMS.get(job.kind, "editions")
    return {
        f"{noun}_total": items["total"],
        f"{noun}_completed": items["completed"],
        f"{noun}_skipped": [{"slug": item["item"], "reason": item["reason"]} for item in items["skipped"]],
        f"{noun}_failed": [{"slug": item["item"], "error": item["error"]} for item in items["failed"]],
        f"{noun}_in_progress": items["in_progress"],
    }
