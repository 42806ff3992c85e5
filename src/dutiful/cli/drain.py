"""`drain`: pause something, and wait until nothing of it runs."""

import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Annotated, Any

import msgspec
import typer

from dutiful.acting import EVERY_LANE, Pause
from dutiful.cli import FAILURE
from dutiful.cli.output import AsJson, Reason, ago, both_ids, note, plain, print_json, print_table, show
from dutiful.cli.target import operate
from dutiful.core import ids
from dutiful.core.duration import brief, duration
from dutiful.explanation import resume_command
from dutiful.operator import Operator
from dutiful.operator.drain import Drain, Holdup, Part

SHOWN = 50


def register(cli: typer.Typer) -> None:
    cli.command(rich_help_panel="Operate")(drain)


def drain(
    ctx: typer.Context,
    kind: Annotated[list[str] | None, typer.Option(help="A kind; may be repeated.")] = None,
    queue: Annotated[list[str] | None, typer.Option(help="A queue; may be repeated.")] = None,
    lane: Annotated[list[str] | None, typer.Option(help="A lane; may be repeated.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every lane that there is or will be, instead of the others.")
    ] = False,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="How long to wait until nothing runs.")] = "10m",
    resume_on_timeout: Annotated[
        bool, typer.Option("--resume-on-timeout", help="If it is not safe by then, resume what this has paused.")
    ] = False,
    gone: Annotated[
        list[str] | None,
        typer.Option(metavar="WORKER", help="A silent worker whose process you know to have ended; may be repeated."),
    ] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Pause kinds, queues or lanes for all workers, and wait until nothing of them runs.

    Exit code 0: it is safe, nothing runs, and nothing will before `dutiful resume`. 1: the time is over, or somebody
    has resumed it meanwhile; the jobs that still run are listed, with what can be done about each. New jobs are
    accepted meanwhile, and wait. What is paused stays so, even if you interrupt it. A worker that fell silent may go on
    at any time, so it is waited for, unless its process is seen to have ended or you say so with --gone.

    \b
    Examples:
      dutiful drain --kind send_email --kind send_sms --timeout 10m --reason "mail server moves"
      dutiful drain --all
    """
    length = duration(timeout, "--timeout")

    begun: Drain | None = None

    async def work(operator: Operator) -> tuple[Drain, list[Part]]:
        nonlocal begun
        begun = await operator.drain(
            kinds=kind or [],
            queues=queue or [],
            lanes=lane or [],
            everything=everything,
            reason=reason,
            gone=gone or [],
        )
        if begun.unknown:
            note(f"note: no live worker or job has the {_listed(begun.unknown)}; check the spelling")
        progress = _Progress(begun)
        state = await operator.drained(begun, length, progress.tell)
        ours = state.begun if resume_on_timeout and not state.safe else ()
        resumed = [part for part in ours if await operator.resume(part.scope, part.name, "the drain did not get safe")]
        return state, resumed

    try:
        state, resumed = operate(ctx, work)
    except KeyboardInterrupt:
        what = (
            "`dutiful doctor` tells what is paused" if begun is None else f"to let it go on: {_resumes(begun.pauses)}"
        )
        note(f"interrupted; what is paused stays so; {what}")
        raise
    if as_json:
        print_json(_json(state, resumed))
    elif state.safe:
        typer.echo(f"safe: nothing runs of {_listed(state.parts)}")
        note(f"to let it go on: {_resumes(state.pauses)}")
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
        text = f"{_listed(state.pauses)} paused; " + _still(state)
        if text != self._last and not state.safe and not state.hopeless:
            self._last = text
            note(text)
            sys.stderr.flush()


def _still(state: Drain) -> str:
    if state.running:
        return "1 job still runs" if state.running == 1 else f"{state.running:,} jobs still run"
    waits = [f"yet to be heard from: {', '.join(state.unheard)}"] if state.unheard else []
    if state.silent:
        waits.append(f"silent: {', '.join(one.worker for one in state.silent)}")
    return f"none seen running; {'; '.join(waits) or 'making sure'}"


def _print_late(state: Drain, length: timedelta, resumed: Sequence[Part]) -> None:
    if state.not_paused:
        typer.echo(f"not safe: somebody has resumed {', '.join(state.not_paused)}; {_still(state)}")
    else:
        typer.echo(f"not safe after {brief(length)}: {_still(state)}")
    for remedy, alike in _by_remedy(state.holdups[:SHOWN]).items():
        print_table(
            ("id", "kind", "started", "worker"),
            ((ids.public(one.job_id), one.kind, ago(one.started_at), one.worker) for one in alike),
            empty="",
        )
        show(plain(f"→ {remedy}"))
    for silent in state.silent:
        show(plain(f"→ {silent.remedy}"))
    if len(state.holdups) > SHOWN:
        note(f"and {len(state.holdups) - SHOWN:,} more")
    if resumed:
        note(f"{_listed(resumed)} goes on")
    if kept := [pause for pause in state.pauses if Part(pause.scope, pause.name) not in resumed]:
        note(f"still paused: {_listed(kept)}; to let it go on: {_resumes(kept)}")


def _by_remedy(holdups: Iterable[Holdup]) -> dict[str, list[Holdup]]:
    """One sentence for all whom it helps, in which ID stands for each."""
    found: dict[str, list[Holdup]] = {}
    for one in holdups:
        found.setdefault(one.remedy.replace(ids.public(one.job_id), "ID"), []).append(one)
    return found


def _listed(some: Iterable[Part | Pause]) -> str:
    return ", ".join("every lane" if one.name == EVERY_LANE else f"{one.scope} {one.name}" for one in some)


def _resumes(pauses: Iterable[Pause]) -> str:
    return "; ".join(map(resume_command, pauses))


def _json(state: Drain, resumed: Sequence[Part]) -> dict[str, Any]:
    holdups = [{**msgspec.structs.asdict(one), **both_ids("job_id", one.job_id)} for one in state.holdups]
    return {**msgspec.structs.asdict(state), "holdups": holdups, "resumed": list(resumed)}
