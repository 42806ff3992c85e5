"""The kinds that keep the host in order: template sync, and the four that a cron enqueues.

None is scheduled here: CronJobs run `dutiful enqueue KIND`, so that their times are a matter of the deployment.
"""

from typing import Any

from dutiful import Context, Dutiful, Inject, Retry
from examples.docverse.factory import Docverse
from examples.docverse.queue_records import expire
from examples.docverse.records import Org, Project
from examples.docverse.running_job import RunningJob
from examples.docverse.services.dashboard_sync import TemplateRefused

PERIODIC = ("lifecycle_eval", "git_ref_audit", "purgatory_cleanup", "credential_reencrypt")


def add_dashboard_sync(app: Dutiful, retry: Retry) -> None:
    kind = app.pipeline(
        "dashboard_sync",
        retry=Retry(max_attempts=retry.max_attempts, backoff=retry.backoff, per_error={TemplateRefused: None}),
        on_retry="restart",
    )

    @kind.phase
    async def dashboard(ctx: Context, template_ids: list[int], docverse: Docverse = Inject("docverse")) -> list[str]:
        commits = await docverse.dashboard_sync.sync(template_ids, RunningJob(ctx))

        async def render(project: Project) -> None:
            await docverse.dashboard_sync.render(project, RunningJob(ctx))

        # Projects have locks of their own, so they are rendered side by side.
        await ctx.each(await docverse.dashboard_sync.affected(template_ids), render, name=lambda project: project.slug)
        return commits


def add_periodic(app: Dutiful, retry: Retry) -> None:
    """Each goes through the organizations side by side; what fails in one stops no other."""

    @app.job(retry=retry)
    async def lifecycle_eval(ctx: Context, docverse: Docverse = Inject("docverse")) -> dict[str, Any]:
        results: dict[str, Any] = {}

        async def evaluate(org: Org) -> None:
            results[org.slug] = await docverse.lifecycle.evaluate(org, RunningJob(ctx))

        await ctx.each(await docverse.lifecycle.orgs(), evaluate, name=lambda org: org.slug)
        return results

    @app.job(retry=retry)
    async def git_ref_audit(ctx: Context, docverse: Docverse = Inject("docverse")) -> dict[str, Any]:
        results: dict[str, Any] = {}

        async def audit(project: Project) -> None:
            results[f"{project.org.slug}/{project.slug}"] = await docverse.ref_audit.audit(project, RunningJob(ctx))

        await ctx.each(
            await docverse.ref_audit.projects(), audit, name=lambda project: f"{project.org.slug}/{project.slug}"
        )
        return results

    @app.job(retry=retry)
    async def purgatory_cleanup(ctx: Context, docverse: Docverse = Inject("docverse")) -> dict[str, Any]:
        deleted: dict[str, int] = {}

        async def clean(org: Org) -> None:
            deleted[org.slug] = await docverse.purgatory.clean(org)

        await ctx.each(await docverse.lifecycle.orgs(), clean, name=lambda org: org.slug)
        return {"objects": deleted, "jobs": await expire(app, docverse.config.job_retention)}

    @app.job(retry=retry)
    async def credential_reencrypt(ctx: Context, docverse: Docverse = Inject("docverse")) -> dict[str, int]:
        rotated: dict[str, int] = {}

        async def reencrypt(org: Org) -> None:
            rotated[org.slug] = await docverse.reencryption.reencrypt(org)

        await ctx.each(await docverse.lifecycle.orgs(), reencrypt, name=lambda org: org.slug)
        return rotated
