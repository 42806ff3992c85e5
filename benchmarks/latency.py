"""How long a job waits for an idle worker, in another process and in the one that enqueues it."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from benchmarks.harness import Bench, Metrics, Sizes, Workers
from benchmarks.peer import Embedding, Peer, Producer, payload
from benchmarks.run_counter import RunCounter
from benchmarks.scenario import Metric, Scenario

_PAUSE_S = 0.03
_WARM_UP = 20


async def latency(bench: Bench, peer: Peer) -> Metrics:
    async with bench.database(peer) as url, peer.producer(url, 1) as producer:
        with bench.workers(peer, url) as crew:
            return await _waits(bench, producer, crew.reach, crew.latencies)


async def latency_inside(bench: Bench, peer: Peer) -> Metrics:
    assert isinstance(peer, Embedding)
    counter = RunCounter.create(bench.directory / f"inside_{peer.name}")
    crew = Workers([], [counter])
    async with bench.database(peer) as url, peer.embedded(url, counter) as producer:
        return await _waits(bench, producer, crew.reach, crew.latencies)


async def _waits(
    bench: Bench, producer: Producer, reach: Callable[[int], Awaitable[None]], latencies: Callable[[], list[float]]
) -> Metrics:
    for number in range(_WARM_UP):
        await producer.enqueue(payload(number))
    await reach(_WARM_UP)
    for number in range(bench.sizes.latency_jobs):
        await asyncio.sleep(_PAUSE_S)
        await producer.enqueue(payload(number, sent=time.time()))
    await reach(_WARM_UP + bench.sizes.latency_jobs)
    cuts = statistics.quantiles(latencies(), n=100, method="inclusive")
    return {"p50_ms": cuts[49] * 1000, "p99_ms": cuts[98] * 1000}


def _seconds(sizes: Sizes) -> float:
    return 3 + 1.2 * _PAUSE_S * sizes.latency_jobs


_METRICS = (Metric("p50_ms", "p50 ms", higher_is_better=False), Metric("p99_ms", "p99 ms", higher_is_better=False))
LATENCY_SCENARIOS = (
    Scenario("latency", "From enqueue to handler, idle worker", latency, _METRICS, _seconds),
    Scenario("latency-inside", "The same with the worker in the process", latency_inside, _METRICS, _seconds),
)
