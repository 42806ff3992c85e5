"""One job over HTTP: everything about it, and the acts of a person on it."""

from dutiful.web.api import job_shapes as shapes
from dutiful.web.gates import TheApp, TheOperator
from dutiful.web.operations import Operations
from dutiful.web.shapes import NO_REASON, JobId, Reason

jobs = Operations("Jobs", "/admin/jobs")


@jobs.read("/{job_id}/")
async def get_job(operator: TheOperator, app: TheApp, job_id: JobId) -> shapes.JobDetail:
    """Tell everything about one job, and why it stands where it stands."""
    job = await operator.job(job_id)
    needs = await operator.needs(job_id)
    return shapes.detail(
        job,
        app,
        why=shapes.Why.model_validate(await operator.explain(job_id)),
        attempts=[shapes.Attempt.model_validate(one) for one in await operator.attempts(job_id)],
        phases=[shapes.Phase.model_validate(one) for one in await operator.phases(job_id)],
        depends_on=[shapes.Need(job_id=need.id, job_type=need.kind, status=need.state) for need in needs],
        webhooks=[shapes.Post.model_validate(one) for one in await operator.posts_of(job_id)],
    )


@jobs.act("/{job_id}/cancel/", "job.cancel", target="job_id")
async def cancel_job(operator: TheOperator, job_id: JobId, ask: Reason = NO_REASON) -> shapes.CancelAnswer:
    """Cancel it if it waits, ask it to stop if it runs."""
    done = await operator.cancel(job_id, ask.reason)
    return shapes.CancelAnswer(job_id=job_id, status=done.state, changed=done.changed, requested=done.requested)


@jobs.act("/{job_id}/fail/", "job.fail", target="job_id")
async def fail_job(operator: TheOperator, job_id: JobId, ask: shapes.FailAsk = shapes.NO_RETRY) -> shapes.FailAnswer:
    """Make it a dead letter, whether it waits or runs; with `retry`, only end the attempt that runs as failed."""
    return shapes.FailAnswer(job_id=job_id, status=await operator.fail(job_id, ask.reason, retry=ask.retry))


@jobs.act("/{job_id}/retry/", "job.retry", target="job_id")
async def retry_job(operator: TheOperator, job_id: JobId, ask: Reason = NO_REASON) -> shapes.RetryAnswer:
    """Run a finished job again as a new one, or make a scheduled one due now."""
    done = await operator.retry(job_id, ask.reason)
    return shapes.RetryAnswer(job_id=done.job_id, status=done.state, made=done.made)
