"""What a measurement is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import Peer


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a scenario and which way is better."""

    key: str
    title: str
    higher_is_better: bool = True


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named measurement; `repeats` overrides the default where a run takes minutes.

    `seconds` is how long one run of one system takes, about; it is printed before the first run. The result
    files have the real times.
    """

    name: str
    title: str
    run: Callable[[Bench, Peer], Awaitable[Metrics]]
    metrics: tuple[Metric, ...]
    seconds: Callable[[Sizes], float]
    repeats: int | None = None
    by_default: bool = True


RATE = Metric("jobs_per_s", "jobs/s")
ALONE = Metric("alone_jobs_per_s", "jobs/s without")
RATIO = Metric("ratio", "ratio")
COSTS = (
    Metric("client_us_per_job", "client CPU µs", higher_is_better=False),
    Metric("server_us_per_job", "server CPU µs", higher_is_better=False),
    Metric("background_us_per_job", "server's background CPU µs", higher_is_better=False),
    Metric("wal_bytes_per_job", "WAL bytes", higher_is_better=False),
    Metric("commits_per_1000", "commits a 1,000", higher_is_better=False),
    Metric("round_trips_per_1000", "round trips a 1,000", higher_is_better=False),
    Metric("written_bytes_per_job", "bytes written", higher_is_better=False),
)
