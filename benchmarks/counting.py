"""The cost of counts beside many waiting and many finished jobs, in milliseconds.

Also the hard cases: kinds that come in batches, a tenant with some of many jobs, and a backlog that was just drained,
whose rows are dead but not yet vacuumed. And over HTTP, beside the counts of a fleet.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import uuid_utils.compat

from benchmarks.fleet import Fleet
from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.listing import fill, jobs
from benchmarks.peer import Peer
from benchmarks.peers.dutiful_peer import make_app
from benchmarks.scenario import Metric, Scenario
from benchmarks.serving import PATHS, RUNS, served
from dutiful.client.client import Client
from dutiful.core.job import NewJob
from dutiful.observe.measure import measure
from dutiful.store import Store
from dutiful.store.claims import ClaimRequest, Completion, QueueLevel

_SMALL = 1_000
_BATCH = 5_000
_HOUR = timedelta(hours=1)
_TENANT = "tenant_7"
_CALLS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "stats": lambda store: store.queries.stats(_HOUR),
    "queues": lambda store: store.queries.queues(),
    "depths": lambda store: store.metrics.depths(),
    "measure": measure,
    "stats_of_tenant": lambda store: store.queries.stats(_HOUR, tenant=_TENANT),
    "queues_of_tenant": lambda store: store.queries.queues(tenant=_TENANT),
}

_HARD = ("batches", "some_of_tenant", "worked_off")
_HTTP = {
    "http_metrics": "GET metrics, just before a roll-up",
    "http_statistics": "GET statistics",
    "http_queues": "GET queues",
}
# In this order, because rows that the first has found dead are not read again by the next.
_FIRST = {
    "first_metrics": "GET metrics, first after that",
    "first_statistics": "GET statistics, then",
    "first_queues": "GET queues, then",
}


async def counting(bench: Bench, peer: Peer) -> Metrics:
    metrics: Metrics = {}
    for size, count in (("small", _SMALL), ("large", bench.sizes.listed_jobs)):
        async with bench.database(peer) as url, make_app(url).opened() as client:
            await fill(client.store, count)  # have ended
            await _enqueue(client.store, count)  # wait
            bench.analyze(peer, url)
            if size == "large":
                metrics["just_loaded"] = await _milliseconds(client.store, _CALLS["stats"])
            bench.vacuum(peer, url)
            for name, call in _CALLS.items():
                metrics[f"{size}_{name}"] = await _milliseconds(client.store, call)
            waiting = (await client.store.queries.stats(_HOUR)).live["ready"]
            metrics[f"{size}_off"] = 100 * abs(waiting - count) / count
            if size == "large":
                metrics |= await _over_http(bench, peer, url, client)
    metrics |= await _in_batches(bench, peer)
    worst = max(metrics[name] for name in (*(f"large_{name}" for name in _CALLS), *_HARD))
    worst_http = max(metrics[name] for name in _HTTP)
    return {"worst": worst, "worst_http": worst_http, **metrics}


async def _over_http(bench: Bench, peer: Peer, url: str, client: Client) -> Metrics:
    fleet = Fleet(client.store)
    await fleet.live()
    await fleet.have_counted(bench.sizes.counted_hours)
    bench.analyze(peer, url)
    async with served(url, client) as api:
        metrics = {"http_metrics_rolled_up": await api.median("metrics")}
        await fleet.count_on()
        for name in PATHS:
            await api.first(name)
            metrics[f"http_{name}"] = await api.median(name)
    return metrics


async def _in_batches(bench: Bench, peer: Peer) -> Metrics:
    """One kind is a 25th of each batch and stays; of the other, one job in 70 is a tenant's, and it is worked off."""
    count = bench.sizes.listed_jobs
    async with bench.database(peer) as url, make_app(url).opened() as client:
        store = client.store
        for _ in range(0, count, _BATCH):
            few = [_job("few") for _ in range(_BATCH // 25)]
            await store.jobs.insert(
                [*few, *(_job("many", None if n % 70 else _TENANT) for n in range(_BATCH - len(few)))]
            )
        few_in_all = count // 25
        metrics = {
            "batches_off": await _off(store, few_in_all),
            "batches": await _milliseconds(store, _CALLS["depths"]),
            "some_of_tenant": await _milliseconds(store, _CALLS["stats_of_tenant"]),
        }
        worker = uuid_utils.compat.uuid7()
        ask = ClaimRequest(
            worker, "bench", [QueueLevel("default", 100)], ("many",), _BATCH, timedelta(minutes=5), suspects=0
        )
        async with served(url, client) as api:
            while claims := await store.claims.claim(ask):
                await store.claims.complete([Completion(claimed.job_id, claimed.claim_id) for claimed in claims])
            for name in PATHS:
                metrics[f"first_{name}"] = await api.first(name)
        metrics["worked_off"] = await _milliseconds(store, _CALLS["stats"])
        metrics["worked_off_off"] = await _off(store, few_in_all)
        return metrics


async def _off(store: Store, count: int) -> float:
    """The mean error of the estimates of the rare kind, in percent."""
    estimates = [sum(one.count for one in await store.metrics.depths() if one.kind == "few") for _ in range(RUNS)]
    return statistics.mean(100 * abs(one - count) / count for one in estimates)


def _job(kind: str, tenant: str | None = None) -> NewJob:
    return NewJob(id=uuid_utils.compat.uuid7(), kind=kind, queue="default", payload="{}", tenant=tenant)


async def _enqueue(store: Store, count: int) -> None:
    source = jobs()
    for start in range(0, count, _BATCH):
        await store.jobs.insert([next(source) for _ in range(min(_BATCH, count - start))])


async def _milliseconds(store: Store, call: Callable[[Store], Awaitable[object]]) -> float:
    """The median, after a first call that plans and compiles."""
    await call(store)
    taken: list[float] = []
    for _ in range(RUNS):
        start = time.perf_counter()
        await call(store)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1000


def _seconds(sizes: Sizes) -> float:
    return 50 + sizes.listed_jobs / 6_000 + 2 * sizes.counted_hours


COUNTING_SCENARIOS = (
    Scenario(
        "counting",
        "Counts beside as many jobs that wait, and that have ended, in ms",
        counting,
        (
            Metric("worst", "worst, in the program", higher_is_better=False),
            Metric("worst_http", "worst, over HTTP", higher_is_better=False),
            *(Metric(f"large_{name}", name.replace("_", " "), higher_is_better=False) for name in _CALLS),
            Metric("small_stats", "stats of 1,000", higher_is_better=False),
            Metric("just_loaded", "stats, just loaded", higher_is_better=False),
            Metric("large_off", "off by %", higher_is_better=False),
            *(Metric(name, title, higher_is_better=False) for name, title in _HTTP.items()),
            Metric("http_metrics_rolled_up", "GET metrics, just after a roll-up", higher_is_better=False),
            *(Metric(name, name.replace("_", " "), higher_is_better=False) for name in _HARD),
            *(Metric(name, title, higher_is_better=False) for name, title in _FIRST.items()),
            Metric("batches_off", "few in batches off by %", higher_is_better=False),
            Metric("worked_off_off", "few left off by %", higher_is_better=False),
        ),
        seconds=_seconds,
        repeats=1,
    ),
)
