"""Deletion of old jobs, as a job."""

import logging
from datetime import timedelta

from dutiful import Context, Inject, Rules
from examples.sports_sites.jobs import Jobs

log = logging.getLogger("register")
AGE = Rules(required={"days-old": int})


async def cleanup_jobs(ctx: Context, jobs: Jobs = Inject("jobs")) -> dict[str, int]:
    """Deletes jobs that ended long ago; open dead letters stay."""
    removed = await jobs.remove_finished(timedelta(days=ctx.payload["days-old"]))
    log.info("removed %d finished jobs", removed)
    return {"removed": removed}
