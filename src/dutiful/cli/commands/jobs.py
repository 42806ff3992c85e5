"""`jobs`: list, show, cancel, fail, retry, release and delete jobs."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer

from dutiful.cli import FAILURE
from dutiful.cli.commands import jobs_stuck
from dutiful.cli.options import AsJson, Details, Reason, Tenant, read_moment
from dutiful.cli.output.job_details import details_json, job_details
from dutiful.cli.output.printing import ago, both_ids, error_text, job_json, note, print_json, print_table, say, when
from dutiful.cli.target import operate
from dutiful.core import ids
from dutiful.core.duration import duration
from dutiful.core.errors import JobNotFound, UsageError
from dutiful.core.job import JobRecord
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.states import State
from dutiful.operator import Operator
from dutiful.store.control import CancelResult
from dutiful.store.queries import JobFilter

jobs = typer.Typer(help="List and show jobs; cancel, fail, retry or release them.", no_args_is_help=True)
jobs_stuck.register(jobs)
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
    correlation_id: Annotated[str | None, typer.Option(help="Only jobs with this correlation id.")] = None,
    subject: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Only jobs with this in their subject; the value is JSON or plain text."
        ),
    ] = None,
    error_class: Annotated[
        str | None,
        typer.Option(
            help="Only jobs whose last error is of this class: the final one, or that of the previous attempt."
        ),
    ] = None,
    phase: Annotated[str | None, typer.Option(help="Only jobs that are in this phase, or ended in it.")] = None,
    text: Annotated[str | None, typer.Option(help="Only jobs with this text in payload, subject or errors.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Only jobs enqueued since then: a time, or how long ago, as in 2h."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Only jobs enqueued before then.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="How many at most.")] = 50,
    before: Annotated[
        str | None, typer.Option(metavar="ID", help="Continue from here: the id that the previous page printed.")
    ] = None,
    as_json: AsJson = False,
    details: Details = False,
) -> None:
    """List jobs, newest first.

    Filters without an index, such as --text, search some thousand jobs at a time; the page then says how far it got,
    and how to continue.

    \b
    Examples:
      dutiful jobs list --state failed --since 2h
      dutiful jobs list --subject order=17 --text timeout
      dutiful jobs list --state running --phase upload
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
        phase=phase,
        text=text,
        since=read_moment(since, "--since"),
        until=read_moment(until, "--until"),
        before=None if before is None else ids.parse_any(before),
        limit=limit,
        details=as_json and details,
    )
    found = operate(ctx, lambda operator: operator.jobs.search(wanted))
    if as_json:
        following = both_ids("id", found.next)["id"]
        listed = [job_json(job, details=details) for job in found]
        print_json({"jobs": listed, "next_before": following, "searched_since": found.searched_since})
        return
    tenants = any(j.tenant is not None for j in found)
    errors = any(j.error is not None for j in found)
    phases = any(j.progress is not None for j in found)
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
            *(["progress"] if phases else []),
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
                *([_progress(j)] if phases else []),
                *([(j.error or {}).get("class"), error_text(j.error)] if errors else []),
            )
            for j in found
        ),
        empty="no jobs" if found.next is None else "no jobs so far",
    )
    if found.next is not None:
        searched = "" if len(found) == limit else f"searched back to {when(found.searched_since)}; "
        note(f"{searched}there may be more: --before {ids.public(found.next)}")


