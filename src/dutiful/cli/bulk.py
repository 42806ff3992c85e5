"""`bulk`: acts on many dead letters, which go on step by step."""

import sys
from typing import Annotated, Any

import msgspec
import typer

from dutiful.cli.output import AsJson, Reason, Tenant, ago, both_ids, print_json, print_table, when
from dutiful.cli.target import operate
from dutiful.core import ids
from dutiful.core.errors import IllegalTransition
from dutiful.operator import Operator
from dutiful.reviewing import BulkRun, BulkState

bulk = typer.Typer(help="Look at bulk runs over dead letters, go on with one or stop it.", no_args_is_help=True)
RunId = Annotated[str, typer.Argument(metavar="ID", help="The run's id, in either spelling.")]


def register(cli: typer.Typer) -> None:
    cli.add_typer(bulk, name="bulk", rich_help_panel="Jobs")


@bulk.command("list")
def list_runs(
    ctx: typer.Context,
    running: Annotated[bool, typer.Option("--running", help="Only those that go on.")] = False,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=1, max=1_000, help="How many at most.")] = 50,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """List bulk runs, the newest first."""
    found = operate(ctx, lambda operator: operator.bulk_runs(running=running, limit=limit), tenant)
    if as_json:
        print_json({"runs": [run_json(run) for run in found]})
        return
    print_table(
        ("id", "act", "state", "done#", "skipped#", "of#", "begun", "by", "reason"),
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
    """Tell how far a run has come."""
    wanted = ids.parse_any(run_id)
    run = operate(ctx, lambda operator: operator.bulk_run(wanted), tenant)
    if as_json:
        print_json(run_json(run))
        return
    typer.echo(run_sentence(run))
    typer.echo(f"begun {when(run.created_at)} by {run.by}" + (f": {run.reason}" if run.reason else ""))
    chosen = {name: value for name, value in msgspec.to_builtins(run.filter).items() if value}
    typer.echo(f"on dead letters with {msgspec.json.encode(chosen).decode()}")
    if run.skipped:
        typer.echo(f"why some were skipped: `dutiful audit list --act {run.id} --outcome refused`")


@bulk.command()
def stop(ctx: typer.Context, run_id: RunId, reason: Reason = None, tenant: Tenant = None) -> None:
    """Take no more steps of a run; what is done stays done."""
    wanted = ids.parse_any(run_id)
    typer.echo(run_sentence(operate(ctx, lambda operator: operator.stop_bulk(wanted, reason), tenant)))


@bulk.command()
def resume(ctx: typer.Context, run_id: RunId, tenant: Tenant = None, as_json: AsJson = False) -> None:
    """Take a run that was interrupted to its end here, without waiting for a worker to do so."""
    wanted = ids.parse_any(run_id)

    async def go_on(operator: Operator) -> BulkRun:
        run = await operator.bulk_run(wanted)
        if run.state is BulkState.STOPPED:
            raise IllegalTransition(f"bulk run {ids.public(wanted)} was stopped for good; begin another: dutiful dlq …")
        return await to_the_end(operator, run)

    run = operate(ctx, go_on, tenant)
    if as_json:
        print_json(run_json(run))
    else:
        typer.echo(run_sentence(run))


async def to_the_end(operator: Operator, run: BulkRun) -> BulkRun:
    """Step by step, telling a terminal how far it has come."""
    watched = sys.stderr.isatty()
    while run.state is BulkState.RUNNING:
        run = await operator.step_bulk(run.id)
        if watched:
            end = "" if run.state is BulkState.RUNNING else "\n"
            print(f"\r{run.done + run.skipped:,} of {run.total:,}", end=end, file=sys.stderr, flush=True)
    return run


def run_sentence(run: BulkRun) -> str:
    skipped = f", {run.skipped:,} skipped" if run.skipped else ""
    return f"bulk run {ids.public(run.id)}: {run.act} {run.state}, {run.done:,} of {run.total:,}{skipped}"


def run_json(run: BulkRun) -> dict[str, Any]:
    fields = {**both_ids("id", run.id), **msgspec.structs.asdict(run), **both_ids("id", run.id)}
    del fields["cursor"]
    return fields
