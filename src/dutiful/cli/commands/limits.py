"""`limits`: how many jobs of a key run at once or start within a time, and changing that."""

from typing import Annotated

import typer

from dutiful.cli.options import NEGATIVE, AsJson, Reason
from dutiful.cli.output.printing import note, print_json, print_table, say
from dutiful.cli.target import operate, target
from dutiful.core.duration import brief
from dutiful.core.errors import DutifulError
from dutiful.operator import Operator
from dutiful.operator.limits import facts
from dutiful.store.limits import KeyUse, LimitRecord

limits = typer.Typer(help="List limits, and how they are used; change one.", invoke_without_command=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The limit's name.")]


def register(cli: typer.Typer) -> None:
    cli.add_typer(limits, name="limits", rich_help_panel="Operate")


@limits.callback()
def default(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List limits, and how they are used; change one.

    \b
    Examples:
      dutiful limits
      dutiful limits set call:concurrency 2 --reason "the service is slow today"
      dutiful limits reset call:concurrency
    """
    if ctx.invoked_subcommand is None:
        list_limits(ctx, as_json)


@limits.command("list")
def list_limits(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the limits: how much of each is used, and which keys most jobs wait for."""
    found = operate(ctx, lambda operator: operator.limits.all())
    if as_json:
        print_json({"limits": [facts(one) for one in found]})
        return
    print_table(
        ("limit", "most", "kinds", "used#", "waiting#", "keys with most waiting"),
        (_row(one) for one in found),
        empty="no limits",
    )
    known = {one.limit.name for one in found}
    declared = {spec.limit.name for kind in target(ctx).any_app().kinds.values() for spec in kind.limits}
    if waiting := sorted(declared - known):
        note(f"declared in the code; stored when a worker starts: {', '.join(waiting)}")


@limits.command("set", context_settings=NEGATIVE)
def set_limit(
    ctx: typer.Context,
    name: Name,
    most: Annotated[int, typer.Argument(metavar="MOST", min=0, help="How many for each key; 0: none.")],
    reason: Reason = None,
) -> None:
    """Set how many jobs of a key may run, or start, until it is reset; what runs is not stopped.

    \b
    Examples:
      dutiful limits set call:concurrency 2 --reason "the service is slow today"
    """
    say(operate(ctx, lambda operator: _set(operator, name, most, reason)))


@limits.command()
def reset(ctx: typer.Context, name: Name, reason: Reason = None) -> None:
    """Let a limit be what the code declares again, and end waits that services have asked for."""
    say(operate(ctx, lambda operator: _set(operator, name, None, reason)))


async def _set(operator: Operator, name: str, most: int | None, reason: str | None) -> str:
    record = await operator.limits.set(name, most, reason)
    if record is None:
        known = ", ".join(one.limit.name for one in await operator.limits.all()) or "none"
        raise DutifulError(f"there is no limit {name!r}; there are: {known}")
    return f"limit {name} is {_most(record)} for each key"


def _most(record: LimitRecord) -> str:
    per = record.limit.per
    number = f"{record.most} at once" if per is None else f"{record.most} in {brief(per)}"
    return number if record.chosen is None else f"{number} (declared: {record.limit.most})"


def _key(use: KeyUse) -> str:
    held = "" if use.held_until is None else f" (held until {use.held_until:%H:%M:%S} UTC)"
    return f"{use.key or '(none)'} {use.waiting}{held}"


def _row(record: LimitRecord) -> tuple[object, ...]:
    keys = ", ".join(_key(one) for one in record.keys[:3] if one.waiting or one.held_until)
    return record.limit.name, _most(record), ", ".join(record.kinds), record.used, record.waiting, keys
