"""`send-event`: wakes jobs that wait for an event."""

from typing import Annotated, Any

import msgspec
import typer

from dutiful.cli.options import NEGATIVE, AsJson, Reason, Tenant
from dutiful.cli.output.printing import print_json, say
from dutiful.cli.target import operate
from dutiful.core.duration import duration
from dutiful.core.errors import UsageError


def register(cli: typer.Typer) -> None:
    cli.command("send-event", rich_help_panel="Operate", context_settings=NEGATIVE)(send_event)


def send_event(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The event's name, as jobs wait for it.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="What it is about, such as the number of an order.")],
    data: Annotated[str | None, typer.Option(help="JSON that the jobs get, as in '{\"amount\": 5}'.")] = None,
    keep: Annotated[str, typer.Option(help="How long jobs that wait later get it.")] = "7d",
    tenant: Tenant = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Send an event to the jobs that wait for it, or will.

    \b
    Examples:
      dutiful send-event paid order-7 --data '{"amount": 5}'
      dutiful send-event approved invoice-12 --keep 1d
    """
    body, length = _read(data), duration(keep, "--keep")
    sent = operate(ctx, lambda operator: operator.sent_events.send(name, key, body, keep=length, reason=reason), tenant)
    if as_json:
        print_json({"id": str(sent)})
    else:
        say(f"event {name} with the key {key} is sent")


def _read(data: str | None) -> Any:
    if data is None:
        return None
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise UsageError(f"--data is not JSON: {error}; a text needs quotes of its own, as in '\"yes\"'") from error
