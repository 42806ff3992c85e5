"""What a flooding tenant costs a quiet one in a fair lane: how long its jobs wait, alone and beside the flood."""

from __future__ import annotations

import asyncio
import dataclasses
import statistics
import time

from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import Peer, payload
from benchmarks.peers.dutiful_peer import DutifulPeer, make_app
from benchmarks.run_counter import RunCounter
from benchmarks.scenario import RATIO, Metric, Scenario
from dutiful import Dutiful, LaneSettings

QUIET, FLOOD = "quiet", "flood"
FLOOD_S = 0.1
SLOTS = 8
_WARM_UP = 20
_BULK = 1_000
_PAUSE_S = 0.02


async def shares(bench: Bench, peer: Peer) -> Metrics:
    alone = await _waits(bench, peer, flood=0)
    # More than its slots can run while the quiet tenant's jobs come.
    seconds = 10 + 2 * bench.sizes.latency_jobs * _PAUSE_S
    beside = await _waits(bench, peer, flood=int(SLOTS * seconds / FLOOD_S))
    return {
        "alone_p99_ms": alone[98] * 1000,
        "p50_ms": beside[49] * 1000,
        "p99_ms": beside[98] * 1000,
        "ratio": beside[98] / alone[98],
    }


async def _waits(bench: Bench, peer: Peer, flood: int) -> list[float]:
    """The percentiles of the waiting times of the quiet tenant's jobs, in seconds."""
    assert isinstance(peer, DutifulPeer)
    worker = dataclasses.replace(peer, worker=("benchmarks.tenants",))
    async with bench.database(peer) as url, fair_app(url) as app:
        for start in range(0, flood, _BULK):
            jobs = [payload(number) for number in range(start, min(start + _BULK, flood))]
            await app.kind(FLOOD).options(tenant=FLOOD).enqueue_many(jobs)
        bench.analyze(peer, url)
        quiet = app.kind(QUIET).options(tenant=QUIET)
        with bench.workers(worker, url) as crew:
            for number in range(_WARM_UP):
                await quiet.enqueue(**payload(number))
            await crew.reach(_WARM_UP)
            for number in range(bench.sizes.latency_jobs):
                await asyncio.sleep(_PAUSE_S)
                await quiet.enqueue(**payload(number, sent=time.time()))
            await crew.reach(_WARM_UP + bench.sizes.latency_jobs)
            return statistics.quantiles(crew.latencies(), n=100, method="inclusive")


def fair_app(url: str, counter: RunCounter | None = None) -> Dutiful:
    app = make_app(url, lanes=(LaneSettings("all", SLOTS, fair=True),))

    @app.job(name=QUIET)
    async def quiet(id: int, to: str, sent: float, text: str) -> None:
        if counter is not None:
            counter.hit(sent)

    @app.job(name=FLOOD)
    async def flood(id: int, to: str, sent: float, text: str) -> None:
        await asyncio.sleep(FLOOD_S)

    return app


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    app = fair_app(url, counter)
    async with app.opened() as client:
        await app.make_worker(client).run()


def _seconds(sizes: Sizes) -> float:
    return 2 * (3 + 1.5 * _PAUSE_S * sizes.latency_jobs)


TENANT_SCENARIOS = (
    Scenario(
        "shares",
        "From enqueue to handler of a quiet tenant's jobs, beside one that floods the same fair lane",
        shares,
        (
            Metric("p50_ms", "p50 ms", higher_is_better=False),
            Metric("p99_ms", "p99 ms", higher_is_better=False),
            Metric("alone_p99_ms", "p99 ms without", higher_is_better=False),
            dataclasses.replace(RATIO, higher_is_better=False),
        ),
        _seconds,
    ),
)
