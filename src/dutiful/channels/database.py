"""The published functions, called with the login of a SQL worker, which may execute them and touch no table."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from dutiful.core.errors import DutifulError, NotAllowed, SchemaMismatch, StoreAway, StoreBusy, StoreUnavailable
from dutiful.core.retry.error_info import storable
from dutiful.stores import liveness
from dutiful.stores.database_url import redacted_url
from dutiful.stores.postgres.engine.connection import DRIVER_ERRORS, Connections, connect, translate
from dutiful.stores.postgres.engine.sql import check_schema, statements

LONGEST_MESSAGE = 1_000
_CALLED = (
    "dequeue", "renew_job", "renew_jobs", "complete_job", "release_job", "run_function", "maintain_jobs",
    "report_worker",
)  # fmt: skip
PATIENCE, RENEWAL_PATIENCE = 15.0, 5.0  # seconds to wait for an answer
ANSWER_MARGIN = 10.0  # seconds that the server has to report that a statement took too long
# Whatever the default of the server is: supervisors have to see facts that were added while they waited for a lock.
_BEGIN = "begin isolation level read committed"
# A function can change its session for good, as by a session's setting or lock, and the next one must not notice. A
# rollback takes back all of that but locks.
_UNLOCK = "select pg_advisory_unlock_all()"
_COMMIT = f"commit; reset session authorization; reset all; close all; unlisten *; discard temp; {_UNLOCK}"
_ROLLBACK = f"rollback; {_UNLOCK}"
_READ_ONLY = asyncpg.exceptions.ReadOnlySQLTransactionError
# A function that raised one of these may succeed if it is run again: conflicts of transactions, a lack of resources.
_TRANSIENT = (
    asyncpg.exceptions.TransactionRollbackError,
    asyncpg.exceptions.LockNotAvailableError,
    asyncpg.exceptions.InsufficientResourcesError,
    _READ_ONLY,
)
# A function, perhaps another one before, has deallocated all that is prepared in the session, or left something there.
_SESSION_CHANGED = (
    asyncpg.exceptions.InvalidSQLStatementNameError,
    asyncpg.exceptions.DuplicatePreparedStatementError,
)


class ChannelJob(msgspec.Struct, frozen=True):
    """A claimed job; its payload is JSON text, which is passed on as it is."""

    job_id: UUID
    claim_id: int
    kind: str
    payload: str
    attempt: int
    crashes: int
    tenant: str | None
    correlation_id: str | None


class Maintained(msgspec.Struct, frozen=True):
    """What maintain_jobs has done; `due_in` is when the next scheduled job is due, `seen_at` the database's time."""

    promoted: int
    rescued: int
    due_in: timedelta | None
    seen_at: datetime


