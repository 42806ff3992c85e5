"""The write path behind PgBouncer in transaction mode, where no session lasts."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from databases import DATABASE, CleanDatabase
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from dutiful.testing.servers import PgBouncer
from dutiful.testing.store_suite import (
    AuditSuite,
    BreakerSuite,
    BulkSuite,
    ClaimSuite,
    FenceSuite,
    InsertSuite,
    LeaseSuite,
    LockingSuite,
    LockSessionSuite,
    OutboxSuite,
    PhaseSuite,
    PostingSuite,
    RaceSuite,
    ReviewSuite,
    SettleSuite,
    StirSuite,
    TrackingSuite,
    TransactionSuite,
    UniqueSuite,
    ViewSuite,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(clean18: CleanDatabase, bouncer: PgBouncer) -> AsyncIterator[Store]:
    """One store for all tests, for each new connection would have to compile the functions anew."""
    clean18.reset()
    store = PostgresStore(bouncer.dsn(DATABASE), direct_dsn=clean18.url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def store(opened: Store, clean18: CleanDatabase) -> Store:
    clean18.reset(alone=False)
    return opened


class TestInsert(InsertSuite): ...


class TestClaim(ClaimSuite): ...


class TestRace(RaceSuite): ...


class TestSettle(SettleSuite): ...


class TestFence(FenceSuite): ...


class TestLease(LeaseSuite): ...


class TestUnique(UniqueSuite): ...


class TestTransaction(TransactionSuite): ...


class TestTracking(TrackingSuite): ...


class TestPhase(PhaseSuite): ...


class TestLocking(LockingSuite): ...


class TestLockSession(LockSessionSuite): ...


class TestOutbox(OutboxSuite): ...


class TestPosting(PostingSuite): ...


class TestView(ViewSuite): ...


class TestStir(StirSuite): ...


class TestReview(ReviewSuite): ...


class TestBulk(BulkSuite): ...


class TestBreaker(BreakerSuite): ...


class TestAudit(AuditSuite): ...
