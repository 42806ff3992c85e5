import pytest

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

pytestmark = pytest.mark.parametrize("backend", ["sqlite"])


class TestInsert(InsertSuite): ...


@pytest.mark.req("W20", "W21")
class TestClaim(ClaimSuite): ...


@pytest.mark.req("W23", "W24", "W65")
class TestRace(RaceSuite): ...


@pytest.mark.req("W28", "W29")
class TestSettle(SettleSuite): ...


class TestFence(FenceSuite): ...


class TestLease(LeaseSuite): ...


@pytest.mark.req("W18", "W25", "W26", "W27")
class TestUnique(UniqueSuite): ...


class TestGate(GateSuite): ...


class TestGateOrder(GateOrderSuite): ...


class TestDuty(DutySuite):
    one_leader = False
    sees_processes = True


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


class TestOutbox(OutboxSuite): ...


class TestPosting(PostingSuite): ...


class TestView(ViewSuite): ...


class TestStir(StirSuite): ...


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
