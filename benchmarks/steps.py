"""What steps cost: a job of several steps beside one plain job that makes the same calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import DEFAULT_LANE, Peer
from benchmarks.peers.dutiful_peer import DutifulPeer, fill, make_app
from benchmarks.run_counter import RunCounter
from benchmarks.scenario import ALONE, RATE, RATIO, Metric, Scenario
from dutiful import Context, Dutiful, LaneSettings
from dutiful.store import Store
from dutiful.store.steps import StepMark, Unstored

STEPPED, PLAIN = "stepped", "plain"
STEPS = 10
AT_ONCE = 100
# Steps of jobs that run at the same time are stored together; with a few, the rate is that of single commits.
SLOTS = 100
# As many plain jobs end before their rate can be measured.
_PLAIN_SCALE = 2


async def steps(bench: Bench, peer: Peer) -> Metrics:
    # Jobs that began together end together. The rate is counted from the first end, so that one of many such waves is
    # not: a hundredth.
    jobs = bench.sizes.phased_jobs * 10
    plain = await _drain(bench, peer, PLAIN, jobs * _PLAIN_SCALE)
    stepped = await _drain(bench, peer, STEPPED, jobs)
    alone = plain["jobs_per_s"]
    return {**stepped, "alone_jobs_per_s": alone, "ratio": stepped["jobs_per_s"] / alone}


async def _drain(bench: Bench, peer: Peer, kind: str, jobs: int) -> Metrics:
    assert isinstance(peer, DutifulPeer)
    worker = dataclasses.replace(peer, worker=(__name__,))
    async with bench.database(peer) as url:
        async with stepped_app(url) as app:
            await fill(bench, peer, url, app.kind(kind), jobs)
        with bench.workers(worker, url) as crew:
            await crew.reach(jobs)
            rate = crew.rate()
            return {
                "jobs_per_s": rate,
                "steps_per_s": crew.reports / jobs * rate,
                "rounds_per_s": crew.rounds / jobs * rate,
            }


async def add(n: int, step: int) -> int:
    return n + step


def stepped_app(url: str, counter: RunCounter | None = None) -> Dutiful:
    app = make_app(url, lanes=(LaneSettings("all", SLOTS),))
    lane: dict[str, Any] = {"queue": DEFAULT_LANE.queue, "priority": DEFAULT_LANE.priority}

    @app.job(name=STEPPED, **lane)
    async def stepped(ctx: Context, id: int, to: str, sent: float, text: str) -> int:
        total = id
        for step in range(STEPS):
            total = await ctx.step(f"add {step}", add, total, step)
        if counter is not None:
            counter.hit(sent)
        return total

    @app.job(name=PLAIN, **lane)
    async def plain(id: int, to: str, sent: float, text: str) -> int:
        total = id
        for step in range(STEPS):
            total = await add(total, step)
        if counter is not None:
            counter.hit(sent)
        return total

    return app


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    app = stepped_app(url, counter)
    # A job waits for the commit of each step, so that many have to run at once: with 5 slots, a commit stores 5 steps.
    app.configure(lanes=f"all={AT_ONCE}:{DEFAULT_LANE.queue}")
    async with app.opened() as client:
        _count_steps(client.store, counter)
        await app.make_worker(client).run()


def _count_steps(store: Store, counter: RunCounter) -> None:
    """Count steps here, because the stores do not."""
    write = store.steps.put

    async def put(marks: Sequence[StepMark], *, now: datetime | None = None) -> Unstored:
        unstored = await write(marks, now=now)
        counter.reported(len(marks))
        return unstored

    store.steps.put = put  # type: ignore[method-assign]


def _seconds(sizes: Sizes) -> float:
    return 4 + sizes.phased_jobs / 30


STEP_SCENARIOS = (
    Scenario(
        "steps",
        f"{STEPS} stored steps a job, {AT_ONCE} jobs at once, and the same calls without",
        steps,
        (
            RATE,
            ALONE,
            RATIO,
            Metric("steps_per_s", "steps stored/s"),
            Metric("rounds_per_s", "in transactions/s"),
        ),
        _seconds,
    ),
)
