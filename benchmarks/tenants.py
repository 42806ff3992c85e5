"""What a flooding tenant costs a quiet one in a fair lane: how long its jobs wait, alone and beside the flood."""

from __future__ import annotations

import asyncio
import dataclasses

from benchmarks.harness import Bench, Metrics
from benchmarks.peer import Peer, payload
from benchmarks.peers.dutiful_peer import DutifulPeer, make_app
from benchmarks.run_counter import RunCounter
from benchmarks.scenario import Scenario
from benchmarks.waits import PAUSE_S, WAIT_METRICS, compared, seconds, waits
from dutiful import Dutiful, LaneSettings

QUIET, FLOOD = "quiet", "flood"
FLOOD_S = 0.1
SLOTS = 8
_BULK = 1_000


async def shares(bench: Bench, peer: Peer) -> Metrics:
    alone = await _waits(bench, peer, flood=0)
    # More than its slots can run while the quiet tenant's jobs come.
    while_they_come = 10 + 2 * bench.sizes.latency_jobs * PAUSE_S
    beside = await _waits(bench, peer, flood=int(SLOTS * while_they_come / FLOOD_S))
    return compared(alone, beside)


async def _waits(bench: Bench, peer: Peer, flood: int) -> list[float]:
    """The percentiles of the waiting times of the quiet tenant's jobs, in seconds."""
    assert isinstance(peer, DutifulPeer)
    worker = dataclasses.replace(peer, worker=("benchmarks.tenants",))
    async with bench.database(peer) as url, fair_app(url) as app:
        for start in range(0, flood, _BULK):
            jobs = [payload(number) for number in range(start, min(start + _BULK, flood))]
            await app.kind(FLOOD).options(tenant=FLOOD).enqueue_many(jobs)
        bench.analyze(peer, url)
        return await waits(bench, worker, url, app.kind(QUIET).options(tenant=QUIET))


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


TENANT_SCENARIOS = (
    Scenario(
        "shares",
        "From enqueue to handler of a quiet tenant's jobs, beside one that floods the same fair lane",
        shares,
        WAIT_METRICS,
        seconds,
    ),
)
