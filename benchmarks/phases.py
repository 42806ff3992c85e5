"""What phases and progress cost: a pipeline beside one plain job that takes the same steps."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import DEFAULT_LANE, Peer
from benchmarks.peers.dutiful_peer import DutifulPeer, fill, make_app
from benchmarks.run_counter import RunCounter
from benchmarks.scenario import ALONE, RATE, RATIO, Metric, Scenario
from dutiful import Context, Dutiful
from dutiful.store import Store
from dutiful.store.progress import PhaseMark, ProgressReport

PHASED, PLAIN = "phased", "plain"
PHASES = ("download", "process", "upload")
STEPS = 7  # in each phase
# A thousand plain jobs end before their rate can be measured.
_PLAIN_SCALE = 20


async def phases(bench: Bench, peer: Peer) -> Metrics:
    jobs = bench.sizes.phased_jobs
    plain = await _drain(bench, peer, PLAIN, jobs * _PLAIN_SCALE)
    phased = await _drain(bench, peer, PHASED, jobs)
    alone = plain["jobs_per_s"]
    return {**phased, "alone_jobs_per_s": alone, "ratio": phased["jobs_per_s"] / alone}


async def _drain(bench: Bench, peer: Peer, kind: str, jobs: int) -> Metrics:
    assert isinstance(peer, DutifulPeer)
    worker = dataclasses.replace(peer, worker=(__name__,))
    async with bench.database(peer) as url:
        async with phased_app(url) as app:
            await fill(bench, peer, url, app.kind(kind), jobs)
        with bench.workers(worker, url) as crew:
            await crew.reach(jobs)
            rate = crew.rate()
            return {
                "jobs_per_s": rate,
                "reports_per_s": crew.reports / jobs * rate,
                "rounds_per_s": crew.rounds / jobs * rate,
            }


def phased_app(url: str, counter: RunCounter | None = None) -> Dutiful:
    app = make_app(url)
    lane: dict[str, Any] = {"queue": DEFAULT_LANE.queue, "priority": DEFAULT_LANE.priority}
    pipeline = app.pipeline(PHASED, **lane)

    async def phase(ctx: Context, id: int, to: str, sent: float, text: str) -> int:
        for step in range(1, STEPS + 1):
            await asyncio.sleep(0)
            ctx.progress(100 * step / STEPS, f"step {step} of {STEPS}")
        if counter is not None and ctx.phase == PHASES[-1]:
            counter.hit(sent)
        return id

    for name in PHASES:
        pipeline.phase(name=name)(phase)

    @app.job(name=PLAIN, **lane)
    async def plain(id: int, to: str, sent: float, text: str) -> int:
        for _ in range(len(PHASES) * STEPS):
            await asyncio.sleep(0)
        if counter is not None:
            counter.hit(sent)
        return id

    return app


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    app = phased_app(url, counter)
    async with app.opened() as client:
        _count_reports(client.store, counter)
        await app.make_worker(client).run()


def _count_reports(store: Store, counter: RunCounter) -> None:
    """Count reports here, because the stores do not."""
    write = store.progress.report

    async def report(
        reports: Sequence[ProgressReport], marks: Sequence[PhaseMark] = (), *, now: datetime | None = None
    ) -> frozenset[int]:
        lost = await write(reports, marks, now=now)
        counter.reported(len(reports))
        return lost

    store.progress.report = report  # type: ignore[method-assign]


def _seconds(sizes: Sizes) -> float:
    return 4 + sizes.phased_jobs / 100


PHASE_SCENARIOS = (
    Scenario(
        "phases",
        f"{len(PHASES)} phases and {len(PHASES) * STEPS} reports of progress a job, and the same without",
        phases,
        (
            RATE,
            ALONE,
            RATIO,
            Metric("reports_per_s", "progress written/s"),
            Metric("rounds_per_s", "in transactions/s"),
        ),
        _seconds,
    ),
)
