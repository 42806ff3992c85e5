"""`bulk`: runs that apply one decision to many dead letters, step by step."""

import sys
from typing import Annotated, Any

import msgspec
import typer

from dutiful.cli.options import AsJson, Reason, Tenant
from dutiful.cli.output.printing import ago, print_json, print_table, record_json, say, when
from dutiful.cli.target import operate
from dutiful.core import ids
from dutiful.core.errors import IllegalTransition
from dutiful.core.redaction.redact import redact_value
from dutiful.operator import Operator
from dutiful.store.dead_letters import BulkRun, BulkState

bulk = typer.Typer(help="List bulk runs over dead letters, resume or stop one.", no_args_is_help=True)
RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's id, in either spelling.")]


def register(cli: typer.Typer) -> None:
    cli.add_typer(bulk, name="bulk", rich_help_panel="Jobs")


@bulk.command("list")
def list_runs(
    ctx: typer.Context,
    running: Annotated[bool, typer.Option("--running", help="Only running ones.")] = False,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, max=1_000, help="How many at most.")] = 50,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """List bulk runs, the newest first."""
    found = operate(ctx, lambda operator: operator.bulk.all(running=running, limit=limit), tenant)
    if as_json:
        print_json({"runs": [run_json(run) for run in found]})
        return
    print_table(
        ("id", "act", "state", "done#", "skipped#", "of#", "started", "by", "reason"),
        (
            (
                ids.public(r.id),
                r.act.value,
                r.state.value,
                r.done,
                r.skipped,
                r.total,
                ago(r.created_at),
                r.by,
                r.reason,
            )
            for r in found
        ),
        empty="no bulk runs",
    )


@bulk.command()
def show(ctx: typer.Context, run_id: RunId, tenant: Tenant = None, as_json: AsJson = False) -> None:
    """Show the progress of a run."""
    wanted = ids.parse_any(run_id)
    run = operate(ctx, lambda operator: operator.bulk.get(wanted), tenant)
    if as_json:
        print_json(run_json(run))
        return
    say(run_sentence(run))
    say(f"started {when(run.created_at)} by {run.by}" + (f": {run.reason}" if run.reason else ""))
    chosen = {name: value for name, value in _shown(run).items() if value}
    say(f"on dead letters with {msgspec.json.encode(chosen).decode()}")
    if run.skipped:
        say(f"why some were skipped: `dutiful audit list --act {run.id} --outcome refused`")


@bulk.command()
def stop(ctx: typer.Context, run_id: RunId, reason: Reason = None, tenant: Tenant = None) -> None:
    """Stop a run; what it has done stays done."""
    wanted = ids.parse_any(run_id)
    say(run_sentence(operate(ctx, lambda operator: operator.bulk.stop(wanted, reason), tenant)))


@bulk.command()
def resume(ctx: typer.Context, run_id: RunId, tenant: Tenant = None, as_json: AsJson = False) -> None:
    """Finish an interrupted run here, without waiting for a worker to do it."""
    wanted = ids.parse_any(run_id)

    async def work(operator: Operator) -> BulkRun:
        run = await operator.bulk.get(wanted)
        if run.state is BulkState.STOPPED:
            raise IllegalTransition(f"bulk run {ids.public(wanted)} was stopped; start another")
        return await finish(operator, run)

    run = operate(ctx, work, tenant)
    if as_json:
        print_json(run_json(run))
    else:
        say(run_sentence(run))


async def finish(operator: Operator, run: BulkRun) -> BulkRun:
    """Takes the run to its end, and prints the progress to a terminal."""
    watched = sys.stderr.isatty()
    while run.state is BulkState.RUNNING:
        run = await operator.bulk.step(run.id)
        if watched:
            end = "" if run.state is BulkState.RUNNING else "\n"
            print(f"\r{run.done + run.skipped:,} of {run.total:,}", end=end, file=sys.stderr, flush=True)
    return run


def run_sentence(run: BulkRun) -> str:
    skipped = f", {run.skipped:,} skipped" if run.skipped else ""
    return f"bulk run {ids.public(run.id)}: {run.act} {run.state}, {run.done:,} of {run.total:,}{skipped}"


def run_json(run: BulkRun) -> dict[str, Any]:
    fields = record_json(run, "id")
    del fields["cursor"]
    return {**fields, "filter": _shown(run)}


def _shown(run: BulkRun) -> dict[str, Any]:
    """Its filter without secrets; the run itself needs the values as they were given."""
    shown: dict[str, Any] = redact_value(msgspec.to_builtins(run.filter))
    return shown
