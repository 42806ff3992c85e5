"""Medians and ratios, as tables for people and as JSON for later comparison."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import subprocess
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from benchmarks.harness import SERVER_SETTINGS, Metrics, Sizes
from benchmarks.peer import Peer, Versioned
from benchmarks.scenario import Metric, Scenario
from servers import PostgresServer

RESULTS = Path(__file__).parent / "results"

_WIDTH = 80
_WRAP = 10  # characters of a column head, if its words fit

# The system that the others are compared with, by store.
_SUBJECTS = {"postgres": "dutiful", "sqlite": "dutiful-sqlite"}
# The bare SQL is no queue, and what Huey does without syncs can be lost: neither is the best peer.
_UNEQUAL = {"raw", "huey"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one system."""

    scenario: str
    peer: str
    store: str
    repeat: int
    metrics: Metrics
    took_s: float


def medians(samples: Sequence[Sample]) -> dict[str, dict[str, dict[str, float]]]:
    """Scenario, then peer, then metric."""
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for sample in samples:
        for key, value in sample.metrics.items():
            values[sample.scenario, sample.peer, key].append(value)
    result: dict[str, dict[str, dict[str, float]]] = {}
    for (scenario, peer, key), found in values.items():
        result.setdefault(scenario, {}).setdefault(peer, {})[key] = statistics.median(found)
    return result


