"""The Postgres store: one object per subject, each a thin caller of the functions in the schema."""

import copy
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Self

from dutiful.core.principal import check_tenant
from dutiful.stores.postgres import migrations
from dutiful.stores.postgres.alerts import PostgresAlerts
from dutiful.stores.postgres.audit import PostgresAudit
from dutiful.stores.postgres.breakers import PostgresBreakers
from dutiful.stores.postgres.claims import PostgresClaims
from dutiful.stores.postgres.control import PostgresControl
from dutiful.stores.postgres.dead_letters import PostgresDeadLetters
from dutiful.stores.postgres.deliveries import PostgresDeliveries
from dutiful.stores.postgres.dependents import PostgresDependents
from dutiful.stores.postgres.encryption import PostgresEncryption
from dutiful.stores.postgres.engine.connection import DRIVER_ERRORS, Connections, connect, translate
from dutiful.stores.postgres.engine.holders import read_blockers, remedy
from dutiful.stores.postgres.engine.sql import check_schema
from dutiful.stores.postgres.engine.subject import Session
from dutiful.stores.postgres.events import PostgresEvents
from dutiful.stores.postgres.jobs import PostgresJobs
from dutiful.stores.postgres.leadership import PostgresLeadership
from dutiful.stores.postgres.limits import PostgresLimits
from dutiful.stores.postgres.locks import PostgresLocks
from dutiful.stores.postgres.metrics import PostgresMetrics
from dutiful.stores.postgres.progress import PostgresProgress
from dutiful.stores.postgres.promotion import PostgresPromotion
from dutiful.stores.postgres.queries import PostgresQueries
from dutiful.stores.postgres.retention import PostgresRetention
from dutiful.stores.postgres.schedules import PostgresSchedules
from dutiful.stores.postgres.shares import PostgresShares
from dutiful.stores.postgres.steps import PostgresSteps
from dutiful.stores.postgres.supervisors import PostgresSupervisors
from dutiful.stores.postgres.tenants import PostgresTenants
from dutiful.stores.postgres.tokens import PostgresTokens
from dutiful.stores.postgres.trees import PostgresTrees
from dutiful.stores.postgres.webhooks import PostgresWebhooks
from dutiful.stores.postgres.workers import PostgresWorkers

MILLISECOND = timedelta(milliseconds=1)


class PostgresStore:
    finishes_inserts = False  # a statement is interrupted with its caller

    def __init__(
        self, dsn: str, *, schema: str = "dutiful", direct_dsn: str | None = None, pool_size: int = 8,
        notify_within: bool = True, lock_classes: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        check_schema(schema)
        db = Connections(dsn, size=pool_size)
        self._notify_within = notify_within
        self._lock_classes = lock_classes or {}
        self._attach(Session(db, schema, direct_dsn=direct_dsn or dsn, direct_given=direct_dsn is not None))

    def _attach(self, session: Session) -> None:
        self._session = session
        self.jobs = PostgresJobs(session, notify_within=self._notify_within)
        self.claims = PostgresClaims(session)
        self.control = PostgresControl(session)
        self.progress = PostgresProgress(session)
        self.steps = PostgresSteps(session)
        self.locks = PostgresLocks(session, self._lock_classes)
        self.promotion = PostgresPromotion(session)
        self.dependents = PostgresDependents(session)
        self.trees = PostgresTrees(session)
        self.deliveries = PostgresDeliveries(session)
        self.leadership = PostgresLeadership(session, self.promotion)
        self.workers = PostgresWorkers(session, self.leadership)
        self.schedules = PostgresSchedules(session)
        self.retention = PostgresRetention(session)
        self.dead_letters = PostgresDeadLetters(session)
        self.audit = PostgresAudit(session)
        self.events = PostgresEvents(session)
        self.webhooks = PostgresWebhooks(session)
        self.breakers = PostgresBreakers(session)
        self.limits = PostgresLimits(session)
        self.shares = PostgresShares(session)
        self.encryption = PostgresEncryption(session)
        self.metrics = PostgresMetrics(session)
        self.alerts = PostgresAlerts(session)
        self.tokens = PostgresTokens(session)
        self.tenants = PostgresTenants(session)
        self.supervisors = PostgresSupervisors(session)
        self.queries = PostgresQueries(session, self.metrics, self.tenants, self.locks)

    @property
    def url(self) -> str:
        return self._session.db.url

    @property
    def pooled(self) -> bool:
        """Whether the connection went through a transaction pooler when the store was opened."""
        return self._session.db.pooled

    @property
    def direct_dsn(self) -> str:
        return self._session.direct_dsn

    @property
    def isolates_tenants(self) -> bool:
        return self._session.isolates_tenants

    async def open(self) -> None:
        db = self._session.db
        await db.open()
        try:
            async with db.transaction() as connection:
                await migrations.check(connection, self._session.schema)
                await self.tenants.learn(connection)
        except BaseException:
            await db.close()
            raise

    async def close(self) -> None:
        await self._session.db.close()

    def limit_waits(self, lock: timedelta, statement: timedelta) -> None:
        # For each transaction, because a pooler refuses them for a session.
        self._session.db.limits = (
            f"set local lock_timeout = {lock // MILLISECOND}; set local statement_timeout = {statement // MILLISECOND}"
        )

    async def blockers(self) -> tuple[str, str]:
        try:
            # A connection of its own, because the pool is closed if `open` has failed.
            connection = await connect(self._session.db.dsn, pooled=True, command_timeout=10)
            try:
                held = await read_blockers(connection, self._session.schema)
            finally:
                await connection.close(timeout=5)
        except DRIVER_ERRORS as error:
            raise translate(error, self.url) from error
        return held, remedy(held)

    async def migrate(self, wait: timedelta = migrations.WAIT) -> list[str]:
        try:
            connection = await connect(self.direct_dsn, pooled=True)
            try:
                return await migrations.migrate(connection, self._session.schema, wait)
            finally:
                await connection.close()
        except DRIVER_ERRORS as error:
            raise translate(error, self.url) from error

    def migration_sql(self) -> str:
        return migrations.script(self._session.schema)

    async def check_made(self) -> None:
        """Does nothing, because `open` creates nothing: it refuses a missing schema."""

    def check_worker(self) -> None:
        self.tenants.check_worker()

    def for_tenant(self, tenant: str) -> Self:
        """Returns this store if tenants are not isolated: then only the caller's filters separate them."""
        check_tenant(tenant)
        self._session.db.check_open()
        if not self.isolates_tenants:
            return self
        scoped = copy.copy(self)
        scoped._attach(self._session.for_tenant(tenant))
        return scoped

    async def connect_direct(self) -> Any:
        """A connection that can LISTEN, past a pooler if there is one."""
        return await connect(self.direct_dsn, pooled=True)

    async def notify(self, channel: str, payload: str) -> None:
        await self._session.db.fetch(self._session.sql["notify"], channel, payload)
