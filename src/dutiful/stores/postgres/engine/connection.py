"""Connections to Postgres: one small pool, driver errors translated, poolers detected."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import asyncpg

from dutiful.concurrency.vanished import notice_vanished
from dutiful.core.errors import DataRefused, DutifulError, SchemaMismatch, StoreAway, StoreBusy, StoreUnavailable
from dutiful.core.redaction.redact import redact
from dutiful.stores.database_url import redacted_url
from dutiful.stores.postgres.engine.pool import Pool

VANISHED_AFTER = 20  # seconds in which a server acknowledges nothing
# All that a driver's call may raise; a connection that ends during the call may show as an internal error.
DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
# After these errors a retry may succeed: the server restarted or is overloaded, or transactions conflicted.
_PASSING = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.InsufficientResourcesError,
    asyncpg.exceptions.TransactionRollbackError,
    asyncpg.exceptions.LockNotAvailableError,
    asyncpg.exceptions.ReadOnlySQLTransactionError,
    asyncpg.exceptions.PostgresIOError,
    asyncpg.exceptions.InvalidCatalogNameError,
    asyncpg.exceptions.InternalClientError,
    OSError,
    TimeoutError,
)
_CONTENDED = (
    asyncpg.exceptions.DeadlockDetectedError,
    asyncpg.exceptions.LockNotAvailableError,
    asyncpg.exceptions.SerializationError,
)
# The connection itself is broken; the statement may or may not have been committed.
BROKEN = (
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.AdminShutdownError,
    asyncpg.exceptions.CrashShutdownError,
    asyncpg.exceptions.CannotConnectNowError,
    asyncpg.InternalClientError,
    ConnectionError,
)
_NOT_MIGRATED = (
    asyncpg.exceptions.UndefinedTableError,
    asyncpg.exceptions.UndefinedFunctionError,
    asyncpg.exceptions.InvalidSchemaNameError,
    asyncpg.exceptions.UndefinedColumnError,
)


def translate(error: BaseException, url: str) -> DutifulError:
    """Converts the driver's error; the message says what to do next."""
    what = redact(f"{type(error).__name__}: {error}".strip().rstrip(":"))  # it may quote a row, or the address
    if isinstance(error, _NOT_MIGRATED):
        return SchemaMismatch(f"the database {url} is not migrated ({what})")
    if isinstance(error, asyncpg.exceptions.InvalidCatalogNameError):
        return StoreUnavailable(f"the database {url} does not exist: create it, then run `dutiful migrate` ({what})")
    if isinstance(error, asyncpg.exceptions.InvalidAuthorizationSpecificationError):
        return StoreUnavailable(
            f"the database {url} does not let this role in ({what}); check the role and its password in the address, "
            "and what pg_hba.conf says of it"
        )
    if isinstance(error, asyncpg.exceptions.InsufficientPrivilegeError):
        return DataRefused(
            f"the database does not let this role do that ({what}); see which group it is in, and on whose behalf it "
            "acts: `dutiful tenants status`"
        )
    if isinstance(error, _CONTENDED):
        return StoreBusy(f"the database {url} made this wait too long for another transaction ({what}); try again")
    # An argument that asyncpg cannot encode also raises InterfaceError, which is then a ValueError, too.
    if isinstance(error, _PASSING) and not isinstance(error, ValueError):
        return StoreAway(f"the database {url} cannot serve this now ({what}); check that it runs, then try again")
    return DataRefused(f"the database refused this ({what})")


async def connect(dsn: str, *, pooled: bool = False, timeout: float = 10, command_timeout: float | None = None) -> Any:
    """Opens a connection; no statement of this library leaves state in its session."""
    connection = await asyncpg.connect(
        dsn,
        timeout=timeout,
        command_timeout=command_timeout,
        statement_cache_size=0 if pooled else 100,
        server_settings={"application_name": "dutiful"},
    )
    # One that answers late acknowledges what it is asked; one that has vanished would be waited for as long as for the
    # longest statement.
    notice_vanished(connection._transport, VANISHED_AFTER)
    return connection


async def behind_pooler(connection: Any) -> bool:
    """Whether the connection goes through a pooler, which reports its own process ids."""
    return bool(await connection.fetchval("select pg_backend_pid()") != connection.get_server_pid())


