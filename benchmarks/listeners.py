"""What listeners cost a drain: each of them following one job, or all of them everything.

With 200 of the first sort a drain is to keep at least 0.8 of its rate.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Literal
from uuid import UUID

from benchmarks.event_readers import EventReader, connected
from benchmarks.followed_jobs import LASTING, followed_app
from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import DEFAULT_LANE, Peer
from benchmarks.peers.dutiful_peer import DutifulPeer, fill
from benchmarks.scenario import ALONE, Metric, Scenario
from dutiful.events.history import LATE
from servers import free_port

Following = Literal["nothing", "jobs", "everything"]
_FOLLOWING: tuple[Following, ...] = ("nothing", "jobs", "everything")
# Of ten readers of one job each, one follows a job that runs during the whole drain.
_RUNNING_SHARE = 10
# A drain that has become very slow is not waited for, because its rate is known by then.
_LONGEST_S = 30.0
_turns: defaultdict[tuple[str, bool], Iterator[int]] = defaultdict(itertools.count)


async def listeners_elsewhere(bench: Bench, peer: Peer) -> Metrics:
    return await _compare(bench, peer, inside=False)


async def listeners_inside(bench: Bench, peer: Peer) -> Metrics:
    return await _compare(bench, peer, inside=True)


async def _compare(bench: Bench, peer: Peer, *, inside: bool) -> Metrics:
    # Rotated from run to run, so that none of the three is always the first.
    shift = next(_turns[peer.name, inside]) % len(_FOLLOWING)
    drains = {
        following: await _drain(bench, peer, following, inside=inside)
        for following in _FOLLOWING[shift:] + _FOLLOWING[:shift]
    }
    alone, jobs, everything = (drains[following] for following in _FOLLOWING)
    return {
        "ratio": jobs["jobs_per_s"] / alone["jobs_per_s"],
        "jobs_per_s": jobs["jobs_per_s"],
        "event_after_ms": jobs["event_after_ms"],
        "all_ratio": everything["jobs_per_s"] / alone["jobs_per_s"],
        "all_jobs_per_s": everything["jobs_per_s"],
        "all_events_per_s": everything["events_per_s"],
        "all_drops": everything["drops"],
        "alone_jobs_per_s": alone["jobs_per_s"],
    }


async def _drain(bench: Bench, peer: Peer, following: Following, *, inside: bool) -> Metrics:
    jobs = bench.drain_jobs(peer)
    running = max(bench.sizes.listeners // _RUNNING_SHARE, 1)
    port = free_port()
    async with bench.database(peer) as url:
        async with followed_app(url) as app:
            lasting = await app.kind(LASTING).enqueue_many([{}] * running)
            waiting = await fill(bench, peer, url, app.kind(DEFAULT_LANE.kind), jobs)
        # A reader of all events first waits until the jobs that were just enqueued have been read.
        await asyncio.sleep(2 * LATE.total_seconds() if following == "everything" else 0)
        listeners = _listeners(following, port, bench.sizes.listeners, [job.id for job in lasting], waiting)
        with ExitStack() as stack:
            # Also without readers, so that all else is the same.
            if inside:
                both = _running(peer, "both", port, len(listeners), running)
                crew = stack.enter_context(bench.workers(both, url))
            else:
                stack.enter_context(bench.workers(_running(peer, "serve", port), url))
            async with connected(port, listeners) as readers:
                if not inside:
                    crew = stack.enter_context(bench.workers(_running(peer, "work", running), url))
                await crew.reach(2)
                await crew.reach(jobs, _LONGEST_S if following == "everything" else math.inf)
                count, received, drops = crew.count, readers.events, readers.drops
                # One that has not ended may have stalled since its last job.
                took = (crew.last if count >= jobs else time.time()) - crew.first
                await readers.satisfied()
                return {
                    "jobs_per_s": (count - 1) / took,
                    "event_after_ms": (time.time() - crew.last) * 1000,
                    "events_per_s": received / took,
                    "drops": drops,
                }


def _listeners(
    following: Following, port: int, number: int, running: Sequence[UUID], waiting: Sequence[UUID]
) -> list[EventReader]:
    match following:
        case "nothing":
            return []
        case "jobs":
            rest = number - len(running)
            # Spread over the queue, so that throughout the drain some reader receives events.
            spread = [waiting[(place + 1) * len(waiting) // rest - 1] for place in range(rest)]
            lasting = [EventReader(port, f"/events?job={job_id}", "started") for job_id in running]
            return lasting + [EventReader(port, f"/events?job={job_id}", "completed") for job_id in spread]
        case "everything":
            return [EventReader(port, f"/events?kind={DEFAULT_LANE.kind}") for _ in range(number)]


def _running(peer: Peer, *options: object) -> DutifulPeer:
    """The peer with other processes than its plain worker."""
    assert isinstance(peer, DutifulPeer)
    return dataclasses.replace(peer, worker=("benchmarks.followed_jobs", *map(str, options)))


def _seconds(sizes: Sizes) -> float:
    return 12 + 40 * sizes.drain_scale


_METRICS = (
    Metric("ratio", "job: ratio"),
    Metric("jobs_per_s", "job: jobs/s"),
    Metric("event_after_ms", "job: event after ms", higher_is_better=False),
    Metric("all_ratio", "all: ratio"),
    Metric("all_jobs_per_s", "all: jobs/s"),
    Metric("all_events_per_s", "all: events/s"),
    Metric("all_drops", "all: cut off", higher_is_better=False),
    ALONE,
)

LISTENER_SCENARIOS = (
    Scenario(
        "listeners",
        "Drain with listeners at another process, following a job each or all jobs",
        listeners_elsewhere,
        _METRICS,
        _seconds,
    ),
    Scenario(
        "listeners-inside", "Drain with listeners at the worker's own process", listeners_inside, _METRICS, _seconds
    ),
)
