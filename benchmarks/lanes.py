"""What slow work costs fast work: how long fast jobs wait, alone and beside slow jobs that fill the general lane."""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import time

from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import Peer, payload
from benchmarks.peers.dutiful_peer import DutifulPeer, fill, make_app
from benchmarks.run_counter import RunCounter
from benchmarks.scenario import RATIO, Metric, Scenario
from dutiful import Dutiful

FAST, SLOW = "fast", "slow"
SLOW_S = 1.0
WAITING = 50  # slow jobs, when the last fast one has run
_WARM_UP = 20
_PAUSE_S = 0.02


async def lanes(bench: Bench, peer: Peer) -> Metrics:
    alone = await _waits(bench, peer, slow=0)
    # What five slots can run of them while fast jobs come, and those that still wait then.
    seconds = bench.sizes.latency_jobs * _PAUSE_S
    beside = await _waits(bench, peer, slow=WAITING + int(10 * (seconds + 10) / SLOW_S))
    return {
        "alone_p99_ms": alone[98] * 1000,
        "p50_ms": beside[49] * 1000,
        "p99_ms": beside[98] * 1000,
        "ratio": beside[98] / alone[98],
    }


async def _waits(bench: Bench, peer: Peer, slow: int) -> list[float]:
    """The percentiles of the waiting times of fast jobs, in seconds."""
    assert isinstance(peer, DutifulPeer)
    worker = dataclasses.replace(peer, worker=("benchmarks.lanes",))
    async with bench.database(peer) as url, laned_app(url) as app:
        await fill(bench, peer, url, app.kind(SLOW), slow)
        fast = app.kind(FAST)
        with bench.workers(worker, url) as crew:
            for number in range(_WARM_UP):
                await fast.enqueue(**payload(number))
            await crew.reach(_WARM_UP)
            for number in range(bench.sizes.latency_jobs):
                await asyncio.sleep(_PAUSE_S)
                await fast.enqueue(**payload(number, sent=time.time()))
            await crew.reach(_WARM_UP + bench.sizes.latency_jobs)
            return statistics.quantiles(crew.latencies(), n=100, method="inclusive")


def laned_app(url: str, counter: RunCounter | None = None) -> Dutiful:
    app = make_app(url)

    @app.job(name=FAST, queue="fast")
    async def fast(id: int, to: str, sent: float, text: str) -> None:
        if counter is not None:
            counter.hit(sent)

    @app.job(name=SLOW)
    async def slow(id: int, to: str, sent: float, text: str) -> None:
        await asyncio.sleep(SLOW_S)

    return app


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    app = laned_app(url, counter)
    async with app.opened() as client:
        await app.make_worker(client).run()


def _seconds(sizes: Sizes) -> float:
    return 2 * (3 + 1.5 * _PAUSE_S * sizes.latency_jobs)


LANE_SCENARIOS = (
    Scenario(
        "lanes",
        f"From enqueue to handler of fast jobs, beside over {WAITING} slow ones that wait",
        lanes,
        (
            Metric("p50_ms", "p50 ms", higher_is_better=False),
            Metric("p99_ms", "p99 ms", higher_is_better=False),
            Metric("alone_p99_ms", "p99 ms without", higher_is_better=False),
            dataclasses.replace(RATIO, higher_is_better=False),
        ),
        _seconds,
    ),
)
