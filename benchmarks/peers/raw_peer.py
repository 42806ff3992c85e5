"""The bare SQL of a claim-and-complete loop, without a framework: the upper limit."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
from uuid_utils.compat import uuid7

from benchmarks.peer import DEFAULT_LANE, Lane, Payload, Store
from benchmarks.run_counter import RunCounter

_SCHEMA = """
CREATE TABLE job (
    id         uuid        PRIMARY KEY,
    kind       text        NOT NULL,
    queue      text        NOT NULL,
    payload    jsonb       NOT NULL,
    priority   int         NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE SEQUENCE ready_seq CACHE 100;
CREATE TABLE ready (
    queue    text   NOT NULL,
    priority int    NOT NULL,
    seq      bigint NOT NULL DEFAULT nextval('ready_seq'),
    job_id   uuid   NOT NULL,
    PRIMARY KEY (queue, priority, seq)
);
CREATE TABLE lease (
    job_id     uuid        PRIMARY KEY,
    claim_id   bigint      NOT NULL,
    worker_id  uuid        NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE TABLE finished (
    job_id      uuid        PRIMARY KEY,
    state       text        NOT NULL,
    finished_at timestamptz NOT NULL DEFAULT now(),
    result      jsonb
);
"""

_ENQUEUE = """
WITH added AS (
    INSERT INTO job (id, kind, queue, payload, priority) VALUES ($1, $2, $3, $4, $5)
), waiting AS (
    INSERT INTO ready (queue, priority, job_id) VALUES ($3, $5, $1)
)
SELECT pg_notify('ready', $3)
"""

# The batch size is spelled out: as a parameter it would spoil the generic plan.
_CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT ctid FROM ready
    WHERE queue = $1 AND priority = $2 AND seq > $3
    ORDER BY seq LIMIT 200
    FOR UPDATE SKIP LOCKED
), taken AS (
    DELETE FROM ready WHERE ctid = ANY (ARRAY(SELECT ctid FROM picked))
    RETURNING seq, job_id
), leased AS (
    INSERT INTO lease (job_id, claim_id, worker_id, expires_at)
    SELECT job_id, $4, $5, now() + interval '60 s' FROM taken
)
SELECT taken.seq, job.id, job.kind, job.payload
FROM taken JOIN job ON job.id = taken.job_id
"""

_COMPLETE = """
WITH ended AS (
    DELETE FROM lease USING unnest($1::uuid[], $2::bigint[]) AS ours (job_id, claim_id)
    WHERE lease.job_id = ours.job_id AND lease.claim_id = ours.claim_id
    RETURNING lease.job_id
)
INSERT INTO finished (job_id, state, result) SELECT job_id, 'succeeded', 'null' FROM ended
"""

_PRIORITIES = (0, 1, 2)


class RawProducer:
    """Single rows by one statement, many by COPY."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def enqueue(self, payload: Payload) -> None:
        lane = DEFAULT_LANE
        text = msgspec.json.encode(payload).decode()
        await self._pool.execute(_ENQUEUE, uuid7(), lane.kind, lane.queue, text, lane.priority)

    async def enqueue_many(self, payloads: Sequence[Payload], lane: Lane = DEFAULT_LANE) -> None:
        jobs = [
            (uuid7(), lane.kind, lane.queue, msgspec.json.encode(payload).decode(), lane.priority)
            for payload in payloads
        ]
        ready = [(lane.queue, lane.priority, job[0]) for job in jobs]
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.copy_records_to_table(
                "job", records=jobs, columns=["id", "kind", "queue", "payload", "priority"]
            )
            await connection.copy_records_to_table("ready", records=ready, columns=["queue", "priority", "job_id"])
            await connection.execute("SELECT pg_notify('ready', $1)", lane.queue)


@dataclass(frozen=True, slots=True)
class RawPeer:
    """Four tables, batches of 200, one connection."""

    name: str = "raw"
    package: str = "asyncpg"
    store: Store = "postgres"
    worker: Sequence[str] = ("benchmarks.peers.raw_peer",)
    drain_jobs: int = 150_000
    scenarios: frozenset[str] = frozenset(
        {
            "drain1",
            "drain2",
            "enqueue-single",
            "enqueue-few",
            "enqueue-concurrent",
            "enqueue-bulk",
            "latency",
            "backlog",
            "unpinned",
        }
    )

    async def install(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(_SCHEMA)
        await connection.close()

    @asynccontextmanager
    async def producer(self, url: str, tasks: int) -> AsyncIterator[RawProducer]:
        async with asyncpg.create_pool(url, min_size=1, max_size=min(tasks, 20), reset=_keep) as pool:
            yield RawProducer(pool)

    async def unfinished(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        count = await connection.fetchval("SELECT (SELECT count(*) FROM ready) + (SELECT count(*) FROM lease)")
        await connection.close()
        return int(count)


async def _keep(_connection: Any) -> None:
    # Nothing here changes session state, so the pool's reset round trip is wasted.
    return None


async def noop(payload: Payload, counter: RunCounter) -> None:
    counter.hit(payload["sent"])


# A plan made while `lease` was small would scan all of it, and go on doing so as dead rows pile up.
_INDEXES_ONLY = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off"}


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    connection = await asyncpg.connect(url, server_settings=_INDEXES_ONLY)
    listener = await asyncpg.connect(url)
    woken = asyncio.Event()
    await listener.add_listener("ready", lambda *_: woken.set())
    decode = msgspec.json.Decoder(Payload).decode
    worker_id = uuid4()
    claim_ids = itertools.count(1)
    lanes = list(itertools.product(queues, _PRIORITIES))
    floors = dict.fromkeys(lanes, 0)
    swept = time.monotonic()
    while True:
        # A floor can hide a job that committed late, so now and then it is dropped.
        if time.monotonic() - swept > 1:
            floors = dict.fromkeys(lanes, 0)
            swept = time.monotonic()
        woken.clear()
        found = 0
        for queue, priority in lanes:
            while True:
                claim_id = next(claim_ids)
                rows = await connection.fetch(_CLAIM, queue, priority, floors[queue, priority], claim_id, worker_id)
                if not rows:
                    break
                for row in rows:
                    await noop(decode(row["payload"]), counter)
                await connection.execute(_COMPLETE, [row["id"] for row in rows], [claim_id] * len(rows))
                floors[queue, priority] = max(row["seq"] for row in rows)
                found += len(rows)
        if not found:
            try:
                await asyncio.wait_for(woken.wait(), 1.0)
            except TimeoutError:
                continue


PEER = RawPeer()
