"""Jobs that run for too long over HTTP: to list them, and to put them back in line."""

from datetime import datetime
from typing import Annotated

from fastapi import Query
from pydantic import Field

from dutiful.core.duration import duration
from dutiful.core.errors import IllegalTransition, JobNotFound
from dutiful.core.job import JobRecord
from dutiful.core.transitions import State
from dutiful.web.gates import TheOperator
from dutiful.web.operations import Operations
from dutiful.web.shapes import NO_REASON, Ask, JobId, Length, PublicId, Reason, Shape, Text

stuck = Operations("Jobs", "/admin/jobs")


class StuckQuery(Ask):
    older_than: Length = Field(default="1h", description="Those that have been running for longer than this.")
    kind: Text | None = None


class StuckJob(Shape):
    job_id: PublicId
    job_type: str
    status: State = State.RUNNING
    attempts: int
    created_at: datetime
    started_at: datetime | None
    worker_id: str | None = Field(examples=["0198a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"])


class StuckJobs(Shape):
    jobs: list[StuckJob]


class ReleaseAsk(Reason):
    """Why, and which: those that have been running for longer than this, of one kind or of any."""

    # To be said, as on the command line: whoever forgets it would release more than they know.
    older_than: Length = Field(examples=["1h"], json_schema_extra={"pattern": r"^[0-9]+(\.[0-9]+)?(d|h|m|s|ms)"})
    kind: Text | None = Field(default=None, examples=["email_ingestion_fetch"])


class ReleaseAnswer(Shape):
    job_id: PublicId
    status: State


class ReleasedJobs(Shape):
    released: list[ReleaseAnswer]


@stuck.read("/stuck/")
async def list_stuck_jobs(operator: TheOperator, query: Annotated[StuckQuery, Query()]) -> StuckJobs:
    """List jobs that have been running for long, the longest first."""
    found = await operator.stuck(duration(query.older_than), kind=query.kind)
    return StuckJobs(jobs=[_stuck(job) for job in found])


@stuck.act("/release/", "job.release")
async def release_jobs(operator: TheOperator, ask: ReleaseAsk) -> ReleasedJobs:
    """Put jobs that have been running for long back in line, their attempts unspent."""
    length = duration(ask.older_than)
    released = []
    for job in await operator.stuck(length, kind=ask.kind):
        try:
            record = await operator.release(job.id, ask.reason, older_than=length)
        except (IllegalTransition, JobNotFound):
            continue  # it has ended meanwhile, or is to stop: then there is nothing to release
        released.append(ReleaseAnswer(job_id=job.id, status=record.state))
    return ReleasedJobs(released=released)


@stuck.act("/{job_id}/release/", "job.release", target="job_id")
async def release_job(operator: TheOperator, job_id: JobId, ask: Reason = NO_REASON) -> ReleaseAnswer:
    """Put a running job back in line, its attempt unspent; what its worker says of it later is refused."""
    return ReleaseAnswer(job_id=job_id, status=(await operator.release(job_id, ask.reason)).state)


def _stuck(job: JobRecord) -> StuckJob:
    return StuckJob(
        job_id=job.id,
        job_type=job.kind,
        attempts=job.attempt,
        created_at=job.created_at,
        started_at=job.started_at,
        worker_id=None if job.worker_id is None else str(job.worker_id),
    )
