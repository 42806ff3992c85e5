"""How long jobs wait from enqueue to handler, alone and beside others."""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import time
from typing import Any

from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import Peer, payload
from benchmarks.scenario import RATIO, Metric
from dutiful.kind import Kind, Request

PAUSE_S = 0.02
_WARM_UP = 20

WAIT_METRICS = (
    Metric("p50_ms", "p50 ms", higher_is_better=False),
    Metric("p99_ms", "p99 ms", higher_is_better=False),
    Metric("alone_p99_ms", "p99 ms without", higher_is_better=False),
    dataclasses.replace(RATIO, higher_is_better=False),
)


async def waits(bench: Bench, worker: Peer, url: str, kind: Kind[..., Any] | Request[..., Any]) -> list[float]:
    """The percentiles of the waiting times of jobs that come one after the other, in seconds."""
    with bench.workers(worker, url) as crew:
        for number in range(_WARM_UP):
            await kind.enqueue(**payload(number))
        await crew.reach(_WARM_UP)
        for number in range(bench.sizes.latency_jobs):
            await asyncio.sleep(PAUSE_S)
            await kind.enqueue(**payload(number, sent=time.time()))
        await crew.reach(_WARM_UP + bench.sizes.latency_jobs)
        return statistics.quantiles(crew.latencies(), n=100, method="inclusive")


def compared(alone: list[float], beside: list[float]) -> Metrics:
    return {
        "alone_p99_ms": alone[98] * 1000,
        "p50_ms": beside[49] * 1000,
        "p99_ms": beside[98] * 1000,
        "ratio": beside[98] / alone[98],
    }


def seconds(sizes: Sizes) -> float:
    return 2 * (3 + 1.5 * PAUSE_S * sizes.latency_jobs)
