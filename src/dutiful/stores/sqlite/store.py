"""The store on one SQLite file."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path
from typing import Literal

from dutiful.core.errors import UsageError
from dutiful.core.principal import check_tenant
from dutiful.stores.sqlite.alerts import SqliteAlerts
from dutiful.stores.sqlite.audit import SqliteAudit
from dutiful.stores.sqlite.breakers import SqliteBreakers
from dutiful.stores.sqlite.claims import SqliteClaims
from dutiful.stores.sqlite.control import SqliteControl
from dutiful.stores.sqlite.dead_letters import SqliteDeadLetters
from dutiful.stores.sqlite.deliveries import SqliteDeliveries
from dutiful.stores.sqlite.dependents import SqliteDependents
from dutiful.stores.sqlite.encryption import SqliteEncryption
from dutiful.stores.sqlite.engine import schema
from dutiful.stores.sqlite.engine.codec import clock
from dutiful.stores.sqlite.engine.driver import Driver
from dutiful.stores.sqlite.engine.engine import Engine
from dutiful.stores.sqlite.engine.file_lock import LeaderLock
from dutiful.stores.sqlite.events import SqliteEvents
from dutiful.stores.sqlite.jobs import SqliteJobs
from dutiful.stores.sqlite.leadership import SqliteLeadership
from dutiful.stores.sqlite.limits import SqliteLimits
from dutiful.stores.sqlite.locks import SqliteLocks
from dutiful.stores.sqlite.metrics import SqliteMetrics
from dutiful.stores.sqlite.progress import SqliteProgress
from dutiful.stores.sqlite.promotion import SqlitePromotion
from dutiful.stores.sqlite.queries import SqliteQueries
from dutiful.stores.sqlite.retention import SqliteRetention
from dutiful.stores.sqlite.schedules import SqliteSchedules
from dutiful.stores.sqlite.shares import SqliteShares
from dutiful.stores.sqlite.steps import SqliteSteps
from dutiful.stores.sqlite.tokens import SqliteTokens
from dutiful.stores.sqlite.trees import SqliteTrees
from dutiful.stores.sqlite.webhooks import SqliteWebhooks
from dutiful.stores.sqlite.workers import SqliteWorkers

Synchronous = Literal["FULL", "NORMAL", "EXTRA", "OFF"]


class SqliteStore:
    """Jobs in the file `path`, for any number of processes on one machine.

    `synchronous="NORMAL"` is faster, and loses the last commits in a power cut; FULL keeps them.
    `driver="sqlite3"` uses the standard library, for applications that enqueue in transactions of their own.
    """

    isolates_tenants = False
    finishes_inserts = True  # the writer does

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        driver: Driver = "apsw",
        synchronous: Synchronous = "FULL",
        busy_timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        if driver not in ("apsw", "sqlite3"):
            raise UsageError(f'driver {driver!r} is unknown: use "apsw" or "sqlite3"')
        if synchronous not in ("FULL", "NORMAL", "EXTRA", "OFF"):
            raise UsageError(f'synchronous {synchronous!r} is unknown: use "FULL", "NORMAL", "EXTRA" or "OFF"')
        file = os.fspath(Path(path).absolute()) if os.fspath(path) not in ("", ":memory:") else os.fspath(path)
        self.engine = engine = Engine(file, driver, synchronous, busy_timeout)
        self._leader = LeaderLock(file)
        self.jobs = SqliteJobs(engine)
        self.claims = SqliteClaims(engine)
        self.control = SqliteControl(engine)
        self.queries = SqliteQueries(engine)
        self.progress = SqliteProgress(engine)
        self.steps = SqliteSteps(engine)
        self.locks = SqliteLocks(engine)
        self.promotion = SqlitePromotion(engine)
        self.dependents = SqliteDependents(engine)
        self.trees = SqliteTrees(engine)
        self.deliveries = SqliteDeliveries(engine)
        self.leadership = SqliteLeadership(engine, self._leader, self.promotion)
        self.workers = SqliteWorkers(engine, self._leader)
        self.schedules = SqliteSchedules(engine)
        self.retention = SqliteRetention(engine)
        self.dead_letters = SqliteDeadLetters(engine)
        self.audit = SqliteAudit(engine)
        self.events = SqliteEvents(engine)
        self.webhooks = SqliteWebhooks(engine)
        self.breakers = SqliteBreakers(engine)
        self.limits = SqliteLimits(engine)
        self.shares = SqliteShares(engine)
        self.encryption = SqliteEncryption(engine)
        self.metrics = SqliteMetrics(engine)
        self.alerts = SqliteAlerts(engine)
        self.tokens = SqliteTokens(engine)
        self.tenants = None
        self.supervisors = None

    @property
    def url(self) -> str:
        return f"sqlite:///{self.engine.path}"

    @property
    def wal_path(self) -> str:
        """The file that every commit is written to; SQLite makes it beside the file itself, not beside a link to it."""
        return f"{os.path.realpath(self.engine.path)}-wal"

    @property
    def turn_path(self) -> str:
        """A file that every process with the database may open, and that holds nothing."""
        return f"{self.engine.path}-turn"

    async def open(self) -> None:
        if self.engine.is_open:
            return
        await self.engine.open()
        try:
            self._leader.open()
            await self._apply_missing()
        except BaseException:
            await self.close()
            raise

    def limit_waits(self, lock: timedelta, statement: timedelta) -> None:
        """Does nothing: readers wait for no lock, and the wait for the file is limited already."""

    async def blockers(self) -> tuple[str, str]:
        """A file does not say who has locked it."""
        return "another process", "look for a program that holds the file open for writing"

    async def close(self) -> None:
        self._leader.close()
        await self.engine.close()

    async def migrate(self, wait: timedelta | None = None) -> list[str]:
        if wait is not None:
            self.engine.busy_timeout = wait  # applies when it is opened
        if self.engine.is_open:
            return await self._apply_missing()
        await self.engine.open()
        try:
            return await self._apply_missing()
        finally:
            await self.close()

    async def _apply_missing(self) -> list[str]:
        applied: list[str] = []
        while await self.engine.read(schema.missing):
            if name := await self.engine.write(lambda db: schema.apply_next(db, clock(None))):
                applied.append(name)
        return applied

    def migration_sql(self) -> str:
        return schema.script()

    async def check_made(self) -> None:
        engine = self.engine
        await asyncio.get_running_loop().run_in_executor(
            None, schema.check_made, engine.path, engine.driver, engine.busy_timeout
        )

    def check_worker(self) -> None:
        """A process that can open the file can do everything."""

    def for_tenant(self, tenant: str) -> "SqliteStore":
        """Returns this store: a process that can open the file can read all of it, so only callers can filter."""
        check_tenant(tenant)
        return self

    async def data_version(self) -> int:
        """A number that changes when another process has committed; reading it costs no file I/O."""
        return await self.engine.submit(lambda db: int(db.value("PRAGMA data_version")), transaction=False)
