"""`queues`, `workers`, `stats`: how things stand."""

from typing import Annotated, Any

import msgspec
import typer

from dutiful.cli.output import AsJson, Tenant, ago, print_json, print_table, show
from dutiful.cli.target import operate
from dutiful.core.duration import brief, duration
from dutiful.duties import Process, WorkerRecord


def register(cli: typer.Typer) -> None:
    for command in (queues, workers, stats):
        cli.command(rich_help_panel="Operate")(command)


def queues(ctx: typer.Context, tenant: Tenant = None, as_json: AsJson = False) -> None:
    """List the queues that have jobs, and how many wait where."""
    found = operate(ctx, lambda operator: operator.queues(), tenant)
    if as_json:
        print_json({"queues": found})
        return
    print_table(
        ("queue", "ready#", "running#", "scheduled#", "blocked#", "oldest ready", "paused"),
        (
            (
                q.queue,
                *(_about(count, q.estimated) for count in (q.ready, q.running, q.scheduled, q.blocked)),
                ago(q.oldest_ready_at),
                "paused" if q.paused else None,
            )
            for q in found
        ),
        empty="no queue has jobs",
    )


def workers(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the worker processes, their lanes and what they know."""
    found = operate(ctx, lambda operator: operator.workers())
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


def stats(
    ctx: typer.Context,
    since: Annotated[str, typer.Option(metavar="TIME", help="Count jobs that ended within this time.")] = "1h",
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Count jobs by state: those that live, and those that ended lately.

    \b
    Examples:
      dutiful stats --since 24h
    """
    length = duration(since, "--since")
    found = operate(ctx, lambda operator: operator.stats(length), tenant)
    if as_json:
        print_json(msgspec.structs.asdict(found))
        return
    rows: list[tuple[Any, ...]] = [("now", state, count) for state, count in found.live.items()]
    rows += [(f"last {brief(length)}", state, count) for state, count in found.finished.items() if count]
    print_table(
        ("when", "state", "jobs#"),
        ((when, state, _about(count, found.estimated)) for when, state, count in rows),
        empty="no jobs",
    )
    show(f"dead letters {found.dead_letters:,}, workers alive {found.workers:,}")
    if found.oldest_ready_at is not None:
        show(f"the oldest ready job was due {ago(found.oldest_ready_at)}")


def _about(count: int, estimated: bool) -> int | str:
    """Few are never guessed by much, so only many are marked."""
    return f"~{count:,}" if estimated and count >= 1_000 else count


def _alive(worker: WorkerRecord) -> str:
    words = ["yes" if worker.alive else "no"]
    if worker.alive and worker.leading:
        words.append("leads")
    if worker.process is Process.STOPPED:
        words.append("its process is stopped")
    if not worker.alive and worker.process is Process.ENDED:
        words.append("it has ended")
    return ", ".join(words)


def _lanes(worker: WorkerRecord) -> str:
    return "; ".join(
        f"{name} {lane.get('busy', 0)}/{lane['slots']}: {','.join(lane['queues'])}"
        for name, lane in worker.lanes.items()
    )
