"""procrastinate with its asynchronous psycopg connector."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import asyncpg
from procrastinate import App, PsycopgConnector
from procrastinate.types import JSONDict

from benchmarks.peer import COMMON, DEFAULT_LANE, Lane, Payload, Store
from benchmarks.run_counter import RunCounter

# From 3 to 50 the rate is the same within noise: the fetch of one job at a time is what counts.
_CONCURRENCY = 50


class ProcrastinateProducer:
    def __init__(self, app: App) -> None:
        self._app = app

    async def enqueue(self, payload: Payload) -> None:
        await self._app.configure_task(DEFAULT_LANE.kind, queue=DEFAULT_LANE.queue).defer_async(**payload)

    async def enqueue_many(self, payloads: Sequence[Payload], lane: Lane = DEFAULT_LANE) -> None:
        task = self._app.configure_task(lane.kind, queue=lane.queue, priority=lane.priority)
        await task.batch_defer_async(*(cast("JSONDict", payload) for payload in payloads))


@dataclass(frozen=True, slots=True)
class ProcrastinatePeer:
    name: str = "procrastinate"
    package: str = "procrastinate"
    store: Store = "postgres"
    worker: Sequence[str] = ("benchmarks.peers.procrastinate_peer",)
    drain_jobs: int = 3_000
    scenarios: frozenset[str] = COMMON

    async def install(self, url: str) -> None:
        async with _app(url, 1).open_async() as app:
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def producer(self, url: str, tasks: int) -> AsyncIterator[ProcrastinateProducer]:
        async with _app(url, min(tasks, 20)).open_async() as app:
            yield ProcrastinateProducer(app)

    async def unfinished(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        count = await connection.fetchval("SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')")
        await connection.close()
        return int(count)


def _app(url: str, connections: int) -> App:
    return App(connector=PsycopgConnector(conninfo=url, min_size=1, max_size=connections))


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    app = _app(url, _CONCURRENCY + 2)

    @app.task(name=DEFAULT_LANE.kind)
    async def noop(id: int, to: str, sent: float, text: str) -> None:
        counter.hit(sent)

    async with app.open_async():
        await app.run_worker_async(queues=queues, concurrency=_CONCURRENCY, install_signal_handlers=False)


PEER = ProcrastinatePeer()
