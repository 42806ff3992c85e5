"""Jobs that belong together, over HTTP."""

from datetime import datetime

from pydantic import Field

from dutiful.core.family import Relation
from dutiful.core.transitions import State
from dutiful.web.gates import TheOperator
from dutiful.web.operations import Operations
from dutiful.web.shapes import PublicId, Shape, Text

tracing = Operations("Jobs", "/admin/trace")


class TraceError(Shape):
    type: str | None
    message: str | None
    error_class: str | None


class TraceJob(Shape):
    job_id: PublicId
    job_type: str
    status: State
    queue: str
    tenant: str | None
    attempt_count: int
    max_attempts: int
    created_at: datetime
    created_by: str | None
    scheduled_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    parent_id: PublicId | None
    retry_of: PublicId | None
    error: TraceError | None = Field(description="The last one.")
    under: PublicId | None = Field(description="The job of this answer that it is a child or a retry of.")
    relation: Relation | None
    depth: int = Field(description="How many stand above it.")


class Trace(Shape):
    correlation_id: str
    jobs: list[TraceJob] = Field(description="In the order in which they were made.")
    cut: bool = Field(description="There are more; these are the newest, and jobs that they come from.")


@tracing.read("/{correlation_id:path}/")
async def trace_jobs(operator: TheOperator, correlation_id: Text) -> Trace:
    """Tell of all jobs with one correlation id, or with that of the job whose id is given, as a tree."""
    family = await operator.trace(correlation_id)
    jobs = [
        TraceJob(
            job_id=one.id,
            job_type=one.kind,
            status=one.state,
            queue=one.queue,
            tenant=one.tenant,
            attempt_count=one.attempt,
            max_attempts=one.max_attempts,
            created_at=one.created_at,
            created_by=one.created_by,
            scheduled_at=one.run_at,
            started_at=one.started_at,
            finished_at=one.finished_at,
            parent_id=one.parent_id,
            retry_of=one.retry_of,
            error=None if one.error is None else TraceError(**_error(one.error)),
            under=one.under,
            relation=one.relation,
            depth=one.depth,
        )
        for one in family.members
    ]
    return Trace(correlation_id=family.correlation_id, jobs=jobs, cut=family.cut)


def _error(error: dict[str, str | None]) -> dict[str, str | None]:
    return {"type": error["type"], "message": error["message"], "error_class": error["class"]}
