"""The store on one SQLite file: a thin caller that hands each verb to the thread that may run it."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path
from typing import Literal

from dutiful.core.errors import UsageError
from dutiful.core.tenant import check_tenant
from dutiful.stores.sqlite import schema
from dutiful.stores.sqlite.driver import Driver
from dutiful.stores.sqlite.store_access import SqliteAccess
from dutiful.stores.sqlite.store_acting import SqliteActing
from dutiful.stores.sqlite.store_alerting import SqliteAlerting
from dutiful.stores.sqlite.store_auditing import SqliteAuditing
from dutiful.stores.sqlite.store_breaking import SqliteBreaking
from dutiful.stores.sqlite.store_duties import SqliteDuties
from dutiful.stores.sqlite.store_intake import SqliteIntake
from dutiful.stores.sqlite.store_locking import SqliteLocking
from dutiful.stores.sqlite.store_measuring import SqliteMeasuring
from dutiful.stores.sqlite.store_outbox import SqliteOutbox
from dutiful.stores.sqlite.store_parting import SqliteParting
from dutiful.stores.sqlite.store_reading import SqliteReading
from dutiful.stores.sqlite.store_reviewing import SqliteReviewing
from dutiful.stores.sqlite.store_tracking import SqliteTracking
from dutiful.stores.sqlite.store_watching import SqliteWatching
from dutiful.stores.sqlite.store_working import SqliteWorking
from dutiful.stores.sqlite.threads import Threads

Synchronous = Literal["FULL", "NORMAL", "EXTRA", "OFF"]


class SqliteStore(
    SqliteDuties,
    SqliteIntake,
    SqliteWorking,
    SqliteActing,
    SqliteReading,
    SqliteTracking,
    SqliteLocking,
    SqliteOutbox,
    SqliteWatching,
    SqliteParting,
    SqliteReviewing,
    SqliteAuditing,
    SqliteAccess,
    SqliteBreaking,
    SqliteMeasuring,
    SqliteAlerting,
):
    """Jobs in the file `path`, for any number of processes on one machine.

    `synchronous="NORMAL"` is faster, and after a power cut forgets the last commits; FULL keeps its word.
    `driver="sqlite3"` uses the standard library, for applications that enqueue in transactions of their own.
    """

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
        super().__init__(file)
        self._path = file
        self._driver = driver
        self._synchronous = synchronous
        self._busy = busy_timeout

    @property
    def url(self) -> str:
        return f"sqlite:///{self._path}"

    async def open(self) -> None:
        if self._threads is not None and self._threads.pid == os.getpid():
            return
        await self._open()
        try:
            self._leadership.open()
            await self._apply_missing()
        except BaseException:
            await self.close()
            raise

    async def _open(self) -> None:
        schema.check_path(self._path)
        self._threads = await asyncio.get_running_loop().run_in_executor(
            None, Threads, self._path, self._driver, self._synchronous, self._busy
        )

    async def close(self) -> None:
        threads, self._threads = self._threads, None
        self._leadership.close()
        if threads is not None and threads.pid == os.getpid():
            try:
                closing = asyncio.get_running_loop().run_in_executor(None, threads.close)
            except RuntimeError:  # the interpreter is ending, and gives out no more threads
                threads.close()
            else:
                await closing

    async def migrate(self) -> list[str]:
        if self._threads is None:
            await self._open()
            try:
                return await self._apply_missing()
            finally:
                await self.close()
        return await self._apply_missing()

    async def _apply_missing(self) -> list[str]:
        applied: list[str] = []
        while await self._read(schema.missing):
            if name := await self._write(lambda db: schema.apply_next(db, self._clock(None))):
                applied.append(name)
        return applied

    def migration_sql(self) -> str:
        return "\n".join(f"-- {migration.name}\n\n{migration.sql}" for migration in schema.migrations())

    @property
    def guarded(self) -> bool:
        return False

    async def check_made(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, schema.check_made, self._path, self._driver, self._busy)

    def check_worker(self) -> None:
        """Who can open the file can do everything."""

    def for_tenant(self, tenant: str) -> "SqliteStore":
        """Itself: who can open the file can read all of it, so only what is asked for keeps tenants apart."""
        check_tenant(tenant)
        return self

    async def data_version(self) -> int:
        """A number that changes when another process has committed; to ask costs no file I/O."""
        return await self._submit(lambda db: int(db.value("PRAGMA data_version")), transaction=False)
