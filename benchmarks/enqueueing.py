"""How fast jobs are enqueued, one or many at a time, and what each costs."""

from __future__ import annotations

import asyncio
import time
from itertools import count

from benchmarks.costs import read
from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import Filling, Peer, Producer, payload
from benchmarks.scenario import COSTS, RATE, Scenario

_FEW, _MANY = 10, 100
_BULK = 1_000
_WARM_UP_S = 0.2
_COUNTED_S = 0.5


async def enqueue_single(bench: Bench, peer: Peer) -> Metrics:
    return await _enqueue(bench, peer, tasks=1)


async def enqueue_few(bench: Bench, peer: Peer) -> Metrics:
    return await _enqueue(bench, peer, tasks=_FEW)


async def enqueue_concurrent(bench: Bench, peer: Peer) -> Metrics:
    return await _enqueue(bench, peer, tasks=_MANY)


async def enqueue_bulk(bench: Bench, peer: Peer) -> Metrics:
    return await _enqueue(bench, peer, tasks=1, batch=_BULK)


async def _enqueue(bench: Bench, peer: Peer, tasks: int, batch: int = 1) -> Metrics:
    meter = bench.meter_of(peer)
    async with bench.database(peer) as url:
        name = url.rpartition("/")[2]
        commits = meter.commits(name) if meter else 0
        async with peer.producer(url, tasks) as producer:
            clients = producer.pids if isinstance(producer, Filling) else []
            # Opens the connections and prepares the statements.
            warmed, _ = await fill(producer, tasks, batch, _WARM_UP_S)
            since = read(meter, clients)
            done, seconds = await fill(producer, tasks, batch, bench.sizes.enqueue_s)
            metrics = {"jobs_per_s": done / seconds, **read(meter, clients).per_job(since, done)}
        if meter:
            metrics["commits_per_1000"] = (meter.commits(name) - commits) * 1000 / (warmed + done)
    if meter:
        metrics["round_trips_per_1000"] = await bench.once(
            f"enqueue {peer.name} {tasks} {batch}", lambda: _trips(bench, peer, tasks, batch)
        )
    return metrics


async def _trips(bench: Bench, peer: Peer, tasks: int, batch: int) -> float:
    async with bench.database(peer) as url:
        with bench.round_trips() as trips:
            async with peer.producer(trips.through(url), tasks) as producer:
                await fill(producer, tasks, batch, _WARM_UP_S)
                since = trips.count
                done, _ = await fill(producer, tasks, batch, min(bench.sizes.enqueue_s, _COUNTED_S))
                return (trips.count - since) * 1000 / done


async def fill(producer: Producer, tasks: int, batch: int, seconds: float) -> tuple[int, float]:
    """Enqueue from so many tasks for so long; returns how many jobs, and the seconds that it really took."""
    if isinstance(producer, Filling):
        return await producer.fill(tasks, batch, seconds)
    numbers = count()
    many = [payload(number) for number in range(batch)]
    start = time.perf_counter()
    until = start + seconds

    async def produce() -> int:
        done = 0
        while time.perf_counter() < until:
            if batch == 1:
                await producer.enqueue(payload(next(numbers)))
            else:
                await producer.enqueue_many(many)
            done += batch
        return done

    done = sum(await asyncio.gather(*(produce() for _ in range(tasks))))
    return done, time.perf_counter() - start


def _seconds(sizes: Sizes) -> float:
    return 4 + sizes.enqueue_s


_METRICS = (RATE, *COSTS)
ENQUEUE_SCENARIOS = (
    Scenario("enqueue-single", "Enqueue, one at a time", enqueue_single, _METRICS, _seconds),
    Scenario("enqueue-few", f"Enqueue, {_FEW} tasks at once", enqueue_few, _METRICS, _seconds),
    Scenario("enqueue-concurrent", f"Enqueue, {_MANY} tasks at once", enqueue_concurrent, _METRICS, _seconds),
    Scenario("enqueue-bulk", f"Enqueue, batches of {_BULK:,}", enqueue_bulk, _METRICS, _seconds),
)
