"""Jobs over HTTP: list them, enqueue one, show it, and act on it."""

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from msgspec.structs import replace
from pydantic import Field

from dutiful.app import Dutiful
from dutiful.core.correlation_tree import Relation
from dutiful.core.duration import duration
from dutiful.core.errors import IllegalTransition, JobNotFound
from dutiful.core.job import JobRecord, OnConflict, OnFailure, Scope, Unique
from dutiful.core.states import State
from dutiful.operator import Operator
from dutiful.operator.encryption import OpenedJob
from dutiful.store.queries import JobFilter, JobPage
from dutiful.web import listing
from dutiful.web.admission import AppDep, OperatorDep
from dutiful.web.api import job_shapes as shapes
from dutiful.web.operations import Operations
from dutiful.web.problems import field_problem
from dutiful.web.shapes import NO_REASON, Ask, JobId, Length, LongText, Moment, PublicId, Reason, Shape, Text

LONGEST = 10 * 365 * 24 * 3600
LIST = "queue"
queue = Operations("Queue", "/admin/queue")  # lists jobs; a requirement names the path
jobs = Operations("Jobs", "/admin/jobs")


@queue.read("/")
async def list_queue(
    operator: OperatorDep, app: AppDep, query: Annotated[shapes.QueueQuery, Query()]
) -> shapes.QueuePage:
    """List jobs, the newest first.

    A page with fewer jobs than asked for, even none, is not the last one as long as it has a next_cursor.
    """
    try:
        before = None if query.cursor is None else listing.read_id(LIST, query.cursor)
    except listing.BadCursor as error:
        raise field_problem("cursor", str(error)) from None
    page = await in_states(operator, query.read(app, before), query.status)
    return shapes.QueuePage(
        jobs=[shapes.item(job, app) for job in page],
        next_cursor=None if page.next is None else listing.of_id(LIST, page.next),
        window=shapes.Window(since=page.searched_since or query.since, until=query.until),
    )


async def in_states(operator: Operator, wanted: JobFilter, states: list[State]) -> JobPage:
    """One page of jobs in any of these states, merged from a page of each."""
    if len(states) < 2:
        return await operator.jobs.search(replace(wanted, state=states[0] if states else None))
    pages = [await operator.jobs.search(replace(wanted, state=state)) for state in dict.fromkeys(states)]
    # Only as far as every page has searched; beyond that, one may have jobs that it has not returned yet.
    end = max((page.next for page in pages if page.next is not None), default=None)
    jobs = sorted((job for page in pages for job in page if end is None or job.id >= end), key=_id, reverse=True)
    if len(jobs) > wanted.limit:
        jobs = jobs[: wanted.limit]
        end = jobs[-1].id
    since = max((page.searched_since for page in pages if page.searched_since is not None), default=None)
    return JobPage(jobs, end, since)


def _id(job: JobRecord) -> UUID:
    return job.id


class UniqueAsk(Ask):
    """A key that only one job may hold, and what happens to a second one."""

    key: Text
    scope: Scope = Unique("").scope
    on_conflict: OnConflict = Unique("").on_conflict
    window_seconds: float | None = Field(default=None, gt=0, le=LONGEST)
    across_kinds: bool = False

    def read(self) -> Unique:
        window = None if self.window_seconds is None else timedelta(seconds=self.window_seconds)
        return Unique(self.key, self.scope, self.on_conflict, window, self.across_kinds)


class OptionsAsk(Ask):
    """Options that differ from those of the kind."""

    queue: Text | None = None
    priority: int | None = Field(default=None, ge=0, le=2_147_483_647, description="Lower runs first.")
    run_at: Moment | None = None
    delay_seconds: float | None = Field(default=None, ge=0, le=LONGEST, description="Instead of run_at.")
    unique: UniqueAsk | None = None
    tenant: Text | None = None
    correlation_id: Text | None = None
    subject: dict[str, Any] | None = Field(default=None, examples=[{"order": 7}])
    max_attempts: int | None = Field(default=None, ge=1, le=2_147_483_647)
    depends_on: list[JobId] = Field(default=[], max_length=100)
    on_failure: OnFailure | None = Field(
        default=None, description="What happens to it if one of depends_on fails or is cancelled: cancel, the default."
    )

    def read(self) -> dict[str, Any]:
        given = {name: value for name, value in self if value is not None and value != []}
        if self.delay_seconds is not None:
            given["delay"] = timedelta(seconds=given.pop("delay_seconds"))
        if self.unique is not None:
            given["unique"] = self.unique.read()
        return given


class EnqueueAsk(Ask):
    kind: Text = Field(examples=["email_ingestion_fetch"])
    payload: dict[str, Any] = Field(default={}, examples=[{"connection_id": 456}])
    options: OptionsAsk = OptionsAsk()
    reason: LongText | None = None


