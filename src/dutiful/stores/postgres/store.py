"""The Postgres store: a thin caller of the functions in migrations/."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from dutiful.acting import CancelResult, Pause, PauseScope
from dutiful.core import ids
from dutiful.core.errors import ClaimLost, DataRefused, StoreUnavailable, UsageError
from dutiful.core.job import Claim, Inserted, Insertion, Lapsed, NewJob, Token
from dutiful.core.settle import Change
from dutiful.core.transitions import State
from dutiful.duties import Fired, Promotion, ScheduleRecord, Survey, WorkerRecord
from dutiful.payload_rule import PayloadRule
from dutiful.stores.postgres import encode, migrations, within
from dutiful.stores.postgres.access import PostgresAccess
from dutiful.stores.postgres.alerting import PostgresAlerting
from dutiful.stores.postgres.auditing import PostgresAuditing
from dutiful.stores.postgres.connection import DRIVER_ERRORS, Connections, connect, translate
from dutiful.stores.postgres.gating import PostgresGating
from dutiful.stores.postgres.keeper import PostgresKeeper
from dutiful.stores.postgres.locking import PostgresLocking
from dutiful.stores.postgres.outbox import PostgresOutbox
from dutiful.stores.postgres.parting import PostgresParting
from dutiful.stores.postgres.reviewing import PostgresReviewing
from dutiful.stores.postgres.schema_name import check_schema
from dutiful.stores.postgres.tenancy import PostgresTenancy
from dutiful.stores.postgres.tracking import PostgresTracking
from dutiful.stores.postgres.watching import PostgresWatching
from dutiful.working import Ask, Completion, Errors, Line, Refusal, Verdict

CHUNK = 5_000
LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)
LATE_COMMIT = timedelta(minutes=1)


class PostgresTransaction:
    """The handler's writes, on a connection of their own."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, statement: str, *args: Any) -> None:
        await self._connection.execute(statement, *args)

    @property
    def connection(self) -> Any:
        return self._connection


