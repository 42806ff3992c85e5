"""What is measured; each scenario is the same code for every system."""

from __future__ import annotations

import asyncio
import time
from itertools import cycle, product

import asyncpg

from benchmarks.batches import BATCH_SCENARIOS
from benchmarks.counting import COUNTING_SCENARIOS
from benchmarks.docverse import DOCVERSE_SCENARIOS
from benchmarks.enqueueing import ENQUEUE_SCENARIOS
from benchmarks.flow import FLOW_SCENARIOS
from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.lanes import LANE_SCENARIOS
from benchmarks.latency import LATENCY_SCENARIOS
from benchmarks.listeners import LISTENER_SCENARIOS
from benchmarks.listing import LISTING_SCENARIOS
from benchmarks.metering import METERING_SCENARIOS
from benchmarks.peer import Lane, Peer, payload
from benchmarks.phases import PHASE_SCENARIOS
from benchmarks.scenario import ALONE, COSTS, RATE, RATIO, Metric, Scenario
from benchmarks.sql_door import SQL_DOOR_SCENARIOS
from benchmarks.steps import STEP_SCENARIOS
from benchmarks.supervised import SUPERVISED_SCENARIOS
from benchmarks.tenants import TENANT_SCENARIOS

_BULK = 1_000
_PIN_QUEUES = ("bench_a", "bench_b", "bench_c", "bench_d")
_PIN_PRIORITIES = (0, 1, 2)
_PIN_WAITING = 20_000
_AHEAD = 10_000  # more than any system claims ahead
_CPU = ("client_us_per_job", "server_us_per_job")


async def drain_one(bench: Bench, peer: Peer) -> Metrics:
    return await bench.drain(peer, bench.drain_jobs(peer))


