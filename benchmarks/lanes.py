"""What slow work costs fast work: how long fast jobs wait, alone and beside slow jobs that fill the general lane."""

from __future__ import annotations

import asyncio
import dataclasses

from benchmarks.harness import Bench, Metrics
from benchmarks.peer import Peer
from benchmarks.peers.dutiful_peer import DutifulPeer, fill, make_app
from benchmarks.run_counter import RunCounter
from benchmarks.scenario import Scenario
from benchmarks.waits import PAUSE_S, WAIT_METRICS, compared, seconds, waits
from dutiful import Dutiful

FAST, SLOW = "fast", "slow"
SLOW_S = 1.0
WAITING = 50  # slow jobs, when the last fast one has run


async def lanes(bench: Bench, peer: Peer) -> Metrics:
    alone = await _waits(bench, peer, slow=0)
    # What five slots can run of them while fast jobs come, and those that still wait then.
    while_they_come = bench.sizes.latency_jobs * PAUSE_S
    beside = await _waits(bench, peer, slow=WAITING + int(10 * (while_they_come + 10) / SLOW_S))
    return compared(alone, beside)


async def _waits(bench: Bench, peer: Peer, slow: int) -> list[float]:
    """The percentiles of the waiting times of fast jobs, in seconds."""
    assert isinstance(peer, DutifulPeer)
    worker = dataclasses.replace(peer, worker=("benchmarks.lanes",))
    async with bench.database(peer) as url, laned_app(url) as app:
        await fill(bench, peer, url, app.kind(SLOW), slow)
        return await waits(bench, worker, url, app.kind(FAST))


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


LANE_SCENARIOS = (
    Scenario(
        "lanes",
        f"From enqueue to handler of fast jobs, beside over {WAITING} slow ones that wait",
        lanes,
        WAIT_METRICS,
        seconds,
    ),
)
