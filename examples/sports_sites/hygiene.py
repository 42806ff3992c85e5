"""The queue's own house-keeping, as one of its jobs."""

from datetime import timedelta

from dutiful import Context, Inject, Rules
from examples.sports_sites.jobs import Jobs

AGE = Rules(required={"days-old": int})


async def cleanup_jobs(ctx: Context, jobs: Jobs = Inject("jobs")) -> dict[str, int]:
    """Jobs that ended long ago go; dead letters that nobody has decided on stay."""
    return {"removed": await jobs.remove_finished(timedelta(days=ctx.payload["days-old"]))}
