"""The contract of a store, which keeps jobs and everything about them.

Every store passes one conformance suite. All of them guarantee:

- A call that returned has been committed durably. A call that raised StoreUnavailable may or may not have been
  committed. Repeating it does no harm, but its answer may differ: that the job is cancelled already, or that an alert
  or webhook was changed before. Metrics are counted once for each turn; a failure of a breaker may be counted twice.
- A live job stands in exactly one place (scheduled, ready, blocked or a lease); a final one has one `finished` row.
- Only the holder of (job_id, claim_id) moves a running job.
- Every `now` is for tests: production passes None, and the store uses its own clock.
- Times are aware, in UTC. JSON is passed as text.
"""

from datetime import timedelta
from typing import Protocol

from dutiful.store.alerts import AlertStore
from dutiful.store.audit import AuditStore
from dutiful.store.breakers import BreakerStore
from dutiful.store.claims import ClaimStore
from dutiful.store.control import ControlStore
from dutiful.store.dead_letters import DeadLetterStore
from dutiful.store.deliveries import DeliveryStore
from dutiful.store.dependents import DependentStore
from dutiful.store.encryption import EncryptionStore
from dutiful.store.events import EventStore
from dutiful.store.jobs import JobStore
from dutiful.store.leadership import LeadershipStore
from dutiful.store.limits import LimitStore
from dutiful.store.locks import LockStore
from dutiful.store.metrics import MetricStore
from dutiful.store.progress import ProgressStore
from dutiful.store.promotion import PromotionStore
from dutiful.store.queries import QueryStore
from dutiful.store.retention import RetentionStore
from dutiful.store.schedules import ScheduleStore
from dutiful.store.shares import ShareStore
from dutiful.store.steps import StepStore
from dutiful.store.supervisors import SupervisorStore
from dutiful.store.tenants import TenantStore
from dutiful.store.tokens import TokenStore
from dutiful.store.trees import TreeStore
from dutiful.store.webhooks import WebhookStore
from dutiful.store.workers import WorkerStore


class Store(Protocol):
    """One object for each subject, all on the same database."""

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
    def steps(self) -> StepStore: ...

    @property
    def locks(self) -> LockStore: ...

    @property
    def promotion(self) -> PromotionStore: ...

    @property
    def dependents(self) -> DependentStore: ...

    @property
    def trees(self) -> TreeStore: ...

    @property
    def deliveries(self) -> DeliveryStore: ...

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
    def limits(self) -> LimitStore: ...

    @property
    def shares(self) -> ShareStore: ...

    @property
    def encryption(self) -> EncryptionStore: ...

    @property
    def metrics(self) -> MetricStore: ...

    @property
    def alerts(self) -> AlertStore: ...

    @property
    def tokens(self) -> TokenStore: ...

    @property
    def tenants(self) -> TenantStore | None:
        """None where the database itself cannot isolate tenants."""

    @property
    def supervisors(self) -> SupervisorStore | None:
        """None where the database has no functions."""

    @property
    def url(self) -> str:
        """The database's address, without secrets."""

    async def open(self) -> None:
        """Connects and checks the schema; SchemaMismatch says which command to run."""

    async def close(self) -> None: ...

    def limit_waits(self, lock: timedelta, statement: timedelta) -> None:
        """From now on calls wait no longer for a lock, or for a statement, where the database can limit that; for who
        only reads. Called before `open`."""

    async def blockers(self) -> tuple[str, str]:
        """Who holds locks that reads wait for, and what to do about it; also of a store that could not be opened."""

    async def migrate(self, wait: timedelta = ...) -> list[str]:
        """Brings the schema up to date; returns the names of the migrations that were applied. Can be repeated.

        Raises StoreUnavailable if another session holds a lock for longer than `wait`.
        """

    def migration_sql(self) -> str:
        """All migrations as a script, for a DBA."""

    @property
    def finishes_inserts(self) -> bool:
        """Whether an insert that has begun is finished even if its caller is cancelled; if not, it is repeated."""

    @property
    def isolates_tenants(self) -> bool:
        """Whether the database itself separates tenants; then all jobs of a batch belong to the same tenant."""

    async def check_made(self) -> None:
        """Raises SchemaMismatch if the tables are missing and `open` would create them; for commands that only read."""

    def check_worker(self) -> None:
        """Raises UsageError if this database role lacks a right that a worker needs."""

    def for_tenant(self, tenant: str) -> "Store":
        """The same store for calls on behalf of one tenant; databases that isolate tenants hide all other rows.

        The caller must still filter by tenant. The returned store shares this store's connections and is closed with
        it.
        """
