"""`shares`: how much tenants run, and the weights by which fair lanes divide their slots."""

from typing import Annotated

import typer

from dutiful.cli.options import NEGATIVE, AsJson, Reason
from dutiful.cli.output.printing import print_json, print_table, say
from dutiful.cli.target import operate
from dutiful.core.shares import HEAVIEST
from dutiful.operator import Operator

shares = typer.Typer(help="List what tenants run, and their weights; change one.", invoke_without_command=True)

OfTenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")]


def register(cli: typer.Typer) -> None:
    cli.add_typer(shares, name="shares", rich_help_panel="Operate")


@shares.callback()
def default(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List what tenants run, and their weights in fair lanes; change one.

    \b
    Examples:
      dutiful shares
      dutiful shares set acme 3 --reason "their contract"
      dutiful shares reset acme
    """
    if ctx.invoked_subcommand is None:
        list_shares(ctx, as_json)


@shares.command("list")
def list_shares(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the tenants that run jobs, or whose weight was set, those that run most first."""
    found = operate(ctx, lambda operator: operator.shares.all())
    if as_json:
        listed = [{"tenant": one.tenant, "weight": one.weight, "running": one.running} for one in found]
        print_json({"shares": listed})
        return
    print_table(
        ("tenant", "weight#", "running#"),
        ((one.tenant or "(none)", one.weight, one.running) for one in found),
        empty="no tenant runs a job, and none has a weight of its own",
    )


@shares.command("set", context_settings=NEGATIVE)
def set_share(
    ctx: typer.Context,
    tenant: OfTenant,
    weight: Annotated[
        int, typer.Argument(metavar="WEIGHT", min=1, max=HEAVIEST, help="How many slots it has for one of others.")
    ],
    reason: Reason = None,
) -> None:
    """Give a tenant more slots of fair lanes than others have, while its jobs wait.

    \b
    Examples:
      dutiful shares set acme 3 --reason "their contract"
    """
    say(operate(ctx, lambda operator: _set(operator, tenant, weight, reason)))


@shares.command()
def reset(ctx: typer.Context, tenant: OfTenant, reason: Reason = None) -> None:
    """Let a tenant have as much as others again."""
    say(operate(ctx, lambda operator: _set(operator, tenant, None, reason)))


async def _set(operator: Operator, tenant: str, weight: int | None, reason: str | None) -> str:
    record = await operator.shares.set(tenant, weight, reason)
    return f"tenant {tenant} has the weight {record.weight}"
