"""`drain`: pause something, and wait until nothing of it runs."""

import sys
from datetime import timedelta
from typing import Annotated, Any

import msgspec
import typer

from dutiful.cli import FAILURE
from dutiful.cli.output import AsJson, Reason, ago, both_ids, note, print_json, print_table
from dutiful.cli.target import operate
from dutiful.core import ids
from dutiful.core.duration import brief, duration
from dutiful.operator import Operator
from dutiful.operator.draining import Drain

SHOWN = 50


def register(cli: typer.Typer) -> None:
    cli.command(rich_help_panel="Operate")(drain)


def drain(
    ctx: typer.Context,
    kind: Annotated[list[str] | None, typer.Option(help="A kind; may be repeated.")] = None,
    queue: Annotated[list[str] | None, typer.Option(help="A queue; may be repeated.")] = None,
    lane: Annotated[list[str] | None, typer.Option(help="A lane; may be repeated.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every lane there is, instead of the others.")] = False,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="How long to wait until nothing runs.")] = "10m",
    resume_on_timeout: Annotated[
        bool, typer.Option("--resume-on-timeout", help="If the time is over, let it go on; otherwise it stays paused.")
    ] = False,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Pause kinds, queues or lanes for all workers, and wait until nothing of them runs.

    Exit code 0: it is safe, nothing runs, and nothing will before `dutiful resume`. 1: the time is over; the jobs that
    still run are listed, with what can be done about each. New jobs are accepted meanwhile, and wait.

    \b
    Examples:
      dutiful drain --kind send_email --kind send_sms --timeout 10m --reason "mail server moves"
      dutiful drain --all
    """
    length = duration(timeout, "--timeout")

    async def work(operator: Operator) -> tuple[Drain, bool]:
        begun = await operator.drain(
            kinds=kind or [], queues=queue or [], lanes=lane or [], everything=everything, reason=reason
        )
        progress = _Progress(begun)
        state = await operator.drained(begun, length, progress.tell, everything=everything)
        resumed = not state.safe and resume_on_timeout
        for pause in state.pauses if resumed else ():
            await operator.resume(pause.scope, pause.name, f"drain not over after {brief(length)}")
        return state, resumed

    state, resumed = operate(ctx, work)
    if as_json:
        print_json(_json(state, resumed))
    elif state.safe:
        typer.echo(f"safe: nothing runs of {_parts(state)}")
        note(f"to let it go on: {_resumes(state)}")
    else:
        _print_late(state, length, resumed)
    if not state.safe:
        raise typer.Exit(FAILURE)


class _Progress:
    """Tells on stderr how many still run, whenever that changes."""

    def __init__(self, begun: Drain) -> None:
        self._last = ""
        self.tell(begun)

    def tell(self, state: Drain) -> None:
        text = f"{_parts(state)} paused; " + _still(state)
        if text != self._last and not state.safe:
            self._last = text
            note(text)
            sys.stderr.flush()


def _still(state: Drain) -> str:
    if state.running:
        return f"{state.running:,} still run"
    if state.unheard:
        return f"none seen running; yet to be heard from: {', '.join(state.unheard)}"
    return "none seen running; making sure"


def _print_late(state: Drain, length: timedelta, resumed: bool) -> None:
    typer.echo(f"not safe after {brief(length)}: {_still(state)}")
    print_table(
        ("id", "kind", "queue", "started", "worker", "alive", "what to do"),
        (
            (
                ids.public(one.job_id),
                one.kind,
                one.queue,
                ago(one.started_at),
                one.worker,
                "yes" if one.alive else "no",
                one.remedy,
            )
            for one in state.holdups[:SHOWN]
        ),
        empty="no job is known by name",
    )
    if len(state.holdups) > SHOWN:
        note(f"and {len(state.holdups) - SHOWN:,} more")
    note(f"{_parts(state)} goes on" if resumed else f"still paused; to let it go on: {_resumes(state)}")


def _parts(state: Drain) -> str:
    return ", ".join(f"{pause.scope} {pause.name}" for pause in state.pauses)


def _resumes(state: Drain) -> str:
    return "; ".join(f"dutiful resume {pause.scope} {pause.name}" for pause in state.pauses)


def _json(state: Drain, resumed: bool) -> dict[str, Any]:
    holdups = [{**msgspec.structs.asdict(one), **both_ids("job_id", one.job_id)} for one in state.holdups]
    return {**msgspec.structs.asdict(state), "holdups": holdups, "resumed": resumed}
