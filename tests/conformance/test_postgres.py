import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from databases import CleanDatabase, OwnTransaction
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from suite import add_tests
from suite.builders import PIPELINE, T0, claim, enqueue, mark, new_job, start_one, token
from suite.events import check_a_late_commit_is_found
from suite.webhooks import own, webhook

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", params=["postgres18", "postgres16"])
def database(request: pytest.FixtureRequest) -> CleanDatabase:
    clean: CleanDatabase = request.getfixturevalue(str(request.param).replace("postgres", "clean"))
    return clean


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(database: CleanDatabase) -> AsyncIterator[Store]:
    """One store for all tests, because each new connection compiles the functions again."""
    store = PostgresStore(database.reset())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def store(opened: Store, database: CleanDatabase) -> Store:
    database.reset(alone=False)
    return opened


@pytest.mark.req("W19")
async def test_a_claim_does_not_wait_for_locked_jobs(store: Store, database: CleanDatabase) -> None:
    await enqueue(store, first := new_job(), second := new_job())
    connection = await asyncpg.connect(database.url)
    async with connection.transaction():
        await connection.execute("SELECT FROM dutiful.ready WHERE job_id = $1 FOR UPDATE", first.id)

        assert [c.job_id for c in await claim(store)] == [second.id]

    await connection.close()
    assert [c.job_id for c in await claim(store)] == [first.id]


async def test_a_late_commit_is_not_missed(store: Store, database: CleanDatabase) -> None:
    await check_a_late_commit_is_found(store, OwnTransaction(store, database.url).begin)


async def test_a_phase_mark_waits_for_an_uncommitted_end_and_is_refused_after_it(
    store: Store, database: CleanDatabase
) -> None:
    own, claimed = OwnTransaction(store, database.url), await start_one(store, options=PIPELINE)
    commit = await own.begin(claimed)

    marking = asyncio.create_task(store.progress.report([], [mark(claimed, "download")], now=T0))
    await own.wait_for_a_lock()
    await commit()

    assert await marking == {claimed.claim_id}
    assert await store.progress.phases(claimed.job_id) == []


async def test_a_job_completed_on_the_users_connection_is_posted_with_its_commit(
    store: Store, database: CleanDatabase
) -> None:
    await store.webhooks.put([webhook()])
    claims = [await start_one(store), await start_one(store, options=own())]
    connection = await asyncpg.connect(database.url)
    async with connection.transaction():
        for claimed in claims:
            await store.claims.complete_within(connection, token(claimed), None)
        assert await store.webhooks.posts() == []

    await connection.close()
    received = {post.job_id: post.webhook for post in await store.webhooks.posts()}
    assert received == {claims[0].job_id: "ops", claims[1].job_id: None}


add_tests(globals())