class EnqueueAnswer(Shape):
    job_id: PublicId
    created: bool = Field(description="false: another job holds the key, and is returned instead.")


@jobs.act("/", "job.enqueue", status=201)
async def enqueue_job(operator: OperatorDep, ask: EnqueueAsk) -> EnqueueAnswer:
    """Enqueue a job, checked like one that code enqueues; 409 names the job that holds its key."""
    done = await operator.jobs.enqueue(ask.kind, ask.payload, ask.reason, **ask.options.read())
    return EnqueueAnswer(job_id=done.job_id, created=done.made)


@jobs.read("/{job_id}/")
async def get_job(operator: OperatorDep, app: AppDep, job_id: JobId) -> shapes.JobDetail:
    """Show everything about one job, and why it is in its state."""
    job, past = await operator.jobs.get(job_id), await operator.jobs.attempts(job_id)
    phases, steps = await operator.jobs.phases(job_id), await operator.jobs.steps(job_id)
    return await _detailed(operator, app, OpenedJob(job, past, phases, steps))


@jobs.act("/{job_id}/open/", "job.open", target="job_id")
async def open_job(operator: OperatorDep, app: AppDep, job_id: JobId, ask: Reason = NO_REASON) -> shapes.JobDetail:
    """Show everything about one job with what is sealed of it opened, by the keys of this server."""
    return await _detailed(operator, app, await operator.encryption.open(job_id, ask.reason))


async def _detailed(operator: Operator, app: Dutiful, found: OpenedJob) -> shapes.JobDetail:
    job_id = found.job.id
    needs = await operator.jobs.dependencies(job_id)
    return shapes.detail(
        found.job,
        app,
        why=shapes.Why.model_validate(await operator.jobs.explain(job_id)),
        attempts=[shapes.Attempt.model_validate(one) for one in found.attempts],
        phases=[shapes.Phase.model_validate(one) for one in found.phases],
        steps=[shapes.Step.model_validate(one) for one in found.steps],
        depends_on=[shapes.Need(job_id=need.id, job_type=need.kind, status=need.state) for need in needs],
        webhooks=[shapes.Post.model_validate(one) for one in await operator.jobs.posts(job_id)],
    )


@jobs.act("/{job_id}/cancel/", "job.cancel", target="job_id")
async def cancel_job(operator: OperatorDep, job_id: JobId, ask: Reason = NO_REASON) -> shapes.CancelAnswer:
    """Cancel a waiting job, or ask a running one to stop."""
    done = await operator.jobs.cancel(job_id, ask.reason)
    return shapes.CancelAnswer(job_id=job_id, status=done.state, changed=done.changed, requested=done.requested)


@jobs.act("/{job_id}/fail/", "job.fail", target="job_id")
async def fail_job(operator: OperatorDep, job_id: JobId, ask: shapes.FailAsk = shapes.NO_RETRY) -> shapes.FailAnswer:
    """Make it a dead letter, whether it waits or runs; with `retry`, only fail its attempt, or its next one."""
    return shapes.FailAnswer(job_id=job_id, status=await operator.jobs.fail(job_id, ask.reason, retry=ask.retry))


@jobs.act("/{job_id}/retry/", "job.retry", target="job_id")
async def retry_job(operator: OperatorDep, job_id: JobId, ask: Reason = NO_REASON) -> shapes.RetryAnswer:
    """Run a finished job again as a new one, or make a scheduled one due now."""
    done = await operator.jobs.retry(job_id, ask.reason)
    return shapes.RetryAnswer(job_id=done.job_id, status=done.state, made=done.made)


stuck = Operations("Jobs", "/admin/jobs")


class StuckQuery(Ask):
    older_than: Length = Field(default="1h", description="Only jobs that have been running for longer than this.")
    kind: Text | None = None


class StuckJob(Shape):
    job_id: PublicId = Field(validation_alias="id")
    job_type: str = Field(validation_alias="kind")
    status: State = Field(validation_alias="state")
    attempts: int = Field(validation_alias="attempt")
    created_at: datetime
    started_at: datetime | None
    worker_id: UUID | None = Field(examples=["0198a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"])


class StuckJobs(Shape):
    jobs: list[StuckJob]


class ReleaseAsk(Reason):
    """The reason, and which jobs: those that have been running for longer than this, of one kind or of any."""

    # Required, as on the command line, so that none is released by mistake.
    older_than: Length = Field(examples=["1h"], json_schema_extra={"pattern": r"^[0-9]+(\.[0-9]+)?(d|h|m|s|ms)"})
    kind: Text | None = Field(default=None, examples=["email_ingestion_fetch"])


class ReleaseAnswer(Shape):
    job_id: PublicId
    status: State


class ReleasedJobs(Shape):
    released: list[ReleaseAnswer]


