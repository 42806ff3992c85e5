"""The write path behind PgBouncer in transaction mode, where no session lasts."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from databases import DATABASE, CleanDatabase
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from servers import PgBouncer
from suite import add_tests
from suite.audit import AuditSuite
from suite.breakers import BreakerSuite
from suite.claims import ClaimSuite
from suite.claims_fencing import ClaimFencingSuite
from suite.claims_leases import ClaimLeaseSuite
from suite.claims_races import ClaimRaceSuite
from suite.claims_settle import ClaimSettleSuite, ClaimTransactionSuite
from suite.dead_letters_bulk import DeadLetterBulkSuite
from suite.dead_letters_review import DeadLetterReviewSuite
from suite.encryption import EncryptionSuite
from suite.events import EventSuite
from suite.events_views import EventViewSuite
from suite.jobs import JobSuite
from suite.jobs_unique import JobUniqueSuite
from suite.limits import LimitSuite
from suite.locks import LockSessionSuite, LockSuite
from suite.progress import ProgressSuite
from suite.progress_phases import ProgressPhaseSuite
from suite.shares import ShareSuite
from suite.steps import StepSuite
from suite.webhooks import WebhookSuite
from suite.webhooks_posts import WebhookPostSuite

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(clean18: CleanDatabase, bouncer: PgBouncer) -> AsyncIterator[Store]:
    """One store for all tests, because each new connection compiles the functions again."""
    clean18.reset()
    store = PostgresStore(bouncer.dsn(DATABASE), direct_dsn=clean18.url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def store(opened: Store, clean18: CleanDatabase) -> Store:
    clean18.reset(alone=False)
    return opened


add_tests(
    globals(),
    [
        AuditSuite,
        BreakerSuite,
        ClaimSuite,
        ClaimFencingSuite,
        ClaimLeaseSuite,
        ClaimRaceSuite,
        ClaimSettleSuite,
        ClaimTransactionSuite,
        DeadLetterBulkSuite,
        DeadLetterReviewSuite,
        EncryptionSuite,
        EventSuite,
        EventViewSuite,
        JobSuite,
        JobUniqueSuite,
        LimitSuite,
        LockSessionSuite,
        LockSuite,
        ProgressSuite,
        ProgressPhaseSuite,
        ShareSuite,
        StepSuite,
        WebhookSuite,
        WebhookPostSuite,
    ],
)