class FunctionFailed(Exception):
    """A function of a payload raised, or may not be run. The message is without secrets."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(_message(error))
        self.type = type(error).__name__
        self.transient = isinstance(error, _TRANSIENT)
        self.read_only = isinstance(error, _READ_ONLY)


class ConnectionLost(StoreAway):
    """The connection ended in a transaction in which a function was run: by an outage, or by what the function does."""


class ClaimTransaction:
    """An open transaction in which functions are run and a job is completed."""

    def __init__(self, connection: Any, sql: Any, url: str) -> None:
        self._connection = connection
        self._sql = sql
        self._url = url
        self.ran = False  # whether a function was run in it

    async def run(self, function: str, payload: str) -> str | None:
        """What the function returned, as JSON text; None is null. Raises FunctionFailed."""
        self.ran = True
        try:
            answer: str | None = await self._connection.fetchval(self._sql["published_run"], function, payload)
            return answer
        except UnicodeError as error:  # the function has changed client_encoding
            self._connection.terminate()  # the rest of the reply may still be on the way
            raise FunctionFailed(error) from error
        except TimeoutError as error:
            self._connection.terminate()  # a rollback would wait for it, too
            raise ConnectionLost("it gave no answer, not even when it was cancelled") from error
        except DRIVER_ERRORS as error:
            if _is_raised(error) and not isinstance(error, _SESSION_CHANGED):
                raise FunctionFailed(error) from error
            raise self._translated(error) from error

    async def complete(self, job: ChannelJob, result: str, errors: Sequence[dict[str, Any]] = ()) -> str:
        """Completes the job; returns `applied`, `repeated` or `lost`."""
        given = msgspec.json.encode(errors).decode() if errors else None
        return await self._ask("published_complete", job.job_id, job.claim_id, result, given)

    async def release(self, job: ChannelJob) -> str:
        return await self._ask("published_release", job.job_id, job.claim_id)

    async def _ask(self, statement: str, *args: Any) -> str:
        try:
            return str(await self._connection.fetchval(self._sql[statement], *args))
        except DRIVER_ERRORS as error:
            raise self._translated(error) from error

    def _translated(self, error: BaseException) -> DutifulError:
        if isinstance(error, _SESSION_CHANGED):
            self._connection.terminate()  # no other function is to be run on it
            what = str(error.args[0]).partition("\n")[0]
            return ConnectionLost(f"what is prepared in its session was changed by a function: {what}")
        return translate(error, self._url)


class ChannelDatabase:
    """`statement_timeout` bounds each function that a payload names; it must be below the lease."""

    def __init__(
        self, dsn: str, schema: str, *, direct_dsn: str | None, pool_size: int, statement_timeout: timedelta
    ) -> None:
        check_schema(schema)
        self.schema = schema
        self.url = redacted_url(dsn)
        self._direct_dsn = direct_dsn
        # A function that catches its cancellation, or whose worker died, ends with the connection, and so do its locks.
        self._begin = (
            f"{_BEGIN}; set local statement_timeout = {round(statement_timeout.total_seconds() * 1000)}; "
            "set local client_connection_check_interval = '2s'"
        )
        self._db = Connections(dsn, size=pool_size, command_timeout=statement_timeout.total_seconds() + ANSWER_MARGIN)
        self._sql = statements(schema)
        self.server_started: datetime | None = None  # as it was last seen

    @property
    def listens(self) -> bool:
        """Whether LISTEN reaches the server: it does not through a pooler."""
        return self._direct_dsn is not None or not self._db.pooled

    async def open(self) -> None:
        """Connects, and checks what this login may execute."""
        await self._db.open()
        try:
            await self._check_rights()
            await self.look_at_start()
        except BaseException:
            await self._db.close()
            raise

    async def close(self) -> None:
        await self._db.close()

    async def look_at_start(self) -> datetime | None:
        """Since when the server runs; a crash of one of its sessions does not change that."""
        self.server_started = (await self._fetch("started"))[0][0]
        return self.server_started

    async def connect_direct(self) -> Any:
        return await connect(self._direct_dsn or self._db.dsn, pooled=True)

    async def dequeue(
        self,
        kinds: Sequence[str],
        queues: Sequence[str] | None,
        limit: int,
        lease: timedelta,
        worker: UUID,
        *,
        suspects: bool,
    ) -> list[ChannelJob]:
        named = None if queues is None else list(queues)
        # Committed only when the rows have arrived: a claim that is lost on its way would count as a worker's death.
        begun = self._db.beginning_with(
            f"set transaction isolation level read committed; set local statement_timeout = {round(PATIENCE * 1000)}"
        )
        args = list(kinds), named, limit, lease, worker, suspects
        rows = await self._fetch("dequeue", *args, repeat=False, connections=begun)
        return [ChannelJob(*row) for row in rows]

    async def renew(self, jobs: Sequence[ChannelJob], lease: timedelta) -> dict[int, str]:
        """By claim: `held`, `cancel_requested`, `lost`, or `locked` if another transaction holds its row for now."""
        ids, claims = [job.job_id for job in jobs], [job.claim_id for job in jobs]
        # A call that hangs must leave time for the next one.
        patience = min(lease.total_seconds() / 4, RENEWAL_PATIENCE)
        return {row[0]: row[1] for row in await self._fetch("renew", ids, claims, lease, patience=patience)}

    async def renew_one(self, job: ChannelJob, lease: timedelta) -> str:
        """`held`, `cancel_requested` or `lost`; waits for who holds its row, as another renewal does for a moment."""
        return str((await self._fetch("renew_one", job.job_id, job.claim_id, lease))[0][0])

    async def release(self, job: ChannelJob) -> str:
        return str((await self._fetch("release", job.job_id, job.claim_id))[0][0])

    async def report(
        self, worker: UUID, kinds: Sequence[str], queues: Sequence[str] | None, slots: int, jobs: Sequence[UUID]
    ) -> None:
        """Records that the worker lives, and what it runs; without slots, that it has stopped."""
        host, pid = liveness.HOST, os.getpid()
        served = None if queues is None else list(queues)
        name, mark = f"sql {host}-{pid}", liveness.mark_of(host, pid)
        await self._fetch("report", worker, name, list(kinds), served, slots, list(jobs), host, pid, mark)

    async def maintain(
        self, kinds: Sequence[str], *, rescue: bool, seen: datetime | None, within: timedelta
    ) -> Maintained:
        """Rescues only if it is run `within` this time after it was `seen` last: not if it hung in an outage."""
        return Maintained(*(await self._fetch("maintain", list(kinds), rescue, seen, within))[0])

    async def _fetch(
        self,
        name: str,
        *args: Any,
        repeat: bool = True,
        patience: float = PATIENCE,
        connections: Connections | None = None,
    ) -> list[Any]:
        """Calls one function in its own transaction; a database that does not answer in time counts as away."""
        try:
            async with asyncio.timeout(patience):
                return await (connections or self._db).fetch(self._sql[f"published_{name}"], *args, repeat=repeat)
        except TimeoutError:
            raise StoreAway(f"the database {self.url} gave no answer in {patience:g} s: check that it runs") from None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[ClaimTransaction]:
        """Commits at the end of the block, and rolls back if it raises.

        What a function has left behind may fail the commit, as a deferred constraint does: that is FunctionFailed, too.
        """
        transaction: ClaimTransaction | None = None
        committing = False
        try:
            async with self._db.lend_between(self._begin, _COMMIT, _ROLLBACK) as connection:
                transaction = ClaimTransaction(connection, self._sql, self.url)
                yield transaction
                committing = True
        except FunctionFailed as failed:
            if failed.read_only:
                await self._check_writable()
            raise
        except DutifulError as error:
            # Another transaction keeps the job's lease, which is no fault of the function.
            kept = isinstance(error, StoreBusy) and not committing
            if transaction is None or not transaction.ran or kept or isinstance(error, ConnectionLost):
                raise
            cause = error.__cause__ or error
            if isinstance(cause, _READ_ONLY):
                await self._check_writable()
            if not isinstance(error, StoreUnavailable) or (committing and _is_raised(cause)):
                raise FunctionFailed(cause) from error
            what = "its job could not be completed" if _is_raised(cause) else "its connection ended while it ran"
            raise ConnectionLost(f"{what}: {str(cause) or type(cause).__name__}") from error

    async def _check_writable(self) -> None:
        """Raises StoreAway if the server takes no writes, as after a failover: that is no fault of a function."""
        if (await self._fetch("read_only"))[0][0]:
            raise StoreAway(f"the database {self.url} takes no writes: check that it is the primary, and not read-only")

    async def _check_rights(self) -> None:
        rows = await self._fetch("rights", _CALLED)
        known = {row["name"]: row["allowed"] for row in rows if row["name"] is not None}
        if missing := [name for name in _CALLED if name not in known]:
            raise SchemaMismatch(
                f"the schema {self.schema} of {self.url} has no function {', '.join(missing)}",
                "run `dutiful migrate` with the login of its owner",
            )
        if denied := [name for name in _CALLED if not known[name]]:
            raise NotAllowed(
                f"this login may not execute {', '.join(denied)} in the schema {self.schema} of {self.url}: run "
                f"`dutiful roles` with the login of the owner, then `grant {self.schema}_sql_worker to …` your login"
            )


def _is_raised(error: BaseException | None) -> bool:
    """Whether a statement raised it, whatever its code: the end of a session has another severity, or none."""
    return isinstance(error, asyncpg.PostgresError) and getattr(error, "severity_en", None) == "ERROR"


def _message(error: BaseException) -> str:
    """The server's message and hint, without its detail, which may quote a row."""
    if isinstance(error, asyncpg.exceptions.QueryCanceledError):
        return storable(f"was cancelled: {error.args[0]}", LONGEST_MESSAGE)
    if isinstance(error, UnicodeError):
        return f"its answer cannot be read as {error.args[0]}: it must leave client_encoding as it is"
    message, hint = str(getattr(error, "message", None) or error), getattr(error, "hint", None)
    return storable(f"{message}; {hint}" if hint else message, LONGEST_MESSAGE)
