"""`schedules`: what is enqueued again and again, and when."""

from typing import Any

import msgspec
import typer

from dutiful.cli.output import AsJson, Reason, both_ids, note, print_json, print_table, when
from dutiful.cli.target import operate, target
from dutiful.core import ids
from dutiful.core.errors import DutifulError, UsageError
from dutiful.duties import ScheduleRecord

schedules = typer.Typer(help="List schedules, pause and resume them.", invoke_without_command=True)


def register(cli: typer.Typer) -> None:
    cli.add_typer(schedules, name="schedules", rich_help_panel="Operate")


@schedules.callback()
def default(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List schedules, pause and resume them.

    \b
    Examples:
      dutiful schedules
      dutiful schedules pause nightly --reason "moving the database"
    """
    if ctx.invoked_subcommand is None:
        list_schedules(ctx, as_json)


@schedules.command("list")
def list_schedules(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the schedules, and when each fires next."""
    found = operate(ctx, lambda operator: operator.schedules())
    if as_json:
        print_json({"schedules": [_json(schedule) for schedule in found]})
        return
    print_table(
        ("schedule", "kind", "expression", "zone", "next", "last", "last job"),
        (
            (
                s.name,
                s.kind,
                s.expression,
                s.timezone,
                when(s.next_at) if s.enabled else "paused",
                when(s.last_at),
                s.last_job_id and ids.public(s.last_job_id),
            )
            for s in found
        ),
        empty="no schedules",
    )
    stored = {schedule.name for schedule in found}
    waiting = [name for name in target(ctx).any_app().schedules if name not in stored]
    if waiting:
        note(f"declared in the code, but not stored before a worker starts: {', '.join(waiting)}")


@schedules.command()
def pause(ctx: typer.Context, name: str, reason: Reason = None) -> None:
    """Let a schedule not fire any more, until it is resumed."""
    _enable(ctx, name, False, reason)
    typer.echo(f"schedule {name} is paused")


@schedules.command()
def resume(ctx: typer.Context, name: str, reason: Reason = None) -> None:
    """Let a paused schedule fire again."""
    _enable(ctx, name, True, reason)
    typer.echo(f"schedule {name} goes on")


@schedules.command()
def remove(ctx: typer.Context, name: str, reason: Reason = None) -> None:
    """Forget a schedule that the code no longer declares; until then it goes on firing."""
    if name in target(ctx).any_app().schedules:
        raise UsageError(f"schedule {name!r} is declared in the code, so a worker would store it again; pause it")
    _check_known(ctx, name, operate(ctx, lambda operator: operator.remove_schedule(name, reason)))
    typer.echo(f"schedule {name} is removed")


def _enable(ctx: typer.Context, name: str, enabled: bool, reason: str | None) -> None:
    _check_known(ctx, name, operate(ctx, lambda operator: operator.enable_schedule(name, enabled, reason)))


def _check_known(ctx: typer.Context, name: str, known: bool) -> None:
    if not known:
        names = ", ".join(s.name for s in operate(ctx, lambda operator: operator.schedules())) or "none"
        raise DutifulError(f"there is no schedule {name!r}; there are: {names}")


def _json(schedule: ScheduleRecord) -> dict[str, Any]:
    return {**msgspec.structs.asdict(schedule), **both_ids("last_job_id", schedule.last_job_id)}
