"""Reads find what they look for, even if the planner believes that there is nothing."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest
import pytest_asyncio

from databases import Postgres
from dutiful.core.outcome import Failed
from dutiful.core.transitions import State
from dutiful.reviewing import DeadLetterFilter
from dutiful.stores.listing import Index
from dutiful.stores.postgres import PostgresStore, reviewing
from dutiful.stores.postgres.sql import statements
from dutiful.testing.store_suite.breaking import MAIL, trip
from dutiful.testing.store_suite.builders import (
    KIND,
    OOPS,
    T0,
    at,
    change,
    claim,
    complete,
    enqueue_one,
    new_job,
    states,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

TABLES = ("job", "ready", "scheduled", "blocked", "lease", "finished", "dependency", "attempt", "progress", "stale",
          "dead_letter")  # fmt: skip
JOBS = 20_000
ASKED = 100
LOWEST, HIGHEST = UUID(int=0), UUID(int=(1 << 128) - 1)
SQL = statements("dutiful")


class Deceived:
    """A store whose statistics were taken while its tables were empty, and one session with it."""

    def __init__(self, store: PostgresStore, connection: Any, finished: list[UUID], dependent: UUID) -> None:
        self.store = store
        self.connection = connection
        self.finished = finished
        self.dependent = dependent

    async def buffers(self, name: str, *args: Any, where: str = "") -> int:
        """How many pages this statement touches, besides those that only its first call in a session does."""
        statement = SQL[name].replace("{where}", where)
        await self.connection.fetch(statement, *args)
        return await self.touched(statement, *args)

    async def touched(self, statement: str, *args: Any) -> int:
        explained = await self.connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *args)
        plan = msgspec.json.decode(explained)[0]["Plan"]
        return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["postgres18", "postgres16"])
async def deceived(request: pytest.FixtureRequest) -> AsyncIterator[Deceived]:
    server: Postgres = request.getfixturevalue(request.param)
    url = server.create_database("deceived")
    store = PostgresStore(url)
    await store.migrate()
    await store.open()
    connection = await asyncpg.connect(url)
    await store.insert([new_job(tenant="acme", correlation_id="order-7") for _ in range(1_000)])
    await finish(store, 500)
    for table in TABLES:
        await connection.execute(f"DELETE FROM dutiful.{table}")
    for table in TABLES:
        await connection.execute(f"VACUUM (TRUNCATE OFF, ANALYZE) dutiful.{table}")
    await store.insert([new_job(tenant="acme", correlation_id="order-7") for _ in range(JOBS)])
    finished = await finish(store, 1_000)
    dependent = await enqueue_one(store, tenant="acme", depends_on=tuple(finished[:3]))
    yield Deceived(store, connection, finished, dependent)
    await connection.close()
    await store.close()
    server.drop_database("deceived")


async def finish(store: PostgresStore, count: int) -> list[UUID]:
    """Let that many jobs be done, and as many fail."""
    done, failed = await claim(store, limit=count), await claim(store, limit=count)
    await complete(store, *done)
    await store.settle([change(claimed, Failed(OOPS, final=True)) for claimed in failed])
    return [claimed.job_id for claimed in done + failed]


async def test_looking_jobs_up_touches_a_few_pages_for_each(deceived: Deceived) -> None:
    asked = deceived.finished[:: len(deceived.finished) // ASKED][:ASKED]
    everything = (asked, "completed", [KIND], "default", "acme", '{"order": 7}', "transient", "text")

    assert await deceived.buffers("records", asked) < 40 * ASKED
    assert await deceived.buffers("outcomes", asked) < 40 * ASKED
    assert await deceived.buffers("sift", *everything) < 20 * ASKED
    assert await deceived.buffers("dependencies", deceived.dependent) < 200
    assert await deceived.buffers("attempts", asked[0]) < 20


@pytest.mark.parametrize("index", Index)
async def test_a_page_of_ids_is_walked_along_its_own_index(deceived: Deceived, index: Index) -> None:
    name = {
        Index.LINE: KIND,
        Index.TENANT: "acme",
        Index.CORRELATION: "order-7",
        Index.OWN: str(uuid4()),
        Index.UNHAPPY: "failed",
    }.get(index, "")

    middle = deceived.finished[len(deceived.finished) // 2]
    for high in (HIGHEST, middle):
        assert await deceived.buffers("walk", [index.value], [name], ["default"], LOWEST, high, 50) < 150


async def test_the_kinds_and_queues_there_are_cost_what_they_are_not_what_they_hold(deceived: Deceived) -> None:
    assert await deceived.buffers("lines", None, None) < 50
    assert await deceived.buffers("lines", [KIND], None) < 50


async def test_a_dead_letter_is_looked_up_by_its_id_and_a_page_of_them_along_an_index(deceived: Deceived) -> None:
    (newest,) = await deceived.store.dead_letters(DeadLetterFilter(), limit=1)

    assert await deceived.buffers("dead_letters", 1, newest.id, where="job_id = $2") < 20
    async with deceived.connection.transaction():
        await deceived.connection.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = off")
        looked_up = "EXPLAIN SELECT status FROM dutiful.dead_letter WHERE job_id = any ($1)"  # as functions do
        plan = str(await deceived.connection.fetch(looked_up, deceived.finished[-20:]))
        assert "dead_letter_pkey" in plan, plan
    for wanted in (
        DeadLetterFilter(),
        DeadLetterFilter(status=[newest.status]),
        DeadLetterFilter(kinds=[newest.kind]),
        DeadLetterFilter(tenant=newest.tenant),
        DeadLetterFilter(fingerprint=newest.fingerprint),
    ):
        where, args = reviewing._where(wanted, 50)
        assert await deceived.buffers("dead_letters", *args, where=where) < 150


async def test_counts_of_many_touch_as_many_pages_as_those_of_some(deceived: Deceived) -> None:
    for tenant in (None, "acme"):
        assert await deceived.buffers("line_heads", tenant) < 200
    assert await deceived.buffers("depths", None) < 5_000
    assert await deceived.buffers("count_finished", T0, None, 100) < 300
    assert await deceived.buffers("count_finished", T0, "acme", 100) < 1_500


async def test_letting_probes_out_walks_past_nobody_who_has_to_wait_on(deceived: Deceived) -> None:
    store = deceived.store
    await store.put_breaker_kinds({"guarded": MAIL}, now=T0)
    await trip(store)
    await store.insert([new_job(kind="guarded", tenant="elsewhere") for _ in range(JOBS // 2)], now=T0)
    await store.insert([new_job(kind="guarded", tenant="acme", run_at=at(900)) for _ in range(JOBS // 2)], now=T0)
    due = [new_job(kind="guarded", tenant="acme") for _ in range(6)]
    await store.insert(due, now=at(1))

    async def may_probe(*tenants: str | None) -> int:
        asked = len(tenants)
        return await deceived.buffers(
            "may_probe", ["guarded"] * asked, ["default"] * asked, list(tenants), [10] * asked
        )

    assert await deceived.buffers("waiting_lines", [MAIL]) < 60
    assert await may_probe("acme", "nobody's") < 60
    assert await may_probe("nobody's") < 30
    assert await may_probe(None) < 30
    assert await deceived.buffers("place_due", 100, at(60)) < 30
    assert await deceived.buffers("reopen", 100, at(60)) < 100

    await store.let_out(0, now=at(60))  # it is half-open, and nothing is let out
    version = await deceived.connection.fetchval("SELECT version FROM dutiful.breaker WHERE name = $1", MAIL)
    jobs = [job.id for job in due]
    named = [MAIL] * 3
    await deceived.connection.fetch(SQL["let_out"], [MAIL], [version], jobs[:3], named, [], [], at(60))
    assert await deceived.touched(SQL["let_out"], [MAIL], [version + 1], jobs[3:], named, [], [], at(60)) < 250
    assert await states(store, jobs) == [State.READY] * 6
