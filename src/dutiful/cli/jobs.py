"""`jobs`: list, show, cancel and retry them."""

from typing import Annotated
from uuid import UUID

import typer

from dutiful.cli import FAILURE
from dutiful.cli.job_page import job_page, page_json
from dutiful.cli.output import AsJson, Reason, ago, both_ids, job_json, note, print_json, print_table
from dutiful.cli.target import run
from dutiful.client import Client
from dutiful.core import ids
from dutiful.core.errors import JobNotFound
from dutiful.core.job import JobRecord
from dutiful.core.transitions import State
from dutiful.operator import Operator
from dutiful.store import CancelResult, JobFilter

jobs = typer.Typer(help="Look at jobs, cancel them, run them again.", no_args_is_help=True)
JobId = Annotated[str, typer.Argument(metavar="ID", help="A job's id, in either spelling.")]
MOST = 1_000


def register(cli: typer.Typer) -> None:
    cli.add_typer(jobs, name="jobs", rich_help_panel="Jobs")


@jobs.command("list")
def list_jobs(
    ctx: typer.Context,
    state: Annotated[State | None, typer.Option(help="Only jobs in this state.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only jobs of this kind.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only jobs of this tenant.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Only jobs that belong to this.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="How many at most.")] = 50,
    before: Annotated[
        str | None, typer.Option(metavar="ID", help="Only jobs older than this one: the last of the page before.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first.

    \b
    Examples:
      dutiful jobs list --state failed
      dutiful jobs list --kind send_email --limit 10 --json
    """
    wanted = JobFilter(
        state=state,
        kind=kind,
        queue=queue,
        tenant=tenant,
        correlation_id=correlation_id,
        before=None if before is None else ids.parse_any(before),
        limit=limit,
    )
    found = run(ctx, lambda client: client.store.jobs(wanted))
    if as_json:
        # A full page may have been the last one: then the next one is empty.
        following = both_ids("id", found[-1].id)["id"] if len(found) == limit else None
        print_json({"jobs": [job_json(job) for job in found], "next_before": following})
        return
    print_table(
        ("id", "kind", "queue", "state", "tries#", "made", "due or ended"),
        ((ids.public(j.id), j.kind, j.queue, j.state.value, _tries(j), ago(j.created_at), _moment(j)) for j in found),
        empty="no jobs",
    )
    if len(found) == limit:
        note(f"there may be more: --before {ids.public(found[-1].id)}")


@jobs.command()
def show(
    ctx: typer.Context,
    job_id: JobId,
    full: Annotated[bool, typer.Option("--full", help="With tracebacks, and nothing cut.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tell everything about one job, and why it is not running if it is not.

    \b
    Examples:
      dutiful jobs show 01JCPZ5-…
      dutiful jobs show 0193a1b2-… --full
    """
    page = run(ctx, lambda client: job_page(client, ids.parse_any(job_id)))
    if as_json:
        print_json(page_json(page))
    else:
        page.print(full=full)


@jobs.command()
def cancel(
    ctx: typer.Context,
    job_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The jobs' ids, in either spelling.")],
    reason: Reason = None,
) -> None:
    """Cancel jobs that wait; ask those that run to stop.

    \b
    Examples:
      dutiful jobs cancel 01JCPZ5-… --reason "sent by hand"
    """
    wanted = [ids.parse_any(job_id) for job_id in job_ids]
    results = run(ctx, lambda client: _cancel_all(client, wanted, reason))
    for job_id, result in results:
        typer.echo(f"{ids.public(job_id)}  {_cancelled(result)}")
    if any(result is None for _, result in results):
        raise typer.Exit(FAILURE)


async def _cancel_all(
    client: Client, job_ids: list[UUID], reason: str | None
) -> list[tuple[UUID, CancelResult | None]]:
    operator = Operator(client)
    results: list[tuple[UUID, CancelResult | None]] = []
    for job_id in job_ids:
        try:
            results.append((job_id, await operator.cancel(job_id, reason)))
        except JobNotFound:
            results.append((job_id, None))
    return results


def _cancelled(result: CancelResult | None) -> str:
    if result is None:
        return "not found: it never was, or retention has removed it"
    if result.requested:
        return "running: asked to stop" if result.changed else "running: was asked to stop before"
    return "cancelled" if result.changed else f"had ended before: {result.state}"


@jobs.command()
def retry(ctx: typer.Context, job_id: JobId, reason: Reason = None) -> None:
    """Run a finished job again as a new one, or make a scheduled one due now.

    The new job has the payload, queue, priority, tenant and correlation id of the old one, and points back to it.

    \b
    Examples:
      dutiful jobs retry 01JCPZ5-…
    """
    wanted = ids.parse_any(job_id)
    retried = run(ctx, lambda client: Operator(client).retry(wanted, reason))
    typer.echo(ids.public(retried.job_id))
    if retried.made:
        note(f"a new job, {retried.state}; it is a retry of {ids.public(wanted)}")
    elif retried.job_id == wanted:
        note(f"it is due now, and {retried.state}")
    else:
        note(f"an earlier retry of this job is {retried.state} still; no other was made")


def _tries(job: JobRecord) -> str:
    return f"{job.attempt}/{job.max_attempts}"


def _moment(job: JobRecord) -> str | None:
    if job.finished_at is not None:
        return f"ended {ago(job.finished_at)}"
    if job.state is State.RUNNING:
        return f"started {ago(job.started_at)}"
    return f"due {ago(job.run_at)}" if job.run_at is not None else None
