"""What counts cost beside many jobs: those that wait, and those that have ended. In milliseconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

from benchmarks.harness import Bench, Metrics
from benchmarks.listing import fill, jobs
from benchmarks.peer import Peer
from benchmarks.peers.dutiful_peer import make_app
from benchmarks.scenario import Metric, Scenario
from dutiful.observe.measure import measure
from dutiful.store import Store

_SMALL = 1_000
_BATCH = 5_000
_RUNS = 15
_HOUR = timedelta(hours=1)
_TENANT = "tenant_7"
_CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "stats": lambda store: store.stats(_HOUR),
    "queues": lambda store: store.queues(),
    "depths": lambda store: store.depths(),
    "measure": measure,
    "stats_of_tenant": lambda store: store.stats(_HOUR, tenant=_TENANT),
    "queues_of_tenant": lambda store: store.queues(tenant=_TENANT),
}


async def counting(bench: Bench, peer: Peer) -> Metrics:
    metrics: Metrics = {}
    for size, count in (("small", _SMALL), ("large", bench.sizes.listed_jobs)):
        async with bench.database(peer) as url, make_app(url).opened() as client:
            await fill(client.store, count)  # have ended
            await _enqueue(client.store, count)  # wait
            bench.analyze(peer, url)
            for name, call in _CALLS.items():
                metrics[f"{size}_{name}"] = await _milliseconds(client.store, call)
            waiting = (await client.store.stats(_HOUR)).live["ready"]
            metrics[f"{size}_off"] = 100 * abs(waiting - count) / count
    worst = max(metrics[f"large_{name}"] for name in _CALLS)
    return {"worst": worst, **metrics}


async def _enqueue(store: Store, count: int) -> None:
    source = jobs()
    for start in range(0, count, _BATCH):
        await store.insert([next(source) for _ in range(min(_BATCH, count - start))])


async def _milliseconds(store: Store, call: Callable[[Store], Awaitable[object]]) -> float:
    """The median, after a first call that plans and compiles."""
    await call(store)
    taken: list[float] = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        await call(store)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1000


COUNTING_SCENARIOS = (
    Scenario(
        "counting",
        "Counts beside as many jobs that wait, and that have ended, in ms",
        counting,
        (
            Metric("worst", "worst", higher_is_better=False),
            *(Metric(f"large_{name}", name.replace("_", " "), higher_is_better=False) for name in _CALLS),
            Metric("small_stats", "stats of 1,000", higher_is_better=False),
            Metric("large_off", "off by %", higher_is_better=False),
        ),
        repeats=1,
    ),
)
