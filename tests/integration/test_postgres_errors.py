"""The last errors of waiting jobs are found by index look-ups, even with misleading planner statistics."""

from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import msgspec
import pytest
import pytest_asyncio

from databases import Postgres
from dutiful.core.outcome import Failed
from dutiful.stores.listing import Index
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.postgres.engine.sql import statements
from suite.builders import OOPS, T0, at, change, claim, new_job

pytestmark = pytest.mark.asyncio(loop_scope="module")

TABLES = ("job", "ready", "scheduled", "lease", "attempt")
JOBS = 3_000
TRIES = 3
ASKED = 50
LOWEST, HIGHEST = UUID(int=0), UUID(int=(1 << 128) - 1)
SQL = statements("dutiful")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["postgres18", "postgres16"])
async def misled(request: pytest.FixtureRequest) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A session with a database of jobs that wait for another attempt, whose statistics are of empty tables."""
    server: Postgres = request.getfixturevalue(request.param)
    url = server.create_database("erring")
    store = PostgresStore(url)
    await store.migrate()
    await store.open()
    connection = await asyncpg.connect(url)
    await fail_all(store, 500)
    for table in TABLES:
        await connection.execute(f"DELETE FROM dutiful.{table}")
    for table in TABLES:
        await connection.execute(f"VACUUM (TRUNCATE OFF, ANALYZE) dutiful.{table}")
    await fail_all(store, JOBS)
    yield connection
    await connection.close()
    await store.close()
    server.drop_database("erring")


async def fail_all(store: PostgresStore, count: int) -> None:
    """Make new jobs and let each of them fail a few times; then they wait for another attempt."""
    await store.jobs.insert([new_job() for _ in range(count)], now=T0)
    for number in range(TRIES):
        await store.promotion.promote(count, now=at(100 * number))
        claims = await claim(store, limit=count, now=at(100 * number))
        assert len(claims) == count
        await store.claims.settle(
            [change(one, Failed(OOPS | {"class": "transient"})) for one in claims], now=at(100 * number)
        )


async def touched(connection: "asyncpg.Connection[asyncpg.Record]", statement: str, *args: object) -> int:
    """How many pages it touches, apart from those of the first call in a session."""
    await connection.fetch(statement, *args)
    explained = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *args)
    plan = msgspec.json.decode(explained)[0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def test_a_page_of_jobs_with_their_last_errors_touches_a_few_pages_for_each(
    misled: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    tried = await misled.fetchval("SELECT array_agg(job_id) FROM (SELECT job_id FROM dutiful.scheduled LIMIT 50) j")

    assert await touched(misled, "select * from dutiful.job_records($1)", tried) < 40 * ASKED
    by_class = (None, None, None, None, None, "transient", None, None)
    assert await touched(misled, SQL["filter_ids"], tried, *by_class) < 20 * ASKED
    assert await touched(misled, "SELECT last_error FROM dutiful.jobs WHERE id = $1", tried[0]) < 40


async def test_jobs_that_were_tried_are_stepped_through_one_look_up_each(
    misled: "asyncpg.Connection[asyncpg.Record]",
) -> None:
    args = ([Index.TRIED.value], [""], [""], LOWEST, HIGHEST, ASKED)

    (walked,) = await misled.fetch(SQL["walk_ids"], *args)
    assert walked["ids"] == sorted(set(walked["ids"]), reverse=True) and len(walked["ids"]) == ASKED
    assert await touched(misled, SQL["walk_ids"], *args) < 6 * ASKED