async def drain_two(bench: Bench, peer: Peer) -> Metrics:
    return await bench.drain(peer, bench.drain_jobs(peer) * 3 // 2, workers=2)


async def backlog(bench: Bench, peer: Peer) -> Metrics:
    jobs = bench.drain_jobs(peer) // 2
    # Both end in the middle of work: without any jobs behind, the last ones have no next claim beside them.
    alone = await bench.drain(peer, jobs, behind=_AHEAD)
    return _against(await bench.drain(peer, jobs, behind=bench.sizes.backlog_jobs), alone)


async def unknown_head(bench: Bench, peer: Peer) -> Metrics:
    jobs = bench.drain_jobs(peer) // 2
    alone = await bench.drain(peer, jobs)
    return _against(await bench.drain(peer, jobs, head=bench.sizes.head_jobs), alone)


async def paused_head(bench: Bench, peer: Peer) -> Metrics:
    jobs = bench.drain_jobs(peer) // 2
    alone = await bench.drain(peer, jobs)
    return _against(await bench.drain(peer, jobs, head=bench.sizes.head_jobs, head_kind="paused"), alone)


async def unpinned(bench: Bench, peer: Peer) -> Metrics:
    metrics = await _sustained(bench, peer, pin=False)
    bench.unpinned[peer.name] = metrics["last_jobs_per_s"]
    return metrics


async def pinned(bench: Bench, peer: Peer) -> Metrics:
    metrics = await _sustained(bench, peer, pin=True)
    if alone := bench.unpinned.get(peer.name):
        metrics["against_unpinned"] = metrics["last_jobs_per_s"] / alone
    return metrics


def _against(beside: Metrics, alone: Metrics) -> Metrics:
    rate, rate_alone = beside["jobs_per_s"], alone["jobs_per_s"]
    metrics = {"jobs_per_s": rate, "alone_jobs_per_s": rate_alone, "ratio": rate / rate_alone}
    cpu, cpu_alone = ([drain[key] for key in _CPU if key in drain] for drain in (beside, alone))
    return metrics | {"cpu_ratio": sum(cpu_alone) / sum(cpu)} if len(cpu) == len(cpu_alone) == len(_CPU) else metrics


async def _sustained(bench: Bench, peer: Peer, pin: bool) -> Metrics:
    """Produce and drain at full speed over several lanes while a snapshot holds vacuum back."""
    lanes = cycle(Lane(queue=queue, priority=priority) for queue, priority in product(_PIN_QUEUES, _PIN_PRIORITIES))
    batch = [payload(i) for i in range(_BULK)]
    async with bench.database(peer) as url, peer.producer(url, 1) as producer:
        for _ in range(_PIN_WAITING // _BULK):
            await producer.enqueue_many(batch, next(lanes))
        snapshot = await asyncpg.connect(url)
        if pin:
            await snapshot.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await snapshot.fetchval("SELECT count(*) FROM pg_class")
        with bench.workers(peer, url, queues=_PIN_QUEUES) as crew:
            await crew.reach(1)
            sent = _PIN_WAITING
            start = time.perf_counter()
            samples = [(0.0, crew.count)]
            while (elapsed := time.perf_counter() - start) < bench.sizes.pin_s:
                if elapsed - samples[-1][0] >= 1:
                    samples.append((elapsed, crew.count))
                if sent - crew.count < _PIN_WAITING:
                    await producer.enqueue_many(batch, next(lanes))
                    sent += _BULK
                else:
                    await asyncio.sleep(0.002)
            samples.append((elapsed, crew.count))
        await snapshot.close()
    window = bench.sizes.pin_s / 5
    # At least two samples each: a system that enqueues slowly may have no more.
    early = sum(moment <= window for moment, _ in samples)
    late = sum(moment >= elapsed - window for moment, _ in samples)
    first, last = _rate(samples[: max(early, 2)]), _rate(samples[-max(late, 2) :])
    metrics = {"first_jobs_per_s": first, "last_jobs_per_s": last}
    # In a short run, a system with large batches may end none of them in the first seconds.
    return metrics | {"ratio": last / first} if first else metrics


def _rate(samples: list[tuple[float, int]]) -> float:
    (start, before), (end, after) = samples[0], samples[-1]
    return (after - before) / (end - start)


_MEMORY = Metric("memory_mb", "worker MB", higher_is_better=False)
_WAL = Metric("life_wal_bytes_per_job", "WAL bytes with enqueue", higher_is_better=False)
_LAG = Metric("settle_lag_ms", "last commit after ms", higher_is_better=False)
_DRAIN = (RATE, _MEMORY, _LAG, *COSTS, _WAL)
_BESIDE = (RATE, ALONE, RATIO, Metric("cpu_ratio", "CPU ratio"))
_AGAINST = Metric("against_unpinned", "last fifth against that without")
_SPAN = (Metric("first_jobs_per_s", "jobs/s, first fifth"), Metric("last_jobs_per_s", "jobs/s, last fifth"), RATIO)


def _drain_s(sizes: Sizes) -> float:
    return 6 + 10 * sizes.drain_scale


def _backlog_s(sizes: Sizes) -> float:
    return _drain_s(sizes) + sizes.backlog_jobs / 20_000


def _head_s(sizes: Sizes) -> float:
    return _drain_s(sizes) + sizes.head_jobs / 20_000


def _pinned_s(sizes: Sizes) -> float:
    return 5 + sizes.pin_s


SCENARIOS = (
    Scenario("drain1", "Drain, one worker process", drain_one, _DRAIN, _drain_s),
    Scenario("drain2", "Drain, two worker processes", drain_two, _DRAIN, _drain_s),
    *ENQUEUE_SCENARIOS,
    *LATENCY_SCENARIOS,
    Scenario("backlog", "Drain with a long backlog behind", backlog, _BESIDE, _backlog_s),
    Scenario("unknown-head", "Drain behind jobs of an unknown kind", unknown_head, _BESIDE, _head_s),
    Scenario("paused-head", "Drain behind jobs of a paused kind", paused_head, _BESIDE, _head_s),
    Scenario("unpinned", "Produce and drain for long", unpinned, _SPAN, _pinned_s, repeats=1),
    Scenario("pinned", "The same under an old snapshot", pinned, (*_SPAN, _AGAINST), _pinned_s, repeats=1),
    *STEP_SCENARIOS,
    *BATCH_SCENARIOS,
    *PHASE_SCENARIOS,
    *LISTENER_SCENARIOS,
    *LANE_SCENARIOS,
    *TENANT_SCENARIOS,
    *FLOW_SCENARIOS,
    *LISTING_SCENARIOS,
    *COUNTING_SCENARIOS,
    *METERING_SCENARIOS,
    *SUPERVISED_SCENARIOS,
    *SQL_DOOR_SCENARIOS,
    *DOCVERSE_SCENARIOS,
)
