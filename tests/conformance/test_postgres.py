import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from databases import CleanDatabase, OwnTransaction
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from dutiful.testing.store_suite import (
    AccessSuite,
    ActSuite,
    AlertingSuite,
    AuditSuite,
    BreakerBarredSuite,
    BreakerGateSuite,
    BreakerProbeSuite,
    BreakerSuite,
    BulkSuite,
    ClaimSuite,
    DeadLetterSuite,
    DutySuite,
    FenceSuite,
    GateOrderSuite,
    GateSuite,
    InsertSuite,
    LeaseSuite,
    ListingSuite,
    LockingSuite,
    LockSessionSuite,
    MeasuringSuite,
    OutboxSuite,
    PhaseSuite,
    PostingSuite,
    RaceSuite,
    ReaderSuite,
    RemovalSuite,
    RetentionSuite,
    ReviewSuite,
    ScheduleSuite,
    SettleSuite,
    StaleSuite,
    StirSuite,
    TrackingSuite,
    TransactionSuite,
    UniqueSuite,
    ViewSuite,
)
from dutiful.testing.store_suite.builders import PIPELINE, T0, claim, enqueue, mark, new_job, start_one, token
from dutiful.testing.store_suite.outbox import own, webhook
from dutiful.testing.store_suite.watching import check_a_late_commit_is_found

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", params=["postgres18", "postgres16"])
def database(request: pytest.FixtureRequest) -> CleanDatabase:
    clean: CleanDatabase = request.getfixturevalue(str(request.param).replace("postgres", "clean"))
    return clean


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(database: CleanDatabase) -> AsyncIterator[Store]:
    """One store for all tests, for each new connection would have to compile the functions anew."""
    store = PostgresStore(database.reset())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def store(opened: Store, database: CleanDatabase) -> Store:
    database.reset(alone=False)
    return opened


class TestInsert(InsertSuite): ...


@pytest.mark.req("W20", "W21")
class TestClaim(ClaimSuite): ...


@pytest.mark.req("W23", "W24", "W65")
class TestRace(RaceSuite): ...


@pytest.mark.req("W19")
async def test_a_claim_does_not_wait_for_what_another_is_taking(store: Store, database: CleanDatabase) -> None:
    await enqueue(store, first := new_job(), second := new_job())
    connection = await asyncpg.connect(database.url)
    async with connection.transaction():
        await connection.execute("SELECT FROM dutiful.ready WHERE job_id = $1 FOR UPDATE", first.id)

        assert [c.job_id for c in await claim(store)] == [second.id]

    await connection.close()
    assert [c.job_id for c in await claim(store)] == [first.id]


@pytest.mark.req("W28", "W29")
class TestSettle(SettleSuite): ...


class TestFence(FenceSuite): ...


class TestLease(LeaseSuite): ...


@pytest.mark.req("W18", "W25", "W26", "W27")
class TestUnique(UniqueSuite): ...


class TestGate(GateSuite): ...


class TestGateOrder(GateOrderSuite): ...


class TestDuty(DutySuite): ...


class TestRetention(RetentionSuite): ...


class TestSchedule(ScheduleSuite): ...


class TestAct(ActSuite): ...


class TestReader(ReaderSuite): ...


@pytest.mark.req("W51", "W67")
class TestListing(ListingSuite): ...


class TestTransaction(TransactionSuite): ...


class TestTracking(TrackingSuite): ...


class TestPhase(PhaseSuite): ...


class TestLocking(LockingSuite): ...


class TestLockSession(LockSessionSuite): ...


class TestOutbox(OutboxSuite): ...


class TestPosting(PostingSuite): ...


class TestView(ViewSuite): ...


class TestStir(StirSuite): ...


async def test_what_is_committed_late_is_not_missed(store: Store, database: CleanDatabase) -> None:
    await check_a_late_commit_is_found(store, OwnTransaction(store, database.url).begin)


async def test_a_mark_waits_for_the_end_that_is_being_written_and_is_refused_after_it(
    store: Store, database: CleanDatabase
) -> None:
    own, claimed = OwnTransaction(store, database.url), await start_one(store, options=PIPELINE)
    commit = await own.begin(claimed)

    marking = asyncio.create_task(store.report([], [mark(claimed, "download")], now=T0))
    await own.somebody_waits()
    await commit()

    assert await marking == {claimed.claim_id}
    assert await store.phases(claimed.job_id) == []


async def test_a_job_completed_on_the_users_connection_is_posted_with_its_commit(
    store: Store, database: CleanDatabase
) -> None:
    await store.put_webhooks([webhook()])
    claims = [await start_one(store), await start_one(store, options=own())]
    connection = await asyncpg.connect(database.url)
    async with connection.transaction():
        for claimed in claims:
            await store.complete_within(connection, token(claimed), None)
        assert await store.posts() == []

    await connection.close()
    heard = {post.job_id: post.webhook for post in await store.posts()}
    assert heard == {claims[0].job_id: "ops", claims[1].job_id: None}


class TestStale(StaleSuite): ...


class TestRemoval(RemovalSuite): ...


class TestDeadLetter(DeadLetterSuite): ...


class TestReview(ReviewSuite): ...


class TestBulk(BulkSuite): ...


@pytest.mark.req("L27", "L55", "L56", "L57", "L58", "L66")
class TestBreaker(BreakerSuite): ...


@pytest.mark.req("L57", "L58")
class TestBreakerBarred(BreakerBarredSuite): ...


@pytest.mark.req("L57", "L58")
class TestBreakerGate(BreakerGateSuite): ...


@pytest.mark.req("L57", "L58")
class TestBreakerProbe(BreakerProbeSuite): ...


class TestAudit(AuditSuite): ...


class TestAccess(AccessSuite): ...


class TestAlerting(AlertingSuite): ...


@pytest.mark.req("L39", "L76", "L77", "L78")
class TestMeasuring(MeasuringSuite): ...