class PostgresStore(
    PostgresTenancy,
    PostgresTracking,
    PostgresLocking,
    PostgresOutbox,
    PostgresWatching,
    PostgresParting,
    PostgresReviewing,
    PostgresAuditing,
    PostgresAccess,
    PostgresGating,
    PostgresAlerting,
):
    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "dutiful",
        direct_dsn: str | None = None,
        pool_size: int = 8,
        notify_within: bool = True,
    ) -> None:
        check_schema(schema)
        super().__init__(Connections(dsn, size=pool_size), schema)
        self.direct_dsn = direct_dsn or dsn
        self._direct_given = direct_dsn is not None
        self._lock_mode = None
        self._notify_within = str(notify_within).lower()
        self._run_floor = LONG_AGO

    @property
    def url(self) -> str:
        return self._db.url

    @property
    def pooled(self) -> bool:
        """Whether a transaction pooler sits in between, as seen when it was opened."""
        return self._db.pooled

    # --- schema

    async def open(self) -> None:
        await self._db.open()
        try:
            async with self._db.transaction() as connection:
                await migrations.check(connection, self._schema)
                await self._learn_tenancy(connection)
        except BaseException:
            await self._db.close()
            raise

    async def close(self) -> None:
        await self._db.close()

    async def migrate(self) -> list[str]:
        try:
            connection = await connect(self.direct_dsn, pooled=True)
            try:
                return await migrations.migrate(connection, self._schema)
            finally:
                await connection.close()
        except DRIVER_ERRORS as error:
            raise translate(error, self.url) from error

    def migration_sql(self) -> str:
        return migrations.script(self._schema)

    # --- intake

    async def insert(
        self, jobs: Sequence[NewJob], *, hint: bool = False, now: datetime | None = None
    ) -> list[Inserted]:
        if not jobs:
            return []
        word = encode.hint(jobs) if hint else None
        if len(jobs) <= CHUNK and all(job.plain for job in jobs):
            # One call is one transaction: no begin and commit to wait for.
            rows = await self._db.fetch(self._sql["insert_plain"], *encode.columns(jobs), now, word)
            return _made(jobs, rows)
        try:
            return await self._insert_all(jobs, word, now)
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, asyncpg.DeadlockDetectedError):
                raise
            return await self._insert_all(jobs, word, now)  # the other one has its way now

    async def _insert_all(self, jobs: Sequence[NewJob], word: str | None, now: datetime | None) -> list[Inserted]:
        results: list[Inserted] = []
        async with self._db.transaction() as connection:
            for start in range(0, len(jobs), CHUNK):
                results += await self._insert_chunk(connection, jobs[start : start + CHUNK], now)
            if word is not None:
                await connection.execute(self._sql["notify"], self._schema, word)
        return results

    async def _insert_chunk(self, connection: Any, jobs: Sequence[NewJob], now: datetime | None) -> list[Inserted]:
        if all(job.plain for job in jobs):
            return _made(jobs, await connection.fetch(self._sql["insert_plain"], *encode.columns(jobs), now, None))
        try:
            # A key held by somebody's long transaction is not worth waiting for without end.
            await connection.execute("set local lock_timeout = '5s'")
            args = [encode.as_json(jobs), now]
            if self._db.first is None:
                return encode.inserted(await connection.fetch(self._sql["insert_jobs"], *args))
            return encode.inserted(await connection.fetch(self._sql["insert_jobs_for"], *args, self._tenant))
        except asyncpg.ForeignKeyViolationError as error:
            raise _unknown_dependency(error) from error

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        return encode.inserted(await within.fetch(connection, *self._inserting(jobs)))

    def insert_within_sync(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        return encode.inserted(within.fetch_sync(connection, *self._inserting(jobs)))

    def _inserting(self, jobs: Sequence[NewJob]) -> tuple[str, list[Any]]:
        statement, args = self._on_users("insert_within", [encode.as_json(jobs)])
        return statement.replace("{notify}", self._notify_within), args

    # --- work

    async def peek(self, kinds: Sequence[str], *, now: datetime | None = None) -> list[Line]:
        rows = await self._db.fetch(self._sql["peek"], kinds)
        return [Line(*row) for row in rows]

    async def claim(self, ask: Ask, *, now: datetime | None = None) -> list[Claim]:
        lines = ask.lines
        rows = await self._db.fetch(
            self._sql["claim"],
            ask.worker_id,
            ask.lane,
            [line.queue for line in lines],
            [line.priority for line in lines],
            [line.seq for line in lines],
            ask.kinds,
            ask.limit,
            ask.suspects,
            ask.lease,
            ask.tenants or None,
            now,
            repeat=False,  # a lane that hears of the failure gives back what the lost reply had claimed
        )
        claims = [Claim(*row) for row in rows]
        claims.sort(key=attrgetter("seq"))
        if len(lines) > 1:
            order = {(line.queue, line.priority): n for n, line in enumerate(lines)}
            claims.sort(key=lambda c: order[c.queue, c.priority])  # a stable sort keeps each line's own order
        return claims

    async def complete(
        self, done: Sequence[Completion], *, skip_locked: bool = False, now: datetime | None = None
    ) -> list[Refusal]:
        columns = [d.job_id for d in done], [d.claim_id for d in done], [d.result for d in done]
        webhooks = [d.webhook for d in done]
        own = webhooks if True in webhooks else None
        rows = await self._db.fetch(self._sql["complete"], *columns, own, skip_locked, now)
        if not rows:
            return []
        words = {(r[0], r[1]): "done" for r in rows if not r[2]}
        return _kept(rows) + (await self._refuse(words, now) if words else [])

    async def settle(
        self,
        changes: Sequence[Change],
        *,
        lapsed_only: bool = False,
        skip_locked: bool = False,
        now: datetime | None = None,
    ) -> list[Refusal]:
        if not changes:
            return []
        columns = zip(*(_change_row(c) for c in changes), strict=True)
        rows = await self._db.fetch(self._sql["settle"], *map(list, columns), lapsed_only, skip_locked, now)
        kept = _kept(rows)
        lost = {(r[0], r[1]) for r in rows if not r[2]}
        if lapsed_only:
            # A rescue that came second is nobody's late outcome.
            return kept + [Refusal(*pair, Verdict.LOST) for pair in lost]
        words = {(c.job_id, c.claim_id): c.outcome for c in changes if (c.job_id, c.claim_id) in lost}
        return kept + (await self._refuse(words, now) if words else [])

    async def _refuse(self, words: dict[tuple[UUID, int], str], now: datetime | None) -> list[Refusal]:
        jobs, claims = [k[0] for k in words], [k[1] for k in words]
        rows = await self._db.fetch(self._sql["refuse"], jobs, claims, list(words.values()), now)
        return [Refusal(r[0], r[1], Verdict(r[2])) for r in rows]

    def keeper(self) -> PostgresKeeper:
        return PostgresKeeper(self._db.dsn, self._sql, pooled=self._db.pooled, first=self._db.first)

    @asynccontextmanager
    async def transaction(
        self, token: Token, result: Callable[[], str | None], errors: Callable[[], Errors] = tuple
    ) -> AsyncIterator[PostgresTransaction]:
        async with self._db.lend() as connection:
            yield PostgresTransaction(connection)
            text, failed = result(), errors()
            try:
                await self.complete_within(connection, token, text, failed)
            except DRIVER_ERRORS as error:
                raise translate(error, self.url) from error

    async def complete_within(self, connection: Any, token: Token, result: str | None, errors: Errors = ()) -> None:
        statement, args = self._on_users("complete_one", _completing(token, result, errors))
        _check_held(token, await within.fetch(connection, statement, args))

    def complete_within_sync(self, connection: Any, token: Token, result: str | None, errors: Errors = ()) -> None:
        statement, args = self._on_users("complete_one", _completing(token, result, errors))
        _check_held(token, within.fetch_sync(connection, statement, args))

    # --- duties

    async def survey(self, worker_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> Survey:
        return Survey(*(await self._db.fetch(self._sql["survey"], worker_id, ttl, self._run_floor, now))[0])

    async def resign(self, worker_id: UUID) -> None:
        await self._db.fetch(self._sql["resign"], worker_id)

    async def promote(self, limit: int, *, now: datetime | None = None) -> Promotion:
        rows = await self._db.fetch(self._sql["promote"], limit, self._run_floor, now)
        lines, last = rows[:-1], rows[-1]
        moved = sum(r[2] for r in lines)
        # A full batch means a busy table: do not scan its dead entries again. Anything less: look from the start.
        self._run_floor = max(r[3] for r in lines) - LATE_COMMIT if moved >= limit else LONG_AGO
        return Promotion(moved, frozenset((r[0], r[1]) for r in lines), last[3])

    async def lapsed(self, limit: int, *, now: datetime | None = None) -> list[Lapsed]:
        return await self._lapsed(limit, None, now)

    async def held_by(self, worker_id: UUID) -> list[Lapsed]:
        return await self._lapsed(1_000_000, worker_id, None)

    async def _lapsed(self, limit: int, worker_id: UUID | None, now: datetime | None) -> list[Lapsed]:
        rows = await self._db.fetch(self._sql["lapsed"], limit, worker_id, now)
        return [Lapsed(*row) for row in rows]

    async def held(self, job_id: UUID) -> Lapsed | None:
        rows = await self._db.fetch(self._sql["held"], job_id)
        return Lapsed(*rows[0]) if rows else None

    async def orphans(self) -> list[Lapsed]:
        # A worker that is silent may live on another machine: nobody here can know, so its leases decide.
        return []

    async def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        for s in sorted(schedules, key=lambda s: s.name):
            job = msgspec.json.encode(s.job).decode()
            args = (s.name, s.kind, s.expression, s.timezone, s.catch_up, job, s.next_at)
            await self._db.fetch(self._sql["put_schedule"], *args)

    async def put_rules(self, rules: Mapping[str, PayloadRule | None]) -> None:
        given = [rule for rule in rules.values() if rule is not None]
        without = [kind for kind, rule in rules.items() if rule is None]
        await self._db.fetch(self._sql["put_rules"], msgspec.json.encode(given).decode(), without)

    async def fire(self, fired: Fired, *, now: datetime | None = None) -> bool:
        last = fired.jobs[-1].id if fired.jobs else None
        args = (fired.name, fired.expected, fired.next_at, fired.at, last, encode.as_json(fired.jobs), now)
        return bool(await self._db.fetch(self._sql["fire"], *args))

    async def beat(self, worker: WorkerRecord, ttl: timedelta, *, now: datetime | None = None) -> None:
        lanes, kinds = msgspec.json.encode(worker.lanes).decode(), msgspec.json.encode(worker.kinds).decode()
        args = (
            worker.id,
            worker.name,
            worker.host,
            worker.pid,
            worker.started_at,
            ttl,
            lanes,
            kinds,
            worker.locks,
            now,
        )
        await self._db.fetch(self._sql["beat"], *args)

    async def leave(self, worker_id: UUID) -> None:
        await self._db.fetch(self._sql["leave"], worker_id)
        await self.resign(worker_id)

    # --- acts; not repeated where the second answer would be another than the first

    async def cancel(self, job_id: UUID, reason: str, *, now: datetime | None = None) -> CancelResult | None:
        rows = await self._db.fetch(self._sql["cancel"], job_id, reason, now, repeat=False)
        return CancelResult(State(rows[0][0]), rows[0][1], rows[0][2]) if rows else None

    async def bury(self, job_id: UUID, error: Mapping[str, Any], *, now: datetime | None = None) -> bool:
        rows = await self._db.fetch(self._sql["bury"], job_id, msgspec.json.encode(error).decode(), now)
        return bool(rows[0][0])

    async def expedite(self, job_id: UUID, *, now: datetime | None = None) -> State | None:
        rows = await self._db.fetch(self._sql["expedite"], job_id, now)
        return State(rows[0][0]) if rows[0][0] else None

    async def pause(self, pause: Pause, *, now: datetime | None = None) -> bool:
        args = (pause.scope.value, pause.name, now, pause.by, pause.reason)
        return bool(await self._db.fetch(self._sql["pause"], *args, repeat=False))

    async def resume(self, scope: PauseScope, name: str) -> bool:
        return bool(await self._db.fetch(self._sql["resume"], scope.value, name, repeat=False))

    async def enable_schedule(self, name: str, enabled: bool) -> bool:
        return bool(await self._db.fetch(self._sql["enable_schedule"], name, enabled))

    async def remove_schedule(self, name: str) -> bool:
        return bool(await self._db.fetch(self._sql["remove_schedule"], name, repeat=False))

    async def connect_direct(self) -> Any:
        """A connection that can LISTEN, past a pooler if there is one."""
        return await connect(self.direct_dsn, pooled=True)

    async def notify(self, channel: str, payload: str) -> None:
        await self._db.fetch(self._sql["notify"], channel, payload)


def _made(jobs: Sequence[NewJob], rows: Sequence[Any]) -> list[Inserted]:
    """`rows` are the ids that were there already."""
    if not rows and len({job.id.int for job in jobs}) == len(jobs):
        return [Inserted(job.id, Insertion.MADE) for job in jobs]
    known = {row[0] for row in rows}
    results = []
    for job in jobs:
        results.append(Inserted(job.id, Insertion.EXISTING if job.id in known else Insertion.MADE))
        known.add(job.id)  # one id twice in a batch is one job
    return results


def _kept(rows: Sequence[Any]) -> list[Refusal]:
    """Those that stay ours, though they were not settled."""
    return [Refusal(r[0], r[1], Verdict(r[2])) for r in rows if r[2]]


def _change_row(change: Change) -> tuple[Any, ...]:
    errors = msgspec.json.encode(change.errors).decode() if change.errors else None
    return (
        change.job_id,
        change.claim_id,
        change.to.value,
        change.outcome,
        change.attempt,
        change.crashes,
        change.delay,
        change.result,
        errors,
        change.keep_seq,
        change.phase_to and change.phase_to.value,
    )


def _completing(token: Token, result: str | None, errors: Errors) -> list[Any]:
    return [token.job_id, token.claim_id, result, msgspec.json.encode(errors).decode() if errors else None]


def _check_held(token: Token, refused: list[tuple[Any, ...]]) -> None:
    if refused:
        raise ClaimLost(
            f"job {ids.public(token.job_id)} is no longer ours: its lease ended before its completion; "
            "nothing of this transaction is kept, and another worker runs the job again"
        )


def _unknown_dependency(error: Any) -> UsageError | DataRefused:
    try:
        missing = ids.public(UUID(error.detail))
    except (TypeError, ValueError):
        return DataRefused(str(error))
    return UsageError(f"depends_on: there is no job {missing}; it never was, or retention has removed it")
