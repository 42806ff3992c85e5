"""What is measured; each scenario is the same code for every system."""

from __future__ import annotations

import asyncio
import statistics
import time
from itertools import count, cycle, product

import asyncpg

from benchmarks.counting import COUNTING_SCENARIOS
from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.lanes import LANE_SCENARIOS
from benchmarks.listeners import LISTENER_SCENARIOS
from benchmarks.listing import LISTING_SCENARIOS
from benchmarks.metering import METERING_SCENARIOS
from benchmarks.peer import Lane, Peer, payload
from benchmarks.phases import PHASE_SCENARIOS
from benchmarks.scenario import ALONE, RATE, RATIO, Metric, Scenario

_TASKS = 100
_BULK = 1_000
_PAUSE_S = 0.03
_WARM_UP = 20
_PIN_QUEUES = ("bench_a", "bench_b", "bench_c", "bench_d")
_PIN_PRIORITIES = (0, 1, 2)
_PIN_WAITING = 20_000


async def drain_one(bench: Bench, peer: Peer) -> Metrics:
    return await bench.drain(peer, bench.drain_jobs(peer))


async def drain_two(bench: Bench, peer: Peer) -> Metrics:
    return await bench.drain(peer, bench.drain_jobs(peer) * 3 // 2, workers=2)


async def enqueue_single(bench: Bench, peer: Peer) -> Metrics:
    return await _enqueue(bench, peer, tasks=1)


async def enqueue_concurrent(bench: Bench, peer: Peer) -> Metrics:
    return await _enqueue(bench, peer, tasks=_TASKS)


async def enqueue_bulk(bench: Bench, peer: Peer) -> Metrics:
    batch = [payload(i) for i in range(_BULK)]
    async with bench.database(peer) as url, peer.producer(url, 1) as producer:
        await producer.enqueue_many(batch)
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < bench.sizes.enqueue_s:
            await producer.enqueue_many(batch)
            done += _BULK
        return {"jobs_per_s": done / (time.perf_counter() - start)}


async def latency(bench: Bench, peer: Peer) -> Metrics:
    async with bench.database(peer) as url, peer.producer(url, 1) as producer:
        with bench.workers(peer, url) as crew:
            for number in range(_WARM_UP):
                await producer.enqueue(payload(number))
            await crew.reach(_WARM_UP)
            for number in range(bench.sizes.latency_jobs):
                await asyncio.sleep(_PAUSE_S)
                await producer.enqueue(payload(number, sent=time.time()))
            await crew.reach(_WARM_UP + bench.sizes.latency_jobs)
            cuts = statistics.quantiles(crew.latencies(), n=100, method="inclusive")
            return {"p50_ms": cuts[49] * 1000, "p99_ms": cuts[98] * 1000}


async def backlog(bench: Bench, peer: Peer) -> Metrics:
    jobs = bench.drain_jobs(peer) // 2
    alone = await bench.drain(peer, jobs)
    behind = await bench.drain(peer, jobs, behind=bench.sizes.backlog_jobs)
    return _against(behind["jobs_per_s"], alone["jobs_per_s"])


async def unknown_head(bench: Bench, peer: Peer) -> Metrics:
    jobs = bench.drain_jobs(peer) // 2
    alone = await bench.drain(peer, jobs)
    headed = await bench.drain(peer, jobs, head=bench.sizes.head_jobs)
    return _against(headed["jobs_per_s"], alone["jobs_per_s"])


async def paused_head(bench: Bench, peer: Peer) -> Metrics:
    jobs = bench.drain_jobs(peer) // 2
    alone = await bench.drain(peer, jobs)
    headed = await bench.drain(peer, jobs, head=bench.sizes.head_jobs, head_kind="paused")
    return _against(headed["jobs_per_s"], alone["jobs_per_s"])


async def pinned(bench: Bench, peer: Peer) -> Metrics:
    return await _sustained(bench, peer, pin=True)


async def unpinned(bench: Bench, peer: Peer) -> Metrics:
    return await _sustained(bench, peer, pin=False)


def _against(rate: float, alone: float) -> Metrics:
    return {"jobs_per_s": rate, "alone_jobs_per_s": alone, "ratio": rate / alone}


async def _enqueue(bench: Bench, peer: Peer, tasks: int) -> Metrics:
    async with bench.database(peer) as url, peer.producer(url, tasks) as producer:
        numbers = count()

        async def produce(until: float) -> int:
            done = 0
            while time.perf_counter() < until:
                await producer.enqueue(payload(next(numbers)))
                done += 1
            return done

        async def round_of(seconds: float) -> int:
            until = time.perf_counter() + seconds
            return sum(await asyncio.gather(*(produce(until) for _ in range(tasks))))

        # Opens the connections and prepares the statements.
        await round_of(0.2)
        start = time.perf_counter()
        done = await round_of(bench.sizes.enqueue_s)
        return {"jobs_per_s": done / (time.perf_counter() - start)}


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
    window = min(60.0, bench.sizes.pin_s / 5)
    first = _rate([sample for sample in samples if sample[0] <= window])
    last = _rate([sample for sample in samples if sample[0] >= elapsed - window])
    return {"first_jobs_per_s": first, "last_jobs_per_s": last, "ratio": last / first}


def _rate(samples: list[tuple[float, int]]) -> float:
    (start, before), (end, after) = samples[0], samples[-1]
    return (after - before) / (end - start)


_MEMORY = Metric("memory_mb", "worker MB", higher_is_better=False)
_WAL = Metric("wal_bytes_per_job", "WAL bytes a job", higher_is_better=False)
_LAG = Metric("settle_lag_ms", "last commit after ms", higher_is_better=False)
_SPAN = (Metric("first_jobs_per_s", "jobs/s, first minute"), Metric("last_jobs_per_s", "jobs/s, last minute"), RATIO)


def _drain_s(sizes: Sizes) -> float:
    return 3 + 10 * sizes.drain_scale


def _enqueue_s(sizes: Sizes) -> float:
    return 1.5 + sizes.enqueue_s


def _latency_s(sizes: Sizes) -> float:
    return 3 + 1.2 * _PAUSE_S * sizes.latency_jobs


def _backlog_s(sizes: Sizes) -> float:
    return _drain_s(sizes) + sizes.backlog_jobs / 20_000


def _head_s(sizes: Sizes) -> float:
    return _drain_s(sizes) + sizes.head_jobs / 20_000


def _pinned_s(sizes: Sizes) -> float:
    return 5 + sizes.pin_s


SCENARIOS = (
    Scenario("drain1", "Drain, one worker process", drain_one, (RATE, _MEMORY, _WAL, _LAG), _drain_s),
    Scenario("drain2", "Drain, two worker processes", drain_two, (RATE, _MEMORY, _WAL, _LAG), _drain_s),
    Scenario("enqueue-single", "Enqueue, one at a time", enqueue_single, (RATE,), _enqueue_s),
    Scenario("enqueue-concurrent", f"Enqueue, {_TASKS} tasks at once", enqueue_concurrent, (RATE,), _enqueue_s),
    Scenario("enqueue-bulk", f"Enqueue, batches of {_BULK:,}", enqueue_bulk, (RATE,), _enqueue_s),
    Scenario(
        "latency",
        "From enqueue to handler, idle worker",
        latency,
        (Metric("p50_ms", "p50 ms", higher_is_better=False), Metric("p99_ms", "p99 ms", higher_is_better=False)),
        _latency_s,
    ),
    Scenario("backlog", "Drain with a long backlog behind", backlog, (RATE, ALONE, RATIO), _backlog_s),
    Scenario("unknown-head", "Drain behind jobs of an unknown kind", unknown_head, (RATE, ALONE, RATIO), _head_s),
    Scenario("paused-head", "Drain behind jobs of a paused kind", paused_head, (RATE, ALONE, RATIO), _head_s),
    Scenario("pinned", "Produce and drain under an old snapshot", pinned, _SPAN, _pinned_s, repeats=1),
    Scenario("unpinned", "The same without the snapshot", unpinned, _SPAN, _pinned_s, repeats=1, by_default=False),
    *PHASE_SCENARIOS,
    *LISTENER_SCENARIOS,
    *LANE_SCENARIOS,
    *LISTING_SCENARIOS,
    *COUNTING_SCENARIOS,
    *METERING_SCENARIOS,
)
