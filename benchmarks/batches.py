"""What batches save: jobs that a handler gets by the hundred, beside the same jobs one by one."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import DEFAULT_LANE, Payload, Peer
from benchmarks.peers.dutiful_peer import DutifulPeer, fill, make_app
from benchmarks.run_counter import RunCounter
from benchmarks.scenario import ALONE, RATE, RATIO, Metric, Scenario
from dutiful import Dutiful

BATCHED, PLAIN = "batched", "plain"
BATCH, JOBS = 100, 40_000
# What is shown of both, and how it is called for jobs one by one.
_COSTS = {
    "client_us_per_job": "client CPU µs",
    "server_us_per_job": "server CPU µs",
    "wal_bytes_per_job": "WAL bytes",
    "written_bytes_per_job": "bytes written",
}


async def batches(bench: Bench, peer: Peer) -> Metrics:
    jobs = max(int(JOBS * min(bench.sizes.drain_scale, 1)), 1_000)
    alone = await _drain(bench, peer, PLAIN, jobs)
    batched = await _drain(bench, peer, BATCHED, jobs)
    costs = {f"alone_{name}": alone[name] for name in _COSTS if name in alone}
    rates = {"alone_jobs_per_s": alone["jobs_per_s"], "ratio": batched["jobs_per_s"] / alone["jobs_per_s"]}
    return {**batched, **costs, **rates}


async def _drain(bench: Bench, peer: Peer, kind: str, jobs: int) -> Metrics:
    assert isinstance(peer, DutifulPeer)
    worker = dataclasses.replace(peer, worker=(__name__,))
    async with bench.database(peer) as url:
        async with batched_app(url) as app:
            await fill(bench, peer, url, app.kind(kind), jobs)
        return await bench.measured(worker, url, jobs)


def batched_app(url: str, counter: RunCounter | None = None) -> Dutiful:
    app = make_app(url)
    lane: dict[str, Any] = {"queue": DEFAULT_LANE.queue, "priority": DEFAULT_LANE.priority}

    @app.job(name=BATCHED, batch=BATCH, **lane)
    async def batched(jobs: list[Payload]) -> None:
        if counter is not None:
            for job in jobs:
                counter.hit(job["sent"])

    @app.job(name=PLAIN, **lane)
    async def plain(id: int, to: str, sent: float, text: str) -> None:
        if counter is not None:
            counter.hit(sent)

    return app


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    app = batched_app(url, counter)
    async with app.opened() as client:
        await app.make_worker(client).run()


def _seconds(sizes: Sizes) -> float:
    return 8 + 20 * min(sizes.drain_scale, 1)


def _cost(name: str, title: str) -> Metric:
    return Metric(name, title, higher_is_better=False)


BATCH_SCENARIOS = (
    Scenario(
        "batch",
        f"Jobs in batches of {BATCH}, and one by one",
        batches,
        (
            RATE,
            ALONE,
            RATIO,
            *(_cost(name, title) for name, title in _COSTS.items()),
            *(_cost(f"alone_{name}", f"{title}, one by one") for name, title in _COSTS.items()),
        ),
        _seconds,
    ),
)
