"""The contract of a store: where jobs live.

Every store passes one conformance suite. What they all promise:

- A call that returned has been committed durably; a call that raised StoreUnavailable may or may not have been, and
  every call may be repeated safely.
- A live job stands in exactly one place (scheduled, ready, blocked or a lease); a final one has one `finished` row.
- Only the holder of (job_id, claim_id) moves a running job.
- Every `now` is for tests: production passes None and the store's own clock holds.
- Times are aware, in UTC. JSON travels as text.
"""

from typing import Protocol

from dutiful.store.alerts import AlertStore
from dutiful.store.audit import AuditStore
from dutiful.store.breakers import BreakerStore
from dutiful.store.claims import ClaimStore
from dutiful.store.control import ControlStore
from dutiful.store.dead_letters import DeadLetterStore
from dutiful.store.events import EventStore
from dutiful.store.jobs import JobStore
from dutiful.store.leadership import LeadershipStore
from dutiful.store.locks import LockStore
from dutiful.store.metrics import MetricStore
from dutiful.store.progress import ProgressStore
from dutiful.store.promotion import PromotionStore
from dutiful.store.queries import QueryStore
from dutiful.store.retention import RetentionStore
from dutiful.store.schedules import ScheduleStore
from dutiful.store.tenants import TenantStore
from dutiful.store.tokens import TokenStore
from dutiful.store.webhooks import WebhookStore
from dutiful.store.workers import WorkerStore


class Store(Protocol):
    """One object for each subject, and the database behind them all."""

    @property
    def jobs(self) -> JobStore: ...

    @property
    def claims(self) -> ClaimStore: ...

    @property
    def control(self) -> ControlStore: ...

    @property
    def queries(self) -> QueryStore: ...

    @property
    def progress(self) -> ProgressStore: ...

    @property
    def locks(self) -> LockStore: ...

    @property
    def promotion(self) -> PromotionStore: ...

    @property
    def leadership(self) -> LeadershipStore: ...

    @property
    def workers(self) -> WorkerStore: ...

    @property
    def schedules(self) -> ScheduleStore: ...

    @property
    def retention(self) -> RetentionStore: ...

    @property
    def dead_letters(self) -> DeadLetterStore: ...

    @property
    def audit(self) -> AuditStore: ...

    @property
    def events(self) -> EventStore: ...

    @property
    def webhooks(self) -> WebhookStore: ...

    @property
    def breakers(self) -> BreakerStore: ...

    @property
    def metrics(self) -> MetricStore: ...

    @property
    def alerts(self) -> AlertStore: ...

    @property
    def tokens(self) -> TokenStore: ...

    @property
    def tenants(self) -> TenantStore | None:
        """None where the database cannot keep tenants apart by itself."""

    @property
    def url(self) -> str:
        """Where it is, without secrets."""

    async def open(self) -> None:
        """Connect and check that the schema can be worked with; SchemaMismatch says what to run."""

    async def close(self) -> None: ...

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; returns the names of the migrations that were applied. Can be repeated."""

    def migration_sql(self) -> str:
        """All migrations as a script, for a DBA."""

    @property
    def guarded(self) -> bool:
        """Whether the database itself keeps tenants apart for us; then a batch holds the jobs of one tenant only."""

    async def check_made(self) -> None:
        """SchemaMismatch if it has none of our tables and `open` would make them; for commands that only read."""

    def check_worker(self) -> None:
        """UsageError if a worker could not do all of its work with the rights that we have here."""

    def for_tenant(self, tenant: str) -> "Store":
        """The same store, for calls on behalf of one tenant; where the database can, it lets them see nothing else.

        A second net: who calls it has to ask for nothing else, too. It shares this store's connections and is closed
        with it.
        """