def ratios(samples: Sequence[Sample]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Scenario, then peer, then metric: Dutiful's figure over the peer's, of the medians and of each repeat."""
    figures = medians(samples)
    runs = {(sample.scenario, sample.peer, sample.repeat): sample.metrics for sample in samples}
    result: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for sample in samples:
        subject = _SUBJECTS[sample.store]
        ours = runs.get((sample.scenario, subject, sample.repeat), {})
        if sample.peer == subject:
            continue
        for key, theirs in sample.metrics.items():
            if key not in ours or not theirs or not figures[sample.scenario][sample.peer][key]:
                continue
            ratio = ours[key] / theirs
            known = result.setdefault(sample.scenario, {}).setdefault(sample.peer, {}).get(key, {})
            result[sample.scenario][sample.peer][key] = {
                "of_medians": figures[sample.scenario][subject][key] / figures[sample.scenario][sample.peer][key],
                "least": min(ratio, known.get("least", ratio)),
                "most": max(ratio, known.get("most", ratio)),
            }
    return result


def show(console: Console, scenarios: Sequence[Scenario], samples: Sequence[Sample]) -> None:
    """Print tables for each scenario and store, and one of how Dutiful compares in each row."""
    figures = medians(samples)
    stores = {sample.peer: sample.store for sample in samples}
    wide = console.options.update(width=1_000)

    def fits(table: Table) -> bool:
        return Measurement.get(console, wide, table).maximum <= _WIDTH

    for store in _SUBJECTS:
        compared = Table(title=f"Dutiful beside the best peer ({store})", title_justify="left")
        for head in ("scenario", "figure", "dutiful", "best peer", "", "ratio"):
            compared.add_column(head, justify="right" if head in ("dutiful", "best peer", "ratio") else "left")
        for scenario in scenarios:
            rows = {peer: row for peer, row in figures.get(scenario.name, {}).items() if stores[peer] == store}
            if rows:
                for table in _tables(scenario, store, rows, fits):
                    console.print(table)
                for cells in _compared(scenario, store, rows):
                    compared.add_row(*cells)
        if compared.row_count:
            console.print(compared)


def best_peer(metric: Metric, store: str, rows: Mapping[str, Mapping[str, float]]) -> str | None:
    """The system with the best figure, among those that promise what Dutiful does."""
    peers = [peer for peer in rows if peer != _SUBJECTS[store] and peer not in _UNEQUAL and metric.key in rows[peer]]
    best = max if metric.higher_is_better else min
    return best(peers, key=lambda peer: rows[peer][metric.key], default=None)


def _compared(scenario: Scenario, store: str, rows: Mapping[str, Mapping[str, float]]) -> Iterator[list[str]]:
    ours = rows.get(_SUBJECTS[store], {})
    for metric in _metrics(scenario, rows):
        peer = best_peer(metric, store, rows)
        if peer is None or metric.key not in ours:
            continue
        figure, theirs = ours[metric.key], rows[peer][metric.key]
        ratio = f"{figure / theirs:.2f}" if theirs else ""
        yield [scenario.name, metric.title, _number(figure), _number(theirs), peer, ratio]


def save(
    facts: Mapping[str, object], samples: Sequence[Sample], failures: Sequence[str], directory: Path = RESULTS
) -> Path:
    """Write every sample, the medians, how they compare, and the facts of the machine."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}.json"
    content = {
        "facts": facts,
        "medians": medians(samples),
        "ratios": ratios(samples),
        "samples": [asdict(sample) for sample in samples],
        "failures": failures,
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def machine_facts(server: PostgresServer, peers: Sequence[Peer], sizes: Sizes, load: float) -> dict[str, object]:
    """What the figures depend on."""
    return {
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_before": load,
        "system": platform.platform(),
        "python": platform.python_version(),
        "postgres": server.run_sql("SHOW server_version"),
        "settings": {"fsync": "on", "synchronous_commit": "on", **SERVER_SETTINGS},
        "packages": {peer.name: _version(peer) for peer in peers},
        "sizes": asdict(sizes),
    }


def _version(peer: Peer) -> str:
    return peer.version if isinstance(peer, Versioned) else metadata.version(peer.package)


def _commit() -> str:
    """With -dirty if there is more than was committed."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _tables(
    scenario: Scenario, store: str, rows: Mapping[str, Mapping[str, float]], fits: Callable[[Table], bool]
) -> list[Table]:
    """The first shape that fits; a table that is squeezed into too little space cannot be read."""
    shapes = (partial(_table, wrapped=False), partial(_table, wrapped=True), _turned)
    for shape in shapes:
        if fits(table := shape(scenario, store, rows)):
            return [table]
    metrics = _metrics(scenario, rows)
    if len(metrics) == 1 or len(rows) <= 2:
        return [_turned(scenario, store, rows)]
    # Too many systems beside each other: below each other, and half of the figures at a time.
    half = (len(metrics) + 1) // 2
    parts = (dataclasses.replace(scenario, metrics=tuple(part)) for part in (metrics[:half], metrics[half:]))
    return [table for part in parts for table in _tables(part, store, rows, fits)]


def _table(scenario: Scenario, store: str, rows: Mapping[str, Mapping[str, float]], *, wrapped: bool = False) -> Table:
    """A row a system; `wrapped`: with heads of several lines."""
    subject = _SUBJECTS[store]
    metrics = _metrics(scenario, rows)
    table = Table(title=f"{scenario.title} ({store})", title_justify="left")
    table.add_column("system")
    for title in (*(metric.title for metric in metrics), f"{subject} is better by"):
        head = textwrap.fill(title, _WRAP, break_long_words=False, break_on_hyphens=False) if wrapped else title
        table.add_column(head, justify="right")
    for peer in _ranked(metrics[0], rows):
        cells = [_number(rows[peer].get(metric.key)) for metric in metrics]
        table.add_row(peer, *cells, _advantage(metrics[0], subject, peer, rows))
    return table


def _turned(scenario: Scenario, store: str, rows: Mapping[str, Mapping[str, float]]) -> Table:
    """A row a metric, a column a system."""
    subject = _SUBJECTS[store]
    metrics = _metrics(scenario, rows)
    peers = _ranked(metrics[0], rows)
    table = Table(title=f"{scenario.title} ({store})", title_justify="left")
    table.add_column("metric")
    for peer in peers:
        table.add_column(peer, justify="right")
    for metric in metrics:
        table.add_row(metric.title, *(_number(rows[peer].get(metric.key)) for peer in peers))
    if len(peers) > 1:
        table.add_section()
        table.add_row(f"{subject} is better by", *(_advantage(metrics[0], subject, peer, rows) for peer in peers))
    return table


def _metrics(scenario: Scenario, rows: Mapping[str, Mapping[str, float]]) -> list[Metric]:
    return [metric for metric in scenario.metrics if any(metric.key in row for row in rows.values())]


def _ranked(headline: Metric, rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    return sorted(rows, key=lambda peer: rows[peer].get(headline.key, 0.0), reverse=headline.higher_is_better)


def _advantage(headline: Metric, subject: str, peer: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    if peer == subject or subject not in rows:
        return ""
    better, worse = rows[subject][headline.key], rows[peer][headline.key]
    if not headline.higher_is_better:
        better, worse = worse, better
    return f"{better / worse:.2f}x" if worse else ""  # in a short run, a slow system may end no job


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
