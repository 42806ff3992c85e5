"""`jobs stuck` and `jobs release`: jobs that run for too long."""

from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import typer

from dutiful.cli import FAILURE
from dutiful.cli.options import AsJson, Reason, Tenant
from dutiful.cli.output.job_details import worker_name, worker_names
from dutiful.cli.output.printing import ago, job_json, note, print_json, print_table, say
from dutiful.cli.target import operate
from dutiful.core import ids
from dutiful.core.duration import brief, duration
from dutiful.core.errors import IllegalTransition, JobNotFound, UsageError
from dutiful.core.job import JobRecord
from dutiful.operator import Operator
from dutiful.store.control import PauseScope

Kind = Annotated[str | None, typer.Option(help="Only jobs of this kind.")]
LENGTH = "Only jobs that have been running for longer than this."


def register(jobs: typer.Typer) -> None:
    jobs.command()(stuck)
    jobs.command()(release)


def stuck(
    ctx: typer.Context,
    older_than: Annotated[str, typer.Option(metavar="TIME", help=LENGTH)] = "1h",
    kind: Kind = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """List jobs that have been running for long, the longest first.

    \b
    Examples:
      dutiful jobs stuck
      dutiful jobs stuck --older-than 15m --kind send_email
    """
    length = duration(older_than, "--older-than")

    async def work(operator: Operator) -> tuple[list[JobRecord], dict[UUID, str]]:
        return await _stuck(operator, length, kind), await worker_names(operator)

    found, names = operate(ctx, work, tenant)
    if as_json:
        listed = [{**job_json(job, details=False), "worker": worker_name(job.worker_id, names)} for job in found]
        print_json({"jobs": listed})
        return
    print_table(
        ("id", "kind", "state", "tries#", "made", "started", "worker"),
        (
            (
                ids.public(job.id),
                job.kind,
                job.state.value,
                f"{job.attempt}/{job.max_attempts}",
                ago(job.created_at),
                ago(job.started_at),
                worker_name(job.worker_id, names),
            )
            for job in found
        ),
        empty=_none(length),
    )


def release(
    ctx: typer.Context,
    job_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="The jobs' ids, in either spelling.")
    ] = None,
    older_than: Annotated[str | None, typer.Option(metavar="TIME", help=LENGTH)] = None,
    kind: Kind = None,
    reason: Reason = None,
    tenant: Tenant = None,
) -> None:
    """Make running jobs ready again, their attempts not counted: those named, or all that have run for long.

    The worker loses its claim, so its outcome is refused. A handler that cannot be stopped runs on meanwhile, so the
    job may run twice at a time. Any worker may take it next, also the same one; to prevent that, pause the kind or
    stop that worker first.

    \b
    Examples:
      dutiful jobs release --older-than 1h --reason "the worker hangs"
      dutiful jobs release 01JCPZ5-…
    """
    wanted = [ids.parse_any(job_id) for job_id in job_ids or []]
    if wanted and kind is not None:
        raise UsageError("--kind is for jobs that are not named; leave it or the ids out")
    if not wanted and older_than is None:
        raise UsageError("say which: the ids of running jobs, or all that run for long, as in --older-than 1h")
    length = timedelta(0) if older_than is None else duration(older_than, "--older-than")

    async def work(operator: Operator) -> list[tuple[UUID, Any]]:
        chosen = wanted or [job.id for job in await _stuck(operator, length, kind)]
        return [(job_id, await _release(operator, job_id, reason, length)) for job_id in chosen]

    done = operate(ctx, work, tenant)
    for job_id, outcome in done:
        say(f"{ids.public(job_id)}  {outcome if isinstance(outcome, str) else f'released: {outcome.state}'}")
    if not done:
        say(_none(length))
    released = sum(not isinstance(outcome, str) for _, outcome in done)
    if released:
        note("a handler that cannot be stopped runs on for a while; its result is refused")
    if released < len(wanted):
        raise typer.Exit(FAILURE)


async def _stuck(operator: Operator, length: timedelta, kind: str | None) -> list[JobRecord]:
    found = await operator.jobs.stuck(length, kind=kind)
    # The kinds of other tenants are hidden from a tenant.
    if (
        not found
        and kind is not None
        and operator.tenant is None
        and not await operator.fleet.knows(PauseScope.KIND, kind)
    ):
        note(f"note: no live worker or job has the kind {kind}; check the spelling")
    return found


def _none(length: timedelta) -> str:
    return f"no job has been running for {brief(length)}" if length else "no job is running"


async def _release(operator: Operator, job_id: UUID, reason: str | None, length: timedelta) -> JobRecord | str:
    try:
        return await operator.jobs.release(job_id, reason, older_than=length)
    except (IllegalTransition, JobNotFound) as error:
        return f"not released: {error}"
