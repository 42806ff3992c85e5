"""`redeliver`: delivers ready jobs to Arq workers again."""

from typing import Annotated

import typer

from dutiful.cli.options import AsJson, Reason
from dutiful.cli.output.printing import print_json, say
from dutiful.cli.target import operate


def register(cli: typer.Typer) -> None:
    cli.command(rich_help_panel="Operate")(redeliver)


def redeliver(
    ctx: typer.Context,
    queue: Annotated[str | None, typer.Option(help="Only jobs of this queue.")] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Deliver all ready jobs through Redis, as after a loss of its data.

    Workers do so by themselves, within a minute; a job that is delivered twice runs once.
    """
    sent = operate(ctx, lambda operator: operator.deliveries.redeliver(queue, reason))
    if as_json:
        print_json({"delivered": sent})
    else:
        say(f"{sent:,} job{'s' * (sent != 1)} delivered")
