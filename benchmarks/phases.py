"""What phases and progress cost: a pipeline beside one plain job that takes the same steps."""

from __future__ import annotations

import dataclasses

from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import Peer
from benchmarks.peers.dutiful_peer import DutifulPeer, fill
from benchmarks.phased_jobs import PHASED, PHASES, PLAIN, STEPS, phased_app
from benchmarks.scenario import ALONE, RATE, RATIO, Metric, Scenario

# A thousand plain jobs are over before their rate can be told.
_PLAIN_SCALE = 20


async def phases(bench: Bench, peer: Peer) -> Metrics:
    jobs = bench.sizes.phased_jobs
    plain = await _drain(bench, peer, PLAIN, jobs * _PLAIN_SCALE)
    phased = await _drain(bench, peer, PHASED, jobs)
    alone = plain["jobs_per_s"]
    return {**phased, "alone_jobs_per_s": alone, "ratio": phased["jobs_per_s"] / alone}


async def _drain(bench: Bench, peer: Peer, kind: str, jobs: int) -> Metrics:
    assert isinstance(peer, DutifulPeer)
    worker = dataclasses.replace(peer, worker=("benchmarks.phased_jobs",))
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