@stuck.read("/stuck/")
async def list_stuck_jobs(operator: OperatorDep, query: Annotated[StuckQuery, Query()]) -> StuckJobs:
    """List jobs that have been running for long, the longest first."""
    found = await operator.jobs.stuck(duration(query.older_than), kind=query.kind)
    return StuckJobs(jobs=[StuckJob.model_validate(job) for job in found])


@stuck.act("/release/", "job.release")
async def release_jobs(operator: OperatorDep, ask: ReleaseAsk) -> ReleasedJobs:
    """Make jobs ready again that have been running for long, their attempts not counted."""
    length = duration(ask.older_than)
    released = []
    for job in await operator.jobs.stuck(length, kind=ask.kind):
        try:
            record = await operator.jobs.release(job.id, ask.reason, older_than=length)
        except (IllegalTransition, JobNotFound):
            continue  # it has ended meanwhile, or was asked to stop
        released.append(ReleaseAnswer(job_id=job.id, status=record.state))
    return ReleasedJobs(released=released)


@stuck.act("/{job_id}/release/", "job.release", target="job_id")
async def release_job(operator: OperatorDep, job_id: JobId, ask: Reason = NO_REASON) -> ReleaseAnswer:
    """Make a running job ready again, its attempt not counted; a later outcome of its worker is refused."""
    return ReleaseAnswer(job_id=job_id, status=(await operator.jobs.release(job_id, ask.reason)).state)


trace = Operations("Jobs", "/admin/trace")


class TraceError(Shape):
    type: str | None
    message: str | None
    error_class: str | None = Field(validation_alias="class")


class TraceNeed(Shape):
    job_id: PublicId = Field(validation_alias="id")
    on_failure: OnFailure = Field(description="What happens if that job fails or is cancelled.")


class TraceJob(Shape):
    job_id: PublicId = Field(validation_alias="id")
    job_type: str = Field(validation_alias="kind")
    status: State = Field(validation_alias="state")
    queue: str
    tenant: str | None
    attempt_count: int = Field(validation_alias="attempt")
    max_attempts: int
    created_at: datetime
    created_by: str | None
    scheduled_at: datetime | None = Field(validation_alias="run_at")
    started_at: datetime | None
    finished_at: datetime | None
    parent_id: PublicId | None
    retry_of: PublicId | None
    error: TraceError | None = Field(description="The last one.")
    needs: list[TraceNeed] = Field(description="The jobs that it depends on; of very many, the newest.")
    needs_total: int = Field(description="How many jobs it depends on.")
    under: PublicId | None = Field(description="The job in this answer of which it is a child or a retry, or after it.")
    relation: Relation | None
    depth: int = Field(description="The number of its ancestors in this answer.")


class TraceProgress(Shape):
    total: int
    percent: int = Field(description="How many of a hundred jobs have ended.")
    states: dict[str, int]
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None = Field(description="null while not all have ended.")


class Trace(Shape):
    correlation_id: str
    progress: TraceProgress
    jobs: list[TraceJob] = Field(description="In the order of their creation.")
    cut: bool = Field(description="There are more: these failed first, or are above those, the oldest, or the newest.")


@trace.read("/{correlation_id:path}/")
async def trace_jobs(operator: OperatorDep, correlation_id: Text) -> Trace:
    """Show all jobs with a correlation id, or with that of the job whose id is given, as a tree."""
    tree = await operator.trace.find(correlation_id)
    jobs = [TraceJob.model_validate(member) for member in tree.members]
    progress = TraceProgress.model_validate(await operator.trees.progress(tree.correlation_id))
    return Trace(correlation_id=tree.correlation_id, progress=progress, jobs=jobs, cut=tree.cut)


class TreeCancelAnswer(Shape):
    jobs: int = Field(description="How many were cancelled, or asked to stop.")


class TreeRetryAsk(Reason):
    cancelled: bool = Field(default=False, description="Also jobs that were cancelled by hand.")


class TreeRetriedJob(Shape):
    job_id: PublicId
    retry_of: PublicId


class TreeRetryAnswer(Shape):
    jobs: list[TreeRetriedJob]


@trace.act("/{correlation_id:path}/cancel/", "job.cancel_tree", target="correlation_id")
async def cancel_tree(operator: OperatorDep, correlation_id: Text, ask: Reason = NO_REASON) -> TreeCancelAnswer:
    """Cancel all jobs of a tree that have not ended."""
    return TreeCancelAnswer(jobs=await operator.trees.cancel(correlation_id, ask.reason))


@trace.act("/{correlation_id:path}/retry/", "job.retry_tree", target="correlation_id")
async def retry_tree(operator: OperatorDep, correlation_id: Text, ask: TreeRetryAsk) -> TreeRetryAnswer:
    """Run again what failed in a tree, and what was cancelled because of it."""
    done = await operator.trees.retry(correlation_id, ask.reason, cancelled=ask.cancelled)
    return TreeRetryAnswer(jobs=[TreeRetriedJob(job_id=new, retry_of=old) for old, new in done.jobs.items()])
