"""The common suite on the standard library's driver, which applications share with their own connections."""

from pathlib import Path

import pytest

from dutiful.stores.sqlite import SqliteStore
from dutiful.testing.store_suite import (
    ActSuite,
    ClaimSuite,
    DutySuite,
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


@pytest.fixture
def closed_store(sqlite_path: Path) -> SqliteStore:
    return SqliteStore(sqlite_path, driver="sqlite3")


class TestInsert(InsertSuite): ...


class TestClaim(ClaimSuite): ...


class TestRace(RaceSuite): ...


class TestSettle(SettleSuite): ...


class TestLease(LeaseSuite): ...


class TestUnique(UniqueSuite): ...


class TestGate(GateSuite): ...


class TestDuty(DutySuite):
    one_leader = False


class TestRetention(RetentionSuite): ...


class TestSchedule(ScheduleSuite): ...


class TestAct(ActSuite): ...


class TestReader(ReaderSuite): ...


class TestTransaction(TransactionSuite): ...
