"""One suite that every store passes.

For a store of your own, with pytest-asyncio in auto mode:

    pytest.register_assert_rewrite("dutiful.testing.store_suite")   # in conftest.py

    @pytest.fixture
    async def store() -> AsyncIterator[Store]: ...                  # open, migrated and empty

    class TestClaim(ClaimSuite): ...
"""

from dutiful.testing.store_suite.access import AccessSuite
from dutiful.testing.store_suite.act import ActSuite
from dutiful.testing.store_suite.alerting import AlertingSuite
from dutiful.testing.store_suite.audit import AuditSuite
from dutiful.testing.store_suite.breaker_barred import BreakerBarredSuite
from dutiful.testing.store_suite.breaker_gate import BreakerGateSuite
from dutiful.testing.store_suite.breaker_probe import BreakerProbeSuite
from dutiful.testing.store_suite.breaking import BreakerSuite
from dutiful.testing.store_suite.bulk import BulkSuite
from dutiful.testing.store_suite.claim import ClaimSuite
from dutiful.testing.store_suite.dead_letter import DeadLetterSuite
from dutiful.testing.store_suite.duty import DutySuite
from dutiful.testing.store_suite.fence import FenceSuite
from dutiful.testing.store_suite.gate import GateSuite
from dutiful.testing.store_suite.gate_order import GateOrderSuite
from dutiful.testing.store_suite.insert import InsertSuite
from dutiful.testing.store_suite.lease import LeaseSuite
from dutiful.testing.store_suite.listing import ListingSuite
from dutiful.testing.store_suite.lock_session import LockSessionSuite
from dutiful.testing.store_suite.locking import LockingSuite
from dutiful.testing.store_suite.measuring import MeasuringSuite
from dutiful.testing.store_suite.outbox import OutboxSuite
from dutiful.testing.store_suite.parting import RemovalSuite, StaleSuite
from dutiful.testing.store_suite.phase import PhaseSuite
from dutiful.testing.store_suite.posting import PostingSuite
from dutiful.testing.store_suite.race import RaceSuite
from dutiful.testing.store_suite.reader import ReaderSuite
from dutiful.testing.store_suite.retention import RetentionSuite
from dutiful.testing.store_suite.review import ReviewSuite
from dutiful.testing.store_suite.schedule import ScheduleSuite
from dutiful.testing.store_suite.settle import SettleSuite
from dutiful.testing.store_suite.tracking import TrackingSuite
from dutiful.testing.store_suite.transaction import TransactionSuite
from dutiful.testing.store_suite.unique import UniqueSuite
from dutiful.testing.store_suite.view import ViewSuite
from dutiful.testing.store_suite.watching import StirSuite

__all__ = [
    "AccessSuite",
    "ActSuite",
    "AlertingSuite",
    "AuditSuite",
    "BreakerBarredSuite",
    "BreakerGateSuite",
    "BreakerProbeSuite",
    "BreakerSuite",
    "BulkSuite",
    "ClaimSuite",
    "DeadLetterSuite",
    "DutySuite",
    "FenceSuite",
    "GateOrderSuite",
    "GateSuite",
    "InsertSuite",
    "LeaseSuite",
    "ListingSuite",
    "LockSessionSuite",
    "LockingSuite",
    "MeasuringSuite",
    "OutboxSuite",
    "PhaseSuite",
    "PostingSuite",
    "RaceSuite",
    "ReaderSuite",
    "RemovalSuite",
    "RetentionSuite",
    "ReviewSuite",
    "ScheduleSuite",
    "SettleSuite",
    "StaleSuite",
    "StirSuite",
    "TrackingSuite",
    "TransactionSuite",
    "UniqueSuite",
    "ViewSuite",
]
