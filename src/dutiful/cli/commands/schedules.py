"""`schedules`: when each fires, and disabling or removing one."""

import typer

from dutiful.cli.options import AsJson, Reason
from dutiful.cli.output.printing import note, print_json, print_table, record_json, say, when
from dutiful.cli.target import operate, target
from dutiful.core import ids
from dutiful.core.errors import DutifulError, UsageError

schedules = typer.Typer(help="List schedules, disable, enable or remove one.", invoke_without_command=True)


def register(cli: typer.Typer) -> None:
    cli.add_typer(schedules, name="schedules", rich_help_panel="Operate")


@schedules.callback()
def default(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List schedules, disable, enable or remove one.

    \b
    Examples:
      dutiful schedules
      dutiful schedules disable nightly --reason "moving the database"
    """
    if ctx.invoked_subcommand is None:
        list_schedules(ctx, as_json)


@schedules.command("list")
def list_schedules(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the schedules, and when each fires next."""
    found = operate(ctx, lambda operator: operator.schedules.all())
    if as_json:
        print_json({"schedules": [record_json(schedule, "last_job_id") for schedule in found]})
        return
    print_table(
        ("schedule", "kind", "expression", "zone", "next", "last", "last job"),
        (
            (
                s.name,
                s.kind,
                s.expression,
                s.timezone,
                when(s.next_at) if s.enabled else "disabled",
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
        note(f"declared in the code; stored when a worker starts: {', '.join(waiting)}")


@schedules.command()
def disable(ctx: typer.Context, name: str, reason: Reason = None) -> None:
    """Stop a schedule from firing, until it is enabled."""
    _enable(ctx, name, False, reason)
    say(f"schedule {name} is disabled")


@schedules.command()
def enable(ctx: typer.Context, name: str, reason: Reason = None) -> None:
    """Let a disabled schedule fire again."""
    _enable(ctx, name, True, reason)
    say(f"schedule {name} is enabled")


@schedules.command()
def remove(ctx: typer.Context, name: str, reason: Reason = None) -> None:
    """Remove a schedule that the code no longer declares; until then it continues to fire."""
    if name in target(ctx).any_app().schedules:
        raise UsageError(f"schedule {name!r} is declared in the code, so a worker would store it again; disable it")
    _check_known(ctx, name, operate(ctx, lambda operator: operator.schedules.remove(name, reason)))
    say(f"schedule {name} is removed")


def _enable(ctx: typer.Context, name: str, enabled: bool, reason: str | None) -> None:
    _check_known(ctx, name, operate(ctx, lambda operator: operator.schedules.enable(name, enabled, reason)))


def _check_known(ctx: typer.Context, name: str, known: bool) -> None:
    if not known:
        names = ", ".join(s.name for s in operate(ctx, lambda operator: operator.schedules.all())) or "none"
        raise DutifulError(f"there is no schedule {name!r}; there are: {names}")