def _progress(job: JobRecord) -> str | None:
    """The phase, and how many of its items are done or else what share: "editions 3/5"."""
    if (progress := job.progress) is None:
        return None
    share = None if progress.percent is None else f"{progress.percent:.0f}%"
    if progress.items is not None:
        share = f"{progress.items['total'] - len(progress.items['in_progress'])}/{progress.items['total']}"
    return " ".join(part for part in (progress.phase, share) if part) or None


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
    opened: Annotated[bool, typer.Option("--open", help="Open what is sealed, with its key. It is audited.")] = False,
    reason: Reason = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Show everything about one job, and why it is in its state.

    \b
    Examples:
      dutiful jobs show 01JCPZ5-…
      dutiful jobs show 0193a1b2-… --full
      dutiful jobs show 0193a1b2-… --open --reason "asked by the customer"
    """
    wanted = ids.parse_any(job_id)
    details = operate(ctx, lambda operator: job_details(operator, wanted, opened=opened, reason=reason), tenant)
    if as_json:
        print_json(details_json(details))
    else:
        details.print(full=full)


@jobs.command()
def cancel(
    ctx: typer.Context,
    job_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The jobs' ids, in either spelling.")],
    reason: Reason = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="All jobs of its correlation id, as `dutiful trace` shows them.")
    ] = False,
    tenant: Tenant = None,
) -> None:
    """Cancel waiting jobs; ask running ones to stop.

    \b
    Examples:
      dutiful jobs cancel 01JCPZ5-… --reason "sent by hand"
      dutiful jobs cancel 01JCPZ5-… --tree
    """
    if tree:
        for reference in job_ids:
            count = operate(ctx, _cancelling(reference, reason), tenant)
            say(f"{reference}  {count:,} {'job' if count == 1 else 'jobs'} cancelled or asked to stop")
        return
    wanted = [ids.parse_any(job_id) for job_id in job_ids]
    results = operate(ctx, lambda operator: _cancel_all(operator, wanted, reason), tenant)
    for job_id, result in results:
        say(f"{ids.public(job_id)}  {_cancelled(result)}")
    if any(result is None for _, result in results):
        raise typer.Exit(FAILURE)


def _cancelling(reference: str, reason: str | None) -> Callable[[Operator], Coroutine[Any, Any, int]]:
    return lambda operator: operator.trees.cancel(reference, reason)


async def _cancel_all(
    operator: Operator, job_ids: list[UUID], reason: str | None
) -> list[tuple[UUID, CancelResult | None]]:
    results: list[tuple[UUID, CancelResult | None]] = []
    for job_id in job_ids:
        try:
            results.append((job_id, await operator.jobs.cancel(job_id, reason)))
        except JobNotFound:
            results.append((job_id, None))
    return results


def _cancelled(result: CancelResult | None) -> str:
    if result is None:
        return "not found: it never existed, or retention has deleted it"
    if result.requested:
        return "running: asked to stop" if result.changed else "running: was asked to stop before"
    return "cancelled" if result.changed else f"had ended before: {result.state}"


@jobs.command()
def fail(
    ctx: typer.Context,
    job_id: JobId,
    reason: Reason = None,
    retry: Annotated[
        bool,
        typer.Option(
            "--retry",
            help="Fail only the running attempt, or the next one of a waiting job; the kind's retry policy decides.",
        ),
    ] = False,
    tenant: Tenant = None,
) -> None:
    """Fail a job by hand: it becomes a dead letter, whether it waits or runs.

    A running handler is stopped, and its result is refused.

    \b
    Examples:
      dutiful jobs fail 01JCPZ5-… --reason "the file is corrupt"
      dutiful jobs fail 01JCPZ5-… --retry --reason "it hangs"
    """
    wanted = ids.parse_any(job_id)
    state = operate(ctx, lambda operator: operator.jobs.fail(wanted, reason, retry=retry), tenant)
    say(f"{ids.public(wanted)}  {state}")
    if state is State.FAILED:
        note(f"it is now a dead letter: dutiful dead-letters show {ids.public(wanted)}")
    else:
        note("this attempt has failed; another one follows")


@jobs.command()
def retry(
    ctx: typer.Context,
    job_id: JobId,
    reason: Reason = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="All of its correlation id that failed, and was cancelled because of it.")
    ] = False,
    cancelled: Annotated[
        bool, typer.Option("--cancelled", help="With --tree: also jobs that were cancelled by hand.")
    ] = False,
    tenant: Tenant = None,
) -> None:
    """Run a finished job again as a new one, or make a scheduled one due now.

    The new job has the payload, queue, priority, tenant and correlation id of the old one, and refers to it. A dead
    letter is reprocessed, as by `dutiful dead-letters reprocess`.

    \b
    Examples:
      dutiful jobs retry 01JCPZ5-…
      dutiful jobs retry 01JCPZ5-… --tree
    """
    if tree:
        again = operate(ctx, lambda operator: operator.trees.retry(job_id, reason, cancelled=cancelled), tenant)
        for old, new in again.jobs.items():
            say(f"{ids.public(new)}  runs {ids.public(old)} again")
        return
    if cancelled:
        raise UsageError("--cancelled is about a whole tree: give --tree too")
    wanted = ids.parse_any(job_id)
    retried = operate(ctx, lambda operator: operator.jobs.retry(wanted, reason), tenant)
    say(ids.public(retried.job_id))
    if retried.made:
        note(f"a new job, {retried.state}; it is a retry of {ids.public(wanted)}")
    elif retried.job_id == wanted:
        note(f"it is due now: {retried.state}")
    else:
        note(f"an earlier retry of this job is still {retried.state}; no other was made")


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
    older_than: Annotated[str, typer.Option(metavar="TIME", help="Only jobs that ended longer ago than this.")],
    reason: Reason = None,
) -> None:
    """Delete finished jobs now, before retention would; what retention would keep stays.

    \b
    Examples:
      dutiful jobs delete-finished --older-than 30d
      dutiful jobs delete-finished --older-than 2h --reason "a load test"
    """
    length = duration(older_than, "--older-than")
    deleted = operate(ctx, lambda operator: operator.jobs.delete_finished(length, reason))
    say(f"{deleted:,} {'job' if deleted == 1 else 'jobs'} deleted")
