"""`breakers`: circuit breakers, and closing and opening them by hand."""

from typing import Annotated

import typer

from dutiful.cli.options import AsJson, Reason
from dutiful.cli.output.printing import ago, note, print_json, print_table, say, when
from dutiful.cli.target import operate, target
from dutiful.core.breaker.state import BreakerState
from dutiful.core.duration import duration
from dutiful.core.errors import DutifulError
from dutiful.operator import Operator
from dutiful.operator.breakers import facts
from dutiful.store.breakers import BreakerRecord

breakers = typer.Typer(help="List circuit breakers, close or open one.", invoke_without_command=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The breaker's name.")]
NotClosed = Annotated[bool, typer.Option("--not-closed", help="Only those that are open or half-open.")]


def register(cli: typer.Typer) -> None:
    cli.add_typer(breakers, name="breakers", rich_help_panel="Operate")


@breakers.callback()
def default(ctx: typer.Context, not_closed: NotClosed = False, as_json: AsJson = False) -> None:
    """List circuit breakers, close or open one.

    \b
    Examples:
      dutiful breakers --not-closed
      dutiful breakers reset email-service --reason "the mail server is back"
      dutiful breakers open email-service --for 30m --reason "maintenance until noon"
    """
    if ctx.invoked_subcommand is None:
        list_breakers(ctx, not_closed, as_json)


@breakers.command("list")
def list_breakers(ctx: typer.Context, not_closed: NotClosed = False, as_json: AsJson = False) -> None:
    """List the breakers: their state, their counts, and how many jobs wait for them."""
    found = operate(ctx, lambda operator: operator.breakers.all())
    shown = [one for one in found if not (not_closed and one.breaker.state is BreakerState.CLOSED)]
    if as_json:
        print_json({"breakers": [facts(one) for one in shown]})
        return
    print_table(
        ("breaker", "state", "failures", "last failure", "since", "until", "trips#", "kinds", "waiting#"),
        (_row(one) for one in shown),
        empty="no breaker is open or half-open" if found else "no breakers",
    )
    known = {one.breaker.name for one in found}
    waiting = [name for name in target(ctx).any_app().breakers if name not in known]
    if waiting:
        note(f"declared in the code; stored when a worker starts: {', '.join(waiting)}")


@breakers.command()
def reset(ctx: typer.Context, name: Name, reason: Reason = None) -> None:
    """Close a breaker now and clear its failures: calls pass again, and waiting jobs continue.

    \b
    Examples:
      dutiful breakers reset email-service --reason "the mail server is back"
    """
    say(operate(ctx, lambda operator: _reset(operator, name, reason)))


@breakers.command("open")
def open_breaker(
    ctx: typer.Context,
    name: Name,
    open_for: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="For this long; otherwise as its policy says.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Also one that no app declares and that was never used.")] = False,
    reason: Reason = None,
) -> None:
    """Open a breaker now: no calls until its time is over and a probe succeeds.

    \b
    Examples:
      dutiful breakers open email-service --for 30m --reason "maintenance until noon"
    """
    length = None if open_for is None else duration(open_for, "--for")

    async def opened(operator: Operator) -> str:
        breaker = await operator.breakers.open(name, length, reason, new=new)
        return f"breaker {name} is open until {when(breaker.open_until)}"

    say(operate(ctx, opened))


async def _reset(operator: Operator, name: str, reason: str | None) -> str:
    if await operator.breakers.reset(name, reason) is None:
        known = ", ".join(one.breaker.name for one in await operator.breakers.all()) or "none"
        raise DutifulError(f"there is no breaker {name!r}; there are: {known}")
    return f"breaker {name} is closed"


def _row(record: BreakerRecord) -> tuple[object, ...]:
    one = record.breaker
    since = {BreakerState.OPEN: one.opened_at, BreakerState.HALF_OPEN: one.half_opened_at}.get(one.state)
    return (
        one.name,
        one.state.value,
        f"{one.failures} of {one.policy.failures}",
        ago(one.last_failure_at),
        ago(since),
        when(one.open_until) if one.state is BreakerState.OPEN else None,
        one.trips,
        ", ".join(record.kinds),
        record.waiting,
    )
