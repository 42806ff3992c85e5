"""The table of README, in Markdown, from the samples of a sitting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.report import Sample, medians

TABLE = (
    "drain1", "drain2", "enqueue-single", "enqueue-bulk", "latency", "latency-inside", "backlog", "unpinned", "pinned",
)  # fmt: skip
PEERS = ("dutiful", "dutiful-sqlite", "graphile", "pg-boss", "pgqueuer", "oban", "huey-full")
PIN_S = 30.0  # a snapshot is held for shorter than elsewhere, so that a sitting takes less than half an hour

_NAMES = {
    "dutiful": "Dutiful",
    "dutiful-sqlite": "Dutiful on SQLite",
    "graphile": "Graphile Worker",
    "pg-boss": "pg-boss",
    "pgqueuer": "PgQueuer",
    "oban": "oban",
    "huey-full": "Huey on SQLite",
}
_STORES = (("dutiful", "graphile", "pg-boss", "pgqueuer", "oban"), ("dutiful-sqlite", "huey-full"))
# What a row shows: its title, the scenario, and the figures of a cell.
_ROWS = (
    ("drain, one worker process, jobs/s", "drain1", ("jobs_per_s",)),
    ("drain, two processes", "drain2", ("jobs_per_s",)),
    ("CPU a job in a drain, worker / server, µs", "drain1", ("client_us_per_job", "server_us_per_job")),
    ("enqueue one at a time, jobs/s", "enqueue-single", ("jobs_per_s",)),
    ("enqueue in batches of 1,000", "enqueue-bulk", ("jobs_per_s",)),
    ("from enqueue to handler, idle worker, p50 / p99, ms", "latency", ("p50_ms", "p99_ms")),
    ("the same with the worker in the process", "latency-inside", ("p50_ms", "p99_ms")),
    ("with 500,000 jobs waiting behind, against 10,000", "backlog", ("ratio",)),
    ("under an old snapshot, against without one", "pinned", ("against_unpinned",)),
    ("memory of a worker in a drain, MB", "drain1", ("memory_mb",)),
)


def readme_table(samples: Sequence[Sample]) -> str:
    """A table for each store; a system that did not take part has no column, and a figure that is missing is a dash."""
    figures = medians(samples)
    took_part = {sample.peer for sample in samples}
    tables = [[peer for peer in peers if peer in took_part] for peers in _STORES]
    return "\n\n".join("\n".join(_lines(peers, figures)) for peers in tables if peers)


def _lines(peers: Sequence[str], figures: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    lines = [_line("", *(_NAMES[peer] for peer in peers)), "|---" * (len(peers) + 1) + "|"]
    for title, scenario, keys in _ROWS:
        cells = [_cell(keys, figures.get(scenario, {}).get(peer, {})) for peer in peers]
        if any(cell != "-" for cell in cells):
            lines.append(_line(title, *cells))
    return lines


def _line(title: str, *cells: str) -> str:
    return "| " + " | ".join((title, *cells)).lstrip() + " |"


def _cell(keys: Sequence[str], row: Mapping[str, float]) -> str:
    return " / ".join(_rounded(key, row[key]) for key in keys if key in row) or "-"


def _rounded(key: str, value: float) -> str:
    """As exact as the figure can be repeated: three digits, fewer of what is small."""
    match key:
        case "jobs_per_s":
            return f"{round(value, -2 if value >= 10_000 else -1):,.0f}"
        case "against_unpinned" | "ratio":
            return f"{value:.2f}"
        case _:
            return f"{value:.1f}" if key.endswith("_ms") else f"{value:.0f}"
