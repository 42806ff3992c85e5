"""What limits cost: jobs of many keys, jobs without a key beside a backlog of one, and the links of a chain."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from benchmarks.costs import read
from benchmarks.harness import Bench, Metrics, Sizes
from benchmarks.peer import DEFAULT_LANE, Peer, payload
from benchmarks.peers.dutiful_peer import DutifulPeer, fill, make_app
from benchmarks.run_counter import RunCounter
from benchmarks.scenario import ALONE, RATE, RATIO, Metric, Scenario
from dutiful import Concurrency, Dutiful, chain

KEYED, PLAIN, WAITING = "keyed", "plain", "waiting"
KEYS, KEYED_JOBS, LINKS = 1_000, 10_000, 1_000
_BULK = 1_000
_SETTLE_S = 6


async def keys(bench: Bench, peer: Peer) -> Metrics:
    """Jobs of a thousand keys, each of which runs one at a time, and as many without a key."""
    jobs = _scaled(bench.sizes, KEYED_JOBS)
    alone = await _drain(bench, peer, PLAIN, jobs)
    keyed = await _drain(bench, peer, KEYED, jobs)
    return _beside(keyed, alone)


async def one_key(bench: Bench, peer: Peer) -> Metrics:
    """Jobs without a key beside those of one key, whose only slot is taken."""
    jobs = _scaled(bench.sizes, KEYED_JOBS)
    # As many would end before their rate can be measured.
    alone = await _drain(bench, peer, PLAIN, 3 * jobs)
    beside = await _drain(bench, peer, PLAIN, 3 * jobs, waiting=jobs)
    return _beside(beside, alone)


def _beside(found: Metrics, alone: Metrics) -> Metrics:
    """Both rates, and both costs, because what a drain of a second or two takes of the clock is often chance."""
    return {
        "jobs_per_s": found["jobs_per_s"],
        "alone_jobs_per_s": alone["jobs_per_s"],
        "ratio": found["jobs_per_s"] / alone["jobs_per_s"],
        "cpu_us_per_job": found["cpu_us_per_job"],
        "alone_cpu_us_per_job": alone["cpu_us_per_job"],
        "cpu_ratio": alone["cpu_us_per_job"] / found["cpu_us_per_job"],
    }


async def links(bench: Bench, peer: Peer) -> Metrics:
    """A chain of which each link runs when the one before has completed."""
    number = _scaled(bench.sizes, LINKS)
    async with bench.database(peer) as url:
        async with flow_app(url) as app:
            await chain(*(app.kind(PLAIN).call(**payload(n)) for n in range(number))).enqueue()
        bench.analyze(peer, url)
        with bench.workers(_worker(peer), url) as crew:
            await crew.reach(number)
            return {"jobs_per_s": crew.rate(), "link_ms": 1000 / crew.rate()}


async def _drain(bench: Bench, peer: Peer, kind: str, jobs: int, waiting: int = 0) -> Metrics:
    """The rate, and the CPU of worker and server together, from the first job on."""
    meter = bench.meter_of(peer)
    async with bench.database(peer) as url:
        async with flow_app(url) as app:
            async with app.opened() as client:
                # As the worker will, so that jobs wait for their limits from the beginning.
                await client.store.limits.put(app.kind_limits())
                for start in range(0, waiting, _BULK):
                    await app.kind(WAITING).enqueue_many(payload(n) for n in range(start, min(start + _BULK, waiting)))
                while waiting and (await client.store.limits.admit(_BULK, everywhere=True)).seen >= _BULK:
                    pass
            await fill(bench, peer, url, app.kind(kind), jobs)
        await asyncio.sleep(_SETTLE_S)  # until autovacuum, which takes a core, has cleaned up what was loaded
        with bench.workers(_worker(peer), url) as crew:
            await crew.reach(1)
            since, count = read(meter, crew.pids), crew.count
            await crew.reach(jobs)
            now, ran = read(meter, crew.pids), max(jobs - count, 1)
            seconds = now.client_s - since.client_s + now.server_s - since.server_s
            return {"jobs_per_s": crew.rate(), "cpu_us_per_job": seconds * 1e6 / ran}


def flow_app(url: str, counter: RunCounter | None = None) -> Dutiful:
    app = make_app(url)

    async def count(id: int, to: str, sent: float, text: str) -> None:
        if counter is not None:
            counter.hit(sent)

    async def never_counts(id: int, to: str, sent: float, text: str) -> None: ...

    lane = {"queue": DEFAULT_LANE.queue, "priority": DEFAULT_LANE.priority}
    app.job(name=PLAIN, **lane)(count)  # type: ignore[call-overload]
    by_number = Concurrency(1, key=lambda **fields: str(fields["id"] % KEYS))
    app.job(name=KEYED, concurrency=by_number, **lane)(count)  # type: ignore[call-overload]
    # In a queue that no lane serves: the one that is admitted keeps the slot.
    app.job(name=WAITING, concurrency=Concurrency(1), queue="unserved")(never_counts)
    return app


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    app = flow_app(url, counter)
    app.configure(lanes=f"all=8:{DEFAULT_LANE.queue}")
    async with app.opened() as client:
        await app.make_worker(client).run()


def _worker(peer: Peer) -> DutifulPeer:
    assert isinstance(peer, DutifulPeer)
    return dataclasses.replace(peer, worker=(__name__,))


def _scaled(sizes: Sizes, number: int) -> int:
    return max(int(number * min(sizes.drain_scale, 1)), 100)


def _about(seconds: float) -> Callable[[Sizes], float]:
    """How long a scenario takes: half of it is set-up, and waiting for the server to settle."""
    return lambda sizes: seconds * (0.5 + 0.5 * min(sizes.drain_scale, 1))


_COMPARED = (
    RATE,
    ALONE,
    RATIO,
    Metric("cpu_us_per_job", "CPU µs a job", higher_is_better=False),
    Metric("alone_cpu_us_per_job", "alone", higher_is_better=False),
    Metric("cpu_ratio", "ratio by CPU"),
)
FLOW_SCENARIOS = (
    Scenario("keys", f"Jobs of {KEYS:,} keys, one of each at a time", keys, _COMPARED, _about(35)),
    Scenario("one-key", "Jobs without a key beside a backlog of one", one_key, _COMPARED, _about(25)),
    Scenario(
        "chain",
        f"A chain of {LINKS:,}",
        links,
        (RATE, Metric("link_ms", "ms a link", higher_is_better=False)),
        _about(15),
    ),
)
