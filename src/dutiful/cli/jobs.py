"""`jobs`: list, show, cancel, fail, retry and delete them; and those that run for too long."""

from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer

from dutiful.acting import CancelResult
from dutiful.cli import FAILURE, stuck
from dutiful.cli.job_page import job_page, page_json
from dutiful.cli.moment import moment
from dutiful.cli.output import (
    AsJson,
    Reason,
    Tenant,
    ago,
    both_ids,
    error_text,
    job_json,
    note,
    print_json,
    print_table,
    when,
)
from dutiful.cli.target import operate
from dutiful.core import ids
from dutiful.core.duration import duration
from dutiful.core.error_class import ErrorClass
from dutiful.core.errors import JobNotFound, UsageError
from dutiful.core.job import JobRecord
from dutiful.core.transitions import State
from dutiful.operator import Operator
from dutiful.reading import JobFilter

jobs = typer.Typer(help="Look at jobs, cancel or fail them, run them again.", no_args_is_help=True)
stuck.register(jobs)
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
    subject: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only jobs about this; the value is JSON or plain text."),
    ] = None,
    error_class: Annotated[
        str | None,
        typer.Option(
            help="Only jobs whose last error is of this class: that of their end or, if they have not ended, that of "
            "the attempt before."
        ),
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Only jobs with this in payload, subject or errors, the last attempt's too.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only jobs made since then: a time, or how long ago, as in 2h.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Only jobs made before then.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="How many at most.")] = 50,
    before: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on from here: what the page before has told.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first.

    What no index serves, such as a text, is looked for among some thousand jobs at a time; then the page says how far
    it has come, and how to go on.

    \b
    Examples:
      dutiful jobs list --state failed --since 2h
      dutiful jobs list --subject order=17 --text timeout
      dutiful jobs list --kind send_email --limit 10 --json
    """
    wanted = JobFilter(
        state=state,
        kind=kind,
        queue=queue,
        tenant=tenant,
        correlation_id=correlation_id,
        subject=_subject(subject or []),
        error_class=None if error_class is None else _error_class(error_class),
        text=text,
        since=moment(since, "--since"),
        until=moment(until, "--until"),
        before=None if before is None else ids.parse_any(before),
        limit=limit,
    )
    found = operate(ctx, lambda operator: operator.jobs(wanted))
    if as_json:
        following = both_ids("id", found.next)["id"]
        listed = [job_json(job) for job in found]
        print_json({"jobs": listed, "next_before": following, "searched_since": found.searched_since})
        return
    tenants = any(j.tenant is not None for j in found)
    errors = any(j.error is not None for j in found)
    print_table(
        (
            "id",
            *(["tenant"] if tenants else []),
            "kind",
            "queue",
            "state",
            "tries#",
            "made",
            "due or ended",
            *(["class", "error"] if errors else []),
        ),
        (
            (
                ids.public(j.id),
                *([j.tenant] if tenants else []),
                j.kind,
                j.queue,
                j.state.value,
                _tries(j),
                ago(j.created_at),
                _moment(j),
                *([(j.error or {}).get("class"), error_text(j.error)] if errors else []),
            )
            for j in found
        ),
        empty="no jobs" if found.next is None else "no jobs so far",
    )
    if found.next is not None:
        looked = "" if len(found) == limit else f"looked back to {when(found.searched_since)}; "
        note(f"{looked}there may be more: --before {ids.public(found.next)}")


def _subject(pairs: list[str]) -> dict[str, Any] | None:
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--subject {pair!r} is not a key=value pair, as in order=17")
        try:
            fields[name] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            fields[name] = text
    return fields or None


def _error_class(name: str) -> str:
    try:
        return ErrorClass(name).value
    except ValueError:
        raise UsageError(f"--error-class {name!r} is not one of {', '.join(ErrorClass)}") from None


@jobs.command()
def show(
    ctx: typer.Context,
    job_id: JobId,
    full: Annotated[bool, typer.Option("--full", help="With tracebacks, and nothing cut.")] = False,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Tell everything about one job, and why it is not running if it is not.

    \b
    Examples:
      dutiful jobs show 01JCPZ5-…
      dutiful jobs show 0193a1b2-… --full
    """
    wanted = ids.parse_any(job_id)
    page = operate(ctx, lambda operator: job_page(operator, wanted), tenant)
    if as_json:
        print_json(page_json(page))
    else:
        page.print(full=full)


@jobs.command()
def cancel(
    ctx: typer.Context,
    job_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The jobs' ids, in either spelling.")],
    reason: Reason = None,
    tenant: Tenant = None,
) -> None:
    """Cancel jobs that wait; ask those that run to stop.

    \b
    Examples:
      dutiful jobs cancel 01JCPZ5-… --reason "sent by hand"
    """
    wanted = [ids.parse_any(job_id) for job_id in job_ids]
    results = operate(ctx, lambda operator: _cancel_all(operator, wanted, reason), tenant)
    for job_id, result in results:
        typer.echo(f"{ids.public(job_id)}  {_cancelled(result)}")
    if any(result is None for _, result in results):
        raise typer.Exit(FAILURE)


async def _cancel_all(
    operator: Operator, job_ids: list[UUID], reason: str | None
) -> list[tuple[UUID, CancelResult | None]]:
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
def fail(
    ctx: typer.Context,
    job_id: JobId,
    reason: Reason = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Fail only the attempt that runs; its kind's policy says what follows.")
    ] = False,
    tenant: Tenant = None,
) -> None:
    """Fail a job by hand: it becomes a dead letter, whether it waits or runs.

    The handler of one that runs is stopped, and what it returns is refused.

    \b
    Examples:
      dutiful jobs fail 01JCPZ5-… --reason "the file is corrupt"
      dutiful jobs fail 01JCPZ5-… --retry --reason "it hangs"
    """
    wanted = ids.parse_any(job_id)
    state = operate(ctx, lambda operator: operator.fail(wanted, reason, retry=retry), tenant)
    typer.echo(f"{ids.public(wanted)}  {state}")
    if state is State.FAILED:
        note(f"it is a dead letter now: dutiful dlq show {ids.public(wanted)}")
    else:
        note("this attempt has failed; another one follows")


@jobs.command()
def retry(ctx: typer.Context, job_id: JobId, reason: Reason = None, tenant: Tenant = None) -> None:
    """Run a finished job again as a new one, or make a scheduled one due now.

    The new job has the payload, queue, priority, tenant and correlation id of the old one, and points back to it. The
    dead letter of one that failed for good is told of it, as by `dutiful dlq reprocess`.

    \b
    Examples:
      dutiful jobs retry 01JCPZ5-…
    """
    wanted = ids.parse_any(job_id)
    retried = operate(ctx, lambda operator: operator.retry(wanted, reason), tenant)
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


@jobs.command("delete-finished")
def delete_finished(
    ctx: typer.Context,
    older_than: Annotated[str, typer.Option(metavar="TIME", help="How long ago they ended at least.")],
    reason: Reason = None,
) -> None:
    """Delete finished jobs now instead of when retention would; what it would keep, stays.

    \b
    Examples:
      dutiful jobs delete-finished --older-than 30d
      dutiful jobs delete-finished --older-than 2h --reason "a load test"
    """
    length = duration(older_than, "--older-than")
    deleted = operate(ctx, lambda operator: operator.delete_finished(length, reason))
    typer.echo(f"{deleted:,} {'job' if deleted == 1 else 'jobs'} deleted")
