"""`queues` and `stats`: counts of jobs by queue and by state."""

from typing import Annotated, Any

import msgspec
import typer

from dutiful.cli.options import AsJson, Tenant
from dutiful.cli.output.printing import ago, note, print_json, print_table, show
from dutiful.cli.target import operate
from dutiful.core.duration import brief, duration
from dutiful.store.metrics import OTHERS

STATES = ("ready", "running", "scheduled", "blocked")


def register(cli: typer.Typer) -> None:
    for command in (queues, stats):
        cli.command(rich_help_panel="Operate")(command)


def queues(ctx: typer.Context, tenant: Tenant = None, as_json: AsJson = False) -> None:
    """List the queues that have jobs, with counts by state.

    Of more than 1,000, it lists those that the code or a lane names, and those with the most jobs.
    """
    found = operate(ctx, lambda operator: operator.queues.all(), tenant)
    if as_json:
        print_json({"queues": found})
        return
    others = found.pop() if found and found[-1].queue == OTHERS else None
    print_table(
        ("queue", *(f"{state}#" for state in STATES), "oldest ready", "paused"),
        (
            (
                q.queue,
                *(_about(getattr(q, state), q.estimated, 1_000 if others is None else 1) for state in STATES),
                ago(q.oldest_ready_at),
                "paused" if q.paused else None,
            )
            for q in found
        ),
        empty="no queue has jobs",
    )
    if others is not None:
        least = "at least " * others.estimated
        counts = (f"{_about(getattr(others, state), others.estimated)} {state}" for state in STATES)
        note(f"and {least}{others.queues:,} more queues, with {', '.join(counts)} jobs")


def stats(
    ctx: typer.Context,
    since: Annotated[str, typer.Option(metavar="TIME", help="Count jobs that ended within this time.")] = "1h",
    by_tenant: Annotated[
        bool, typer.Option("--by-tenant", help="Count jobs that ended, by tenant and state, instead.")
    ] = False,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Count jobs by state: live ones, and those that ended lately.

    \b
    Examples:
      dutiful stats --since 24h
      dutiful stats --by-tenant --since 1h
    """
    length = duration(since, "--since")
    if by_tenant:
        counts = operate(ctx, lambda operator: operator.queues.ended_by_tenant(length), tenant)
        if as_json:
            print_json({"since_seconds": length.total_seconds(), "ended": counts})
            return
        print_table(
            ("tenant", "state", "jobs#"),
            ((count.tenant, count.state.value, count.jobs) for count in counts),
            empty=f"no job has ended in the last {brief(length)}",
        )
        return
    found = operate(ctx, lambda operator: operator.queues.stats(length), tenant)
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


def _about(count: int, estimated: bool, least: int = 1_000) -> int | str:
    """Marks estimates of at least so many; those of few are nearly exact, unless there are very many queues."""
    return f"~{count:,}" if estimated and count >= least else count