class Connections:
    """A pool that opens lazily, shrinks when idle, and is not used after a fork."""

    def __init__(self, dsn: str, *, size: int = 8, idle: float = 20.0, command_timeout: float = 60) -> None:
        """`command_timeout`: seconds after which a statement is given up, if the server has not answered."""
        self.dsn = dsn
        self.url = redacted_url(dsn)
        self.pooled = False
        self.first: str | None = None  # a statement that begins every transaction, if any
        self.limits: str | None = None  # statements before it, which limit how long the transaction waits
        self._size = size
        self._idle = idle
        self._command_timeout = command_timeout
        self._pool: Pool | None = None
        self._lent: Pool | None = None
        self._pid = os.getpid()

    async def open(self) -> None:
        try:
            probe = await connect(self.dsn, pooled=True, command_timeout=10)
            try:
                self.pooled = await behind_pooler(probe)
            finally:
                await probe.close(timeout=5)
            self._pool = Pool(self._connect, size=self._size, idle=self._idle)
            # Separate, so that long transactions of handlers do not take all connections of the worker itself.
            self._lent = Pool(self._connect, size=self._size, idle=self._idle, keep=0)
        except DRIVER_ERRORS as error:
            raise translate(error, self.url) from error

    async def _connect(self) -> Any:
        return await connect(self.dsn, pooled=self.pooled, command_timeout=self._command_timeout)

    async def close(self) -> None:
        pools = [pool for pool in (self._lent, self._pool) if pool is not None]
        self._pool = self._lent = None
        if self._pid == os.getpid():
            for pool in pools:
                await pool.close(patience=5)

    async def fetch(self, statement: str, *args: Any, repeat: bool = True) -> list[Any]:
        """Runs one statement in its own transaction; retries once if the connection turns out to be broken.

        The retry is safe because every statement of a store can be repeated. But its result may differ: for example, a
        job is already cancelled. Without `repeat`, the caller gets an error instead: the outcome is unknown.
        """
        for last in (False, True):
            asked = False
            try:
                async with self._ready().acquire(statement) as connection:
                    asked = True
                    if (beginning := self._beginning()) is None:
                        return list(await connection.fetch(statement, *args))
                    return await fetch_after(connection, beginning, statement, args)
            except asyncpg.DeadlockDetectedError as error:
                if last:
                    raise translate(error, self.url) from error
            except BROKEN as error:
                if asked and not repeat:
                    raise StoreAway(
                        f"the connection to {self.url} broke ({type(error).__name__}: {error}): it is unknown whether "
                        "this was done; check, then try again if it was not"
                    ) from error
                if last:
                    raise translate(error, self.url) from error
            except DRIVER_ERRORS as error:
                raise translate(error, self.url) from error
            await asyncio.sleep(0.05)
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A connection with an open transaction; driver errors of its begin and commit are translated."""
        try:
            async with self._ready().acquire() as connection, connection.transaction():
                if (beginning := self._beginning()) is not None:
                    await connection.execute(beginning)
                yield connection
        except DutifulError:
            raise
        except DRIVER_ERRORS as error:
            raise translate(error, self.url) from error

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Any]:
        """The same for a handler: errors of its block, such as a missing file or a timeout, are not translated."""
        async with AsyncExitStack() as stack:
            try:
                connection = await stack.enter_async_context(self._lender().acquire())
                transaction = connection.transaction()
                await transaction.start()
            except DRIVER_ERRORS as error:
                raise translate(error, self.url) from error
            try:
                yield connection
            except BaseException:
                with suppress(*DRIVER_ERRORS):  # then the server rolls back by itself
                    await transaction.rollback()
                raise
            try:
                await transaction.commit()
            except DRIVER_ERRORS as error:
                raise translate(error, self.url) from error

    @asynccontextmanager
    async def lend_between(self, begin: str, commit: str, rollback: str) -> AsyncIterator[Any]:
        """`lend`, with statements of the caller's that begin and end it: several of them in one round trip each."""
        async with AsyncExitStack() as stack:
            try:
                connection = await stack.enter_async_context(self._lender().acquire())
                await connection.execute(begin)
            except DRIVER_ERRORS as error:
                raise translate(error, self.url) from error
            try:
                yield connection
            except BaseException:
                with suppress(*DRIVER_ERRORS):  # then the server rolls back by itself
                    await connection.execute(rollback)
                raise
            try:
                await connection.execute(commit)
            except DRIVER_ERRORS as error:
                with suppress(*DRIVER_ERRORS):
                    await connection.execute(rollback)  # what comes after the commit was not run
                raise translate(error, self.url) from error

    def _beginning(self) -> str | None:
        if self.limits is None:
            return self.first
        return self.limits if self.first is None else f"{self.limits}; {self.first}"

    def beginning_with(self, first: str) -> "Connections":
        """The same connections, but transactions begin with another statement."""
        return _Sharing(self, first)

    def check_open(self) -> None:
        """Raises StoreUnavailable unless this process has opened it."""
        self._ready()

    def _lender(self) -> Pool:
        self._ready()
        assert self._lent is not None
        return self._lent

    def _ready(self) -> Pool:
        if self._pool is None:
            raise StoreUnavailable("the store is not open; use it inside `async with app:`")
        if self._pid != os.getpid():
            raise StoreUnavailable("this process was forked after the store was opened; open it anew in the child")
        return self._pool


class _Sharing(Connections):
    """Shares the pools of another object, which closes them."""

    def __init__(self, whole: Connections, first: str) -> None:
        self.dsn = whole.dsn
        self.url = whole.url
        self.pooled = whole.pooled
        self.first = first
        self.limits = whole.limits
        self._whole = whole

    async def open(self) -> None:
        self._ready()

    async def close(self) -> None:
        pass

    def _lender(self) -> Pool:
        return self._whole._lender()

    def _ready(self) -> Pool:
        return self._whole._ready()


async def fetch_after(
    connection: Any, first: str, statement: str, args: Sequence[Any], timeout: float | None = None
) -> list[Any]:
    """Runs a statement in a transaction that begins with `first`, in one round trip."""
    await connection.execute(f"begin; {first}", timeout=timeout)
    try:
        rows = list(await connection.fetch(statement, *args, timeout=timeout))
    except (asyncio.CancelledError, TimeoutError):
        connection.terminate()  # its reply may still be on the way
        raise
    except BaseException:
        with suppress(*DRIVER_ERRORS):  # then it has ended, and the transaction with it
            await connection.execute("rollback", timeout=timeout)
        raise
    await connection.execute("commit", timeout=timeout)
    return rows
