"""`metrics`: all metrics, as tables."""

import math
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer

from dutiful.cli.options import AsJson
from dutiful.cli.output.printing import plain, print_json, print_table, show
from dutiful.cli.target import operate
from dutiful.core.duration import brief, duration
from dutiful.core.errors import UsageError
from dutiful.core.metrics.catalogue import METRICS, WINDOW_MINUTES, Sample
from dutiful.core.metrics.estimate import Bounds
from dutiful.maintenance.rollup import KEEP
from dutiful.store.metrics import FINE

# One table for the metrics of each label: column to metric.
COLUMNS = {
    "kind": {
        "attempts#": "recent_attempts",
        "errors#": "error_rate",
        "of last 10#": "last_error_rate",
        "lost#": "lost_attempts",
        "run p50#": "run_p50_seconds",
        "run p95#": "run_p95_seconds",
        "run p99#": "run_p99_seconds",
        "wait p50#": "wait_p50_seconds",
        "wait p95#": "wait_p95_seconds",
        "wait p99#": "wait_p99_seconds",
        "largest payload#": "payload_most_bytes",
    },
    "lane": {"busy#": "lane_utilisation"},
    "breaker": {"open": "breaker_open"},
}
MINUTE = timedelta(minutes=1)
PLACES = {"pending#": "pending", "running#": "running", "scheduled#": "scheduled", "blocked#": "blocked"}
ALL = {
    "pending": "pending_total",
    "dead letters": "dead_letters",
    "running for over an hour": "stuck",
    "workers alive": "workers",
}


def register(cli: typer.Typer) -> None:
    cli.command(rich_help_panel="Operate")(metrics)


def metrics(
    ctx: typer.Context,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Rates and quantiles cover this time, 1m to 7d.")
    ] = f"{WINDOW_MINUTES}m",
    as_json: AsJson = False,
) -> None:
    """Show metrics: queues, error rates and times by kind, lanes, breakers.

    Workers report every ten seconds, so the latest jobs may be missing.

    \b
    Examples:
      dutiful metrics --since 1h
      dutiful metrics --json
    """
    length = duration(since, "--since")
    if not MINUTE <= length <= KEEP:
        raise UsageError(
            f"--since {since}: metrics are kept by the minute for {brief(FINE)}, and by the hour for {brief(KEEP)}; "
            f"give a time from {brief(MINUTE)} to {brief(KEEP)}"
        )
    found = operate(ctx, lambda operator: operator.metrics.samples(length))
    if as_json:
        print_json({"since_seconds": length.total_seconds(), "metrics": found})
        return
    _print_places(found)
    _print_labelled(found, "kind", empty=f"no attempt has ended in the last {brief(length)}")
    _print_labelled(found, "lane", empty="no workers: start one with `dutiful worker`")
    _print_labelled(found, "breaker", empty="no breakers")
    for sample in found:
        if sample.metric == "paused_seconds":
            show(plain(f"{sample.labels['scope']} {sample.labels['name']} has been paused for {_shown(sample)}"))
    values = {sample.metric: sample for sample in found if not sample.labels}
    show(", ".join(f"{name} {_shown(values[metric])}" for name, metric in ALL.items() if metric in values))


def _print_places(found: Iterable[Sample]) -> None:
    rows: dict[tuple[str, str], dict[str, Sample]] = {}
    oldest: dict[str, str | None] = {}
    for sample in found:
        if sample.metric in PLACES.values():
            rows.setdefault((sample.labels["queue"], sample.labels["kind"]), {})[sample.metric] = sample
        elif sample.metric == "oldest_pending_seconds":
            oldest[sample.labels["queue"]] = _shown(sample)
    print_table(
        ("queue", "kind", *PLACES, "oldest pending in queue#"),
        (
            (queue, kind, *(_shown(row.get(metric)) for metric in PLACES.values()), oldest.get(queue))
            for (queue, kind), row in sorted(rows.items())
        ),
        empty="no jobs wait or run",
    )


def _print_labelled(found: Iterable[Sample], label: str, *, empty: str) -> None:
    columns = COLUMNS[label]
    rows: dict[str, dict[str, Sample]] = {}
    for sample in found:
        if METRICS[sample.metric].labels == (label,):
            rows.setdefault(sample.labels[label], {})[sample.metric] = sample
    print_table((label, *columns), ((name, *_cells(columns, row)) for name, row in sorted(rows.items())), empty=empty)


def _cells(columns: dict[str, str], row: dict[str, Sample]) -> Sequence[Any]:
    return [_shown(row.get(metric)) for metric in columns.values()]


def _shown(sample: Sample | None) -> str | None:
    if sample is None:
        return None
    metric, value = sample.metric, sample.value
    if metric in ("error_rate", "last_error_rate", "lane_utilisation"):
        return f"{100 * value:.1f} %"
    if metric == "breaker_open":
        return "open" if value else "closed"
    if metric.endswith("_seconds"):
        return f"{value * 1e6:.0f}us" if value < 0.001 else brief(timedelta(seconds=value))
    return f"{_prefix(sample.bounds)}{value:,.0f}{' bytes' if metric.endswith('_bytes') else ''}"


def _prefix(bounds: Bounds | None) -> str:
    if bounds is None:
        return ""
    return "at least " if math.isinf(bounds.high) else "about "
