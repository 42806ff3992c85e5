"""`workers`, `pause`, `resume` and `drain`: the workers, and stopping what they run."""

import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Annotated, Any

import msgspec
import typer

from dutiful.cli import FAILURE
from dutiful.cli.options import AsJson, Reason
from dutiful.cli.output.printing import ago, note, now, plain, print_json, print_table, record_json, say, show
from dutiful.cli.target import operate
from dutiful.core import ids
from dutiful.core.duration import brief, duration
from dutiful.core.errors import DutifulError
from dutiful.operator import Operator
from dutiful.operator.drain import Blocker, Drain, DrainTarget
from dutiful.operator.explain import FleetState, paused_text, resume_command
from dutiful.settings import DEFAULT_QUEUE
from dutiful.store.control import EVERY_LANE, Pause, PauseScope
from dutiful.store.workers import LaneRecord, Process, WorkerRecord

SHOWN = 50
Scope = Annotated[PauseScope, typer.Argument(metavar="queue|kind|lane", help="What is named.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.")]


def register(cli: typer.Typer) -> None:
    for command in (workers, pause, resume, drain):
        cli.command(rich_help_panel="Operate")(command)


def workers(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the worker processes, their lanes and their kinds."""
    found = operate(ctx, lambda operator: operator.fleet.workers())
    if as_json:
        print_json({"workers": found})
        return
    print_table(
        ("worker", "host", "pid", "alive", "started", "seen", "lanes (busy/slots: queues)", "kinds"),
        (
            (w.name, w.host, str(w.pid), _alive(w), ago(w.started_at), ago(w.seen_at), _lanes(w), ", ".join(w.kinds))
            for w in found
        ),
        empty="no workers: start one with `dutiful worker`",
    )


def _alive(worker: WorkerRecord) -> str:
    facts = ["yes" if worker.alive else "no"]
    if worker.alive and worker.leading:
        facts.append("leader")
    if worker.process is Process.STOPPED:
        facts.append("process stopped")
    if not worker.alive and worker.process is Process.ENDED:
        facts.append("process ended")
    return ", ".join(facts)


def _lanes(worker: WorkerRecord) -> str:
    return "; ".join(f"{name} {_load(lane)}: {_serves(lane)}" for name, lane in worker.lanes.items())


def _serves(lane: LaneRecord) -> str:
    facts = ["fair"] if lane.fair else []
    facts += [f"reserve {lane.reserve}"] if lane.reserve else []
    facts += [f"only {', '.join(lane.kinds)}"] if lane.kinds else []
    facts += [f"of {', '.join(lane.tenants)}"] if lane.tenants else []
    return ",".join(lane.queues) + (f" ({', '.join(facts)})" if facts else "")


def _load(lane: LaneRecord) -> str:
    lingering = f", {lane.lingering} lingering" if lane.lingering else ""
    return f"{lane.busy}/{lane.slots}{lingering}"


def pause(ctx: typer.Context, scope: Scope, name: Name, reason: Reason = None) -> None:
    """Start no more jobs of a queue, kind or lane; running jobs continue. The lane `*` is every lane.

    It applies to all workers, until `dutiful resume`.

    \b
    Examples:
      dutiful pause queue fast --reason "mail server is down"
      dutiful pause kind send_email
      dutiful pause lane general
      dutiful pause lane '*'
    """
    say(operate(ctx, lambda operator: _pause(operator, scope, name, reason)))


def resume(ctx: typer.Context, scope: Scope, name: Name, reason: Reason = None) -> None:
    """Continue a paused queue, kind or lane; exit code 1 if it was not paused.

    \b
    Examples:
      dutiful resume queue fast
    """
    say(operate(ctx, lambda operator: _resume(operator, scope, name, reason)))


async def _pause(operator: Operator, scope: PauseScope, name: str, reason: str | None) -> str:
    if await operator.fleet.pause(scope, name, reason):
        known = await _known(operator, scope, name)
        if name not in known and name != EVERY_LANE:
            note(f"note: no live worker or waiting job has a {scope} {name!r}; check the spelling")
        return f"{scope} {name} is paused"
    held = FleetState.of([], await operator.fleet.pauses()).paused(scope, name)
    return f"{scope} {name} was {paused_text(held, now())}" if held else f"{scope} {name} was paused, and resumed since"


async def _resume(operator: Operator, scope: PauseScope, name: str, reason: str | None) -> str:
    resumed, pauses = await operator.fleet.resume(scope, name, reason), await operator.fleet.pauses()
    if resumed and (held := FleetState.of([], pauses).paused(scope, name)):
        return f"{scope} {name} is resumed, but every {scope} is paused; `{resume_command(held)}`"
    if resumed:
        return f"{scope} {name} is resumed"
    others = ", ".join(f"{p.scope} {p.name}" for p in pauses) or "nothing"
    raise DutifulError(f"{scope} {name} was not paused; paused is: {others}")


async def _known(operator: Operator, scope: PauseScope, name: str) -> set[str]:
    """The names in use now, `name` among them if it is."""
    workers = [worker for worker in await operator.fleet.workers() if worker.alive]
    match scope:
        case PauseScope.KIND:
            return {kind for worker in workers for kind in worker.kinds}
        case PauseScope.LANE:
            return {lane for worker in workers for lane in worker.lanes}
        case PauseScope.QUEUE:
            lanes = {queue for worker in workers for lane in worker.lanes.values() for queue in lane.queues}
            live = {q.queue for q in await operator.queues.all(named=[name]) if q.ready or q.scheduled or q.running}
            return lanes | live | {DEFAULT_QUEUE}


def drain(
    ctx: typer.Context,
    kind: Annotated[list[str] | None, typer.Option(help="A kind; may be repeated.")] = None,
    queue: Annotated[list[str] | None, typer.Option(help="A queue; may be repeated.")] = None,
    lane: Annotated[list[str] | None, typer.Option(help="A lane; may be repeated.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every present and future lane, instead of the others.")
    ] = False,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="How long to wait until nothing runs.")] = "10m",
    resume_on_timeout: Annotated[
        bool, typer.Option("--resume-on-timeout", help="If it is not safe by then, resume what this command paused.")
    ] = False,
    gone: Annotated[
        list[str] | None,
        typer.Option(metavar="WORKER", help="A silent worker whose process you know to have ended; may be repeated."),
    ] = None,
    reason: Reason = None,
    as_json: AsJson = False,
) -> None:
    """Pause kinds, queues or lanes for all workers, and wait until nothing of them runs.

    Exit code 0: it is safe; nothing runs, and nothing will before `dutiful resume`. 1: the time is over, or it was
    resumed meanwhile; running jobs are listed, with what can be done about each. New jobs are accepted, and wait. What
    is paused stays paused, even if you interrupt this. A silent worker may continue at any time, so the drain waits for
    it unless its process is seen to have ended, or you say so with --gone.

    \b
    Examples:
      dutiful drain --kind send_email --kind send_sms --timeout 10m --reason "mail server moves"
      dutiful drain --all
    """
    length = duration(timeout, "--timeout")

    begun: Drain | None = None

    async def work(operator: Operator) -> tuple[Drain, list[DrainTarget]]:
        nonlocal begun
        begun = await operator.fleet.drain(
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
        state = await operator.fleet.wait_drained(begun, length, progress.report)
        ours = state.newly_paused if resume_on_timeout and not state.safe else ()
        why = "the drain did not become safe"
        resumed = [target for target in ours if await operator.fleet.resume(target.scope, target.name, why)]
        return state, resumed

    try:
        state, resumed = operate(ctx, work)
    except KeyboardInterrupt:
        what = "`dutiful doctor` shows it" if begun is None else f"to resume: {_resumes(begun.pauses)}"
        note(f"interrupted; what is paused stays paused; {what}")
        raise
    if as_json:
        print_json(_json(state, resumed))
    elif state.safe:
        say(f"safe: nothing runs of {_listed(state.targets)}")
        note(f"to resume: {_resumes(state.pauses)}")
    else:
        _print_late(state, length, resumed)
    if not state.safe:
        raise typer.Exit(FAILURE)


class _Progress:
    """Prints to stderr how many jobs still run, whenever that changes."""

    def __init__(self, begun: Drain) -> None:
        self._last = ""
        self.report(begun)

    def report(self, state: Drain) -> None:
        text = f"{_listed(state.pauses)} paused; " + _still(state)
        if text != self._last and not state.safe and not state.stalled:
            self._last = text
            note(text)
            sys.stderr.flush()


def _still(state: Drain) -> str:
    if state.running:
        return "1 job still runs" if state.running == 1 else f"{state.running:,} jobs still run"
    waits = [f"waiting for a heartbeat of: {', '.join(state.unconfirmed)}"] if state.unconfirmed else []
    if state.silent:
        waits.append(f"silent: {', '.join(one.worker for one in state.silent)}")
    return f"none seen running; {'; '.join(waits) or 'checking again'}"


def _print_late(state: Drain, length: timedelta, resumed: Sequence[DrainTarget]) -> None:
    if state.not_paused:
        say(f"not safe: resumed meanwhile: {', '.join(state.not_paused)}; {_still(state)}")
    else:
        say(f"not safe after {brief(length)}: {_still(state)}")
    for remedy, alike in _by_remedy(state.blockers[:SHOWN]).items():
        print_table(
            ("id", "kind", "started", "worker"),
            ((ids.public(one.job_id), one.kind, ago(one.started_at), one.worker) for one in alike),
            empty="",
        )
        show(plain(f"→ {remedy}"))
    for silent in state.silent:
        show(plain(f"→ {silent.remedy}"))
    if len(state.blockers) > SHOWN:
        note(f"and {len(state.blockers) - SHOWN:,} more")
    if resumed:
        note(f"resumed: {_listed(resumed)}")
    if kept := [pause for pause in state.pauses if DrainTarget(pause.scope, pause.name) not in resumed]:
        note(f"still paused: {_listed(kept)}; to resume: {_resumes(kept)}")


def _by_remedy(blockers: Iterable[Blocker]) -> dict[str, list[Blocker]]:
    """Jobs with the same remedy, in which ID stands for each id."""
    found: dict[str, list[Blocker]] = {}
    for one in blockers:
        found.setdefault(one.remedy.replace(ids.public(one.job_id), "ID"), []).append(one)
    return found


def _listed(some: Iterable[DrainTarget | Pause]) -> str:
    return ", ".join("every lane" if one.name == EVERY_LANE else f"{one.scope} {one.name}" for one in some)


def _resumes(pauses: Iterable[Pause]) -> str:
    return "; ".join(map(resume_command, pauses))


def _json(state: Drain, resumed: Sequence[DrainTarget]) -> dict[str, Any]:
    blockers = [record_json(one, "job_id") for one in state.blockers]
    return {**msgspec.structs.asdict(state), "blockers": blockers, "resumed": list(resumed)}
