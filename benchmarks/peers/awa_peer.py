"""awa, a Rust core with Python handlers, with the batch and polling settings that were fastest here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import awa

from benchmarks.peer import COMMON, DEFAULT_LANE, Lane, Payload, Store
from benchmarks.run_counter import RunCounter

_MAX_WORKERS = 1024
_POLL_MS = 20
_SCHEMA = "awa_queue_storage"


@dataclass
class Noop:
    """awa derives the kind `noop` from the name of this class."""

    id: int
    to: str
    sent: float
    text: str


class AwaProducer:
    def __init__(self, client: awa.AsyncClient) -> None:
        self._client = client

    async def enqueue(self, payload: Payload) -> None:
        await self._client.insert(Noop(**payload), queue=DEFAULT_LANE.queue)

    async def enqueue_many(self, payloads: Sequence[Payload], lane: Lane = DEFAULT_LANE) -> None:
        await self._client.enqueue_many_copy([Noop(**payload) for payload in payloads], queue=lane.queue)


@dataclass(frozen=True, slots=True)
class AwaPeer:
    name: str = "awa"
    package: str = "awa-pg"
    store: Store = "postgres"
    worker: Sequence[str] = ("benchmarks.peers.awa_peer",)
    drain_jobs: int = 20_000
    scenarios: frozenset[str] = COMMON

    async def install(self, url: str) -> None:
        client = awa.AsyncClient(url, max_connections=2)
        await client.migrate()
        # The engine that awa recommends and that its COPY enqueue needs.
        await client.install_queue_storage(schema=_SCHEMA)
        await client.close()

    @asynccontextmanager
    async def producer(self, url: str, tasks: int) -> AsyncIterator[AwaProducer]:
        client = awa.AsyncClient(url, max_connections=min(tasks, 20))
        yield AwaProducer(client)
        await client.close()

    async def unfinished(self, url: str) -> int:
        client = awa.AsyncClient(url, max_connections=1)
        stats = await client.queue_stats()
        await client.close()
        return sum(stat.total_queued for stat in stats)


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    client = awa.AsyncClient(url, max_connections=20)

    @client.task(Noop, queue=queues[0])
    async def noop(job: awa.Job[Noop]) -> None:
        counter.hit(job.args.sent)

    configs: list[dict[str, Any]] = [
        {"name": queue, "max_workers": _MAX_WORKERS, "claim_batch_size": _MAX_WORKERS} for queue in queues
    ]
    await client.start(configs, queue_storage_schema=_SCHEMA, poll_interval_ms=_POLL_MS)
    await asyncio.Event().wait()


PEER = AwaPeer()
