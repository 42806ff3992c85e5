"""The common suite on the standard library's driver, which applications share with their own connections."""

from pathlib import Path

import pytest

from dutiful.stores.sqlite import SqliteStore
from dutiful.testing.store_suite import (
    AccessSuite,
    ActSuite,
    AuditSuite,
    BulkSuite,
    ClaimSuite,
    DeadLetterSuite,
    DutySuite,
    GateSuite,
    InsertSuite,
    LeaseSuite,
    LockingSuite,
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
    sees_processes = True


class TestRetention(RetentionSuite): ...


class TestSchedule(ScheduleSuite): ...


class TestAct(ActSuite): ...


class TestReader(ReaderSuite): ...


class TestTransaction(TransactionSuite): ...


class TestTracking(TrackingSuite): ...


class TestPhase(PhaseSuite): ...


class TestLocking(LockingSuite): ...


class TestOutbox(OutboxSuite): ...


class TestPosting(PostingSuite): ...


class TestView(ViewSuite): ...


class TestStir(StirSuite): ...


class TestStale(StaleSuite): ...


class TestRemoval(RemovalSuite): ...


class TestDeadLetter(DeadLetterSuite): ...


class TestReview(ReviewSuite): ...


class TestBulk(BulkSuite): ...


class TestAudit(AuditSuite): ...


class TestAccess(AccessSuite): ...
