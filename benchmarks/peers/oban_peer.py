"""oban-py with a large limit and a short debounce, so that it fetches and acknowledges many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

from benchmarks.peer import COMMON, DEFAULT_LANE, Lane, Payload, Store
from benchmarks.run_counter import RunCounter

_LIMIT = 500
_DEBOUNCE_S = 0.001
_UNFINISHED = "SELECT count(*) FROM oban_jobs WHERE state NOT IN ('completed', 'discarded', 'cancelled')"


@worker(queue=DEFAULT_LANE.queue)
class Noop:
    counter: ClassVar[RunCounter]

    async def process(self, job: Any) -> None:
        self.counter.hit(job.args["sent"])


class ObanProducer:
    def __init__(self, oban: Oban) -> None:
        self._oban = oban

    async def enqueue(self, payload: Payload) -> None:
        await self._oban.enqueue(_job(payload, DEFAULT_LANE))

    async def enqueue_many(self, payloads: Sequence[Payload], lane: Lane = DEFAULT_LANE) -> None:
        await self._oban.enqueue_many([_job(payload, lane) for payload in payloads])


@dataclass(frozen=True, slots=True)
class ObanPeer:
    name: str = "oban"
    package: str = "oban"
    store: Store = "postgres"
    worker: Sequence[str] = ("benchmarks.peers.oban_peer",)
    drain_jobs: int = 20_000
    scenarios: frozenset[str] = COMMON | {"backlog", "pinned", "unpinned"}

    async def install(self, url: str) -> None:
        async with _pool(url, 1) as pool:
            await install(pool)

    @asynccontextmanager
    async def producer(self, url: str, tasks: int) -> AsyncIterator[ObanProducer]:
        async with _pool(url, min(tasks, 20)) as pool:
            yield ObanProducer(Oban(pool=pool))

    async def unfinished(self, url: str) -> int:
        async with _pool(url, 1) as pool, pool.connection() as connection:
            row = await (await connection.execute(_UNFINISHED)).fetchone()
            assert row is not None
            return int(row[0])


@asynccontextmanager
async def _pool(url: str, connections: int) -> AsyncIterator[AsyncConnectionPool[Any]]:
    async with AsyncConnectionPool(url, min_size=1, max_size=connections, open=False) as pool:
        yield pool


def _job(payload: Payload, lane: Lane) -> Any:
    # The decorator adds it, which a type checker cannot know.
    return cast(Any, Noop).new(payload, queue=lane.queue, priority=lane.priority)


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    Noop.counter = counter
    async with _pool(url, 10) as pool:
        limits: dict[str, Any] = {queue: {"limit": _LIMIT, "debounce_interval": _DEBOUNCE_S} for queue in queues}
        async with Oban(pool=pool, queues=limits):
            await asyncio.Event().wait()


PEER = ObanPeer()
