"""Medians and ratios, as tables for people and as JSON for later comparison."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness import SERVER_SETTINGS, Metrics, Sizes
from benchmarks.peer import Peer
from benchmarks.scenario import Metric, Scenario
from dutiful.testing.servers import PostgresServer

RESULTS = Path(__file__).parent / "results"

# The system that the others are compared with, by store.
_SUBJECTS = {"postgres": "dutiful", "sqlite": "dutiful-sqlite"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one system."""

    scenario: str
    peer: str
    store: str
    repeat: int
    metrics: Metrics


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


def show(console: Console, scenarios: Sequence[Scenario], samples: Sequence[Sample]) -> None:
    """Print a table for each scenario and store."""
    figures = medians(samples)
    stores = {sample.peer: sample.store for sample in samples}
    for scenario in scenarios:
        for store in _SUBJECTS:
            rows = {peer: row for peer, row in figures.get(scenario.name, {}).items() if stores[peer] == store}
            if rows:
                console.print(_table(scenario, store, rows))


def save(
    facts: Mapping[str, object], samples: Sequence[Sample], failures: Sequence[str], directory: Path = RESULTS
) -> Path:
    """Write every sample, the medians and the facts of the machine."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}.json"
    content = {
        "facts": facts,
        "medians": medians(samples),
        "samples": [asdict(sample) for sample in samples],
        "failures": failures,
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def machine_facts(server: PostgresServer, peers: Sequence[Peer], sizes: Sizes, load: float) -> dict[str, object]:
    """What the figures depend on."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load_before": load,
        "system": platform.platform(),
        "python": platform.python_version(),
        "postgres": server.run_sql("SHOW server_version"),
        "settings": {"fsync": "on", "synchronous_commit": "on", **SERVER_SETTINGS},
        "packages": {peer.name: metadata.version(peer.package) for peer in peers},
        "sizes": asdict(sizes),
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _table(scenario: Scenario, store: str, rows: Mapping[str, Mapping[str, float]]) -> Table:
    subject = _SUBJECTS[store]
    metrics = [metric for metric in scenario.metrics if any(metric.key in row for row in rows.values())]
    table = Table(title=f"{scenario.title} ({store})", title_justify="left")
    table.add_column("system")
    for metric in metrics:
        table.add_column(metric.title, justify="right")
    headline = metrics[0]
    table.add_column(f"{subject} is better by", justify="right")
    ranked = sorted(rows.items(), key=lambda row: row[1].get(headline.key, 0.0), reverse=headline.higher_is_better)
    for peer, row in ranked:
        cells = [_number(row.get(metric.key)) for metric in metrics]
        table.add_row(peer, *cells, _advantage(headline, rows.get(subject), row) if peer != subject else "")
    return table


def _advantage(metric: Metric, subject: Mapping[str, float] | None, row: Mapping[str, float]) -> str:
    if subject is None:
        return ""
    ours, theirs = subject[metric.key], row[metric.key]
    return f"{ours / theirs if metric.higher_is_better else theirs / ours:.2f}x"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
