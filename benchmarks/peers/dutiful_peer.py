"""Dutiful at its defaults, on Postgres and on SQLite with synchronous=FULL."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from benchmarks.peer import COMMON, DEFAULT_LANE, Lane, Payload, Peer, Store, payload
from benchmarks.run_counter import RunCounter
from dutiful import Dutiful
from dutiful.kind import Kind
from dutiful.store.control import Pause, PauseScope

if TYPE_CHECKING:  # a worker does not run it, and its memory is measured
    from benchmarks.harness import Bench

_BULK = 1_000
_ALL = frozenset(
    COMMON
    | {"latency-inside", "backlog", "unknown-head", "paused-head", "pinned", "unpinned"}
    | {
        "phases",
        "steps",
        "listeners",
        "listeners-inside",
        "lanes",
        "listing",
        "counting",
        "metrics",
        "supervised",
        "sql-door",
    }
    | {"docverse", "batch", "shares", "keys", "one-key", "chain"}
)


class DutifulProducer:
    def __init__(self, app: Dutiful) -> None:
        self._app = app
        self._noop = app.kind(DEFAULT_LANE.kind)

    async def enqueue(self, payload: Payload) -> None:
        await self._noop.enqueue(**payload)

    async def enqueue_many(self, payloads: Sequence[Payload], lane: Lane = DEFAULT_LANE) -> None:
        kind = self._app.kind(lane.kind)
        await kind.options(queue=lane.queue, priority=lane.priority).enqueue_many(payloads)


@dataclass(frozen=True, slots=True)
class DutifulPeer:
    name: str
    store: Store
    drain_jobs: int
    scenarios: frozenset[str]
    package: str = "dutiful"
    worker: Sequence[str] = ("benchmarks.peers.dutiful_peer",)

    async def install(self, url: str) -> None:
        await make_app(url).make_store().migrate()

    @asynccontextmanager
    async def producer(self, url: str, tasks: int) -> AsyncIterator[DutifulProducer]:
        async with make_app(url, kinds=(DEFAULT_LANE.kind, "unknown", "paused")) as app:
            yield DutifulProducer(app)

    @asynccontextmanager
    async def embedded(self, url: str, counter: RunCounter) -> AsyncIterator[DutifulProducer]:
        app = make_app(url, counter, kinds=(DEFAULT_LANE.kind,))
        async with app.embedded():
            yield DutifulProducer(app)

    async def pause(self, url: str, kind: str) -> None:
        async with make_app(url).opened() as client:
            await client.store.control.pause(Pause(PauseScope.KIND, kind, datetime.now(UTC)))

    async def unfinished(self, url: str) -> int:
        async with make_app(url).opened() as client:
            stats = await client.store.queries.stats(timedelta(hours=1))
        return sum(stats.live.values())


def make_app(url: str, counter: RunCounter | None = None, kinds: Sequence[str] = (), **settings: Any) -> Dutiful:
    """An app whose kinds do nothing but count."""
    app = Dutiful(url if url.startswith("postgresql:") else f"sqlite:///{url}", **settings)

    async def noop(id: int, to: str, sent: float, text: str) -> None:
        if counter is not None:
            counter.hit(sent)

    for kind in kinds:
        app.job(name=kind, queue=DEFAULT_LANE.queue, priority=DEFAULT_LANE.priority)(noop)
    return app


async def fill(bench: Bench, peer: Peer, url: str, kind: Kind[..., Any], jobs: int) -> list[UUID]:
    """Enqueue what `preload` would, of a kind of your own; returns the jobs in the order in which they will be run."""
    ids: list[UUID] = []
    for start in range(0, jobs, _BULK):
        handles = await kind.enqueue_many(payload(i) for i in range(start, min(start + _BULK, jobs)))
        ids += [handle.id for handle in handles]
    bench.analyze(peer, url)
    return ids


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    app = make_app(url, counter, kinds=(DEFAULT_LANE.kind, "paused"))
    async with app.opened() as client:
        worker = app.make_worker(client)
        gc.collect()
        gc.freeze()  # as `dutiful worker` does
        await worker.run()


POSTGRES = DutifulPeer("dutiful", "postgres", 150_000, _ALL)
SQLITE = DutifulPeer(
    "dutiful-sqlite",
    "sqlite",
    100_000,
    frozenset(
        {"drain1", "enqueue-single", "enqueue-bulk", "latency", "latency-inside"}
        | {"phases", "listeners", "listeners-inside", "lanes", "listing", "counting", "metrics", "steps", "shares"}
        | {"batch", "keys", "one-key", "chain"}
    ),
)
