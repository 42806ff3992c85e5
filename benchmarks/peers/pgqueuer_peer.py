"""PgQueuer: batches of 500 on uvloop, the fastest of the settings we tried."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import msgspec
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peer import COMMON, DEFAULT_LANE, Lane, Payload, Store
from benchmarks.run_counter import RunCounter

_BATCH = 500


class PgQueuerProducer:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def enqueue(self, payload: Payload) -> None:
        await self._queries.enqueue(DEFAULT_LANE.kind, msgspec.json.encode(payload))

    async def enqueue_many(self, payloads: Sequence[Payload], lane: Lane = DEFAULT_LANE) -> None:
        encoded: list[bytes | None] = [msgspec.json.encode(payload) for payload in payloads]
        await self._queries.enqueue([lane.kind] * len(encoded), encoded, [lane.priority] * len(encoded))


@dataclass(frozen=True, slots=True)
class PgQueuerPeer:
    name: str = "pgqueuer"
    package: str = "pgqueuer"
    store: Store = "postgres"
    worker: Sequence[str] = ("benchmarks.peers.pgqueuer_peer",)
    drain_jobs: int = 50_000
    scenarios: frozenset[str] = COMMON

    async def install(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    @asynccontextmanager
    async def producer(self, url: str, tasks: int) -> AsyncIterator[PgQueuerProducer]:
        if tasks == 1:
            connection = await asyncpg.connect(url)
            yield PgQueuerProducer(Queries(AsyncpgDriver(connection)))
            await connection.close()
        else:
            async with asyncpg.create_pool(url, min_size=1, max_size=min(tasks, 20), reset=_keep) as pool:
                yield PgQueuerProducer(Queries(AsyncpgPoolDriver(pool)))

    async def unfinished(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        count = await connection.fetchval("SELECT count(*) FROM pgqueuer")
        await connection.close()
        return int(count)


async def _keep(_connection: Any) -> None:
    # Nothing here changes session state, so the pool's reset round trip is wasted.
    return None


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    decode = msgspec.json.Decoder(Payload).decode
    async with asyncpg.create_pool(url, min_size=4, max_size=4, reset=_keep) as pool:
        app = PgQueuer.from_asyncpg_pool(pool)

        @app.entrypoint(DEFAULT_LANE.kind)
        async def noop(job: Job) -> None:
            counter.hit(decode(job.payload or b"")["sent"])

        await app.run(batch_size=_BATCH)


PEER = PgQueuerPeer()
