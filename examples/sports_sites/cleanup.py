"""Deletion of old jobs, as a job."""

from datetime import timedelta

from dutiful import Context, Inject, Rules
from examples.sports_sites.jobs import Jobs

AGE = Rules(required={"days-old": int})


async def cleanup_jobs(ctx: Context, jobs: Jobs = Inject("jobs")) -> dict[str, int]:
    """Deletes jobs that ended long ago; open dead letters stay."""
    return {"removed": await jobs.remove_finished(timedelta(days=ctx.payload["days-old"]))}
