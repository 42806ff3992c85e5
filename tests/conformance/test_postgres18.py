from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from databases import CleanDatabase
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from dutiful.testing.store_suite import (
    ActSuite,
    ClaimSuite,
    DutySuite,
    FenceSuite,
    GateSuite,
    InsertSuite,
    LeaseSuite,
    RaceSuite,
    ReaderSuite,
    RetentionSuite,
    ScheduleSuite,
    SettleSuite,
    TransactionSuite,
    UniqueSuite,
)
from dutiful.testing.store_suite.builders import claim, enqueue, new_job

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(clean18: CleanDatabase) -> AsyncIterator[Store]:
    """One store for all tests, for each new connection would have to compile the functions anew."""
    store = PostgresStore(clean18.reset())
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def store(opened: Store, clean18: CleanDatabase) -> Store:
    clean18.reset(alone=False)
    return opened


class TestInsert(InsertSuite): ...


@pytest.mark.req("W20", "W21")
class TestClaim(ClaimSuite): ...


@pytest.mark.req("W23", "W24", "W65")
class TestRace(RaceSuite): ...


@pytest.mark.req("W19")
async def test_a_claim_does_not_wait_for_what_another_is_taking(store: Store, clean18: CleanDatabase) -> None:
    await enqueue(store, first := new_job(), second := new_job())
    connection = await asyncpg.connect(clean18.url)
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


class TestDuty(DutySuite): ...


class TestRetention(RetentionSuite): ...


class TestSchedule(ScheduleSuite): ...


class TestAct(ActSuite): ...


class TestReader(ReaderSuite): ...


class TestTransaction(TransactionSuite): ...
