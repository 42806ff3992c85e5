"""`pause` and `resume`: stop a queue, a kind or a lane, and let it go on."""

from typing import Annotated

import typer

from dutiful.acting import EVERY_LANE, PauseScope
from dutiful.cli.output import Reason, note, now
from dutiful.cli.target import operate
from dutiful.core.errors import DutifulError
from dutiful.explanation import Fleet, paused_words, resume_command
from dutiful.operator import Operator
from dutiful.settings import DEFAULT_QUEUE

Scope = Annotated[PauseScope, typer.Argument(metavar="queue|kind|lane", help="What is named.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.")]


def register(cli: typer.Typer) -> None:
    for command in (pause, resume):
        cli.command(rich_help_panel="Operate")(command)


def pause(ctx: typer.Context, scope: Scope, name: Name, reason: Reason = None) -> None:
    """Let nothing of a queue, kind or lane start any more; what runs goes on. The lane `*` is every lane.

    It holds for all workers, and until `dutiful resume`.

    \b
    Examples:
      dutiful pause queue fast --reason "mail server is down"
      dutiful pause kind send_email
      dutiful pause lane general
      dutiful pause lane '*'
    """
    typer.echo(operate(ctx, lambda operator: _pause(operator, scope, name, reason)))


def resume(ctx: typer.Context, scope: Scope, name: Name, reason: Reason = None) -> None:
    """Let a paused queue, kind or lane go on; exit code 1 if it was not paused.

    \b
    Examples:
      dutiful resume queue fast
    """
    typer.echo(operate(ctx, lambda operator: _resume(operator, scope, name, reason)))


async def _pause(operator: Operator, scope: PauseScope, name: str, reason: str | None) -> str:
    if await operator.pause(scope, name, reason):
        known = await _known(operator, scope)
        if name not in known and name != EVERY_LANE:
            note(f"note: no live worker or waiting job has a {scope} {name!r}; check its spelling")
        return f"{scope} {name} is paused"
    held = Fleet.of([], await operator.pauses()).paused(scope, name)
    return (
        f"{scope} {name} was {paused_words(held, now())}" if held else f"{scope} {name} was paused, and resumed since"
    )


async def _resume(operator: Operator, scope: PauseScope, name: str, reason: str | None) -> str:
    resumed, pauses = await operator.resume(scope, name, reason), await operator.pauses()
    if resumed and (held := Fleet.of([], pauses).paused(scope, name)):
        return f"{scope} {name} is not paused itself any more, but every {scope} is; `{resume_command(held)}`"
    if resumed:
        return f"{scope} {name} goes on"
    others = ", ".join(f"{p.scope} {p.name}" for p in pauses) or "nothing"
    raise DutifulError(f"{scope} {name} was not paused; paused is: {others}")


async def _known(operator: Operator, scope: PauseScope) -> set[str]:
    """The names that anybody uses now."""
    workers = [worker for worker in await operator.workers() if worker.alive]
    match scope:
        case PauseScope.KIND:
            return {kind for worker in workers for kind in worker.kinds}
        case PauseScope.LANE:
            return {lane for worker in workers for lane in worker.lanes}
        case PauseScope.QUEUE:
            lanes = {queue for worker in workers for lane in worker.lanes.values() for queue in lane["queues"]}
            live = {q.queue for q in await operator.queues() if q.ready or q.scheduled or q.running}
            return lanes | live | {DEFAULT_QUEUE}
