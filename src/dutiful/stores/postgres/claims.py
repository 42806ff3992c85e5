"""Claims in Postgres: claim, renew, settle, and complete in the user's own transaction."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

from dutiful.core.job import Claim, ClaimToken, HeldClaim
from dutiful.core.settle import Change
from dutiful.store.claims import (
    NEAR_JOBS,
    ClaimRequest,
    Completion,
    Errors,
    JobClaimRequest,
    QueueLevel,
    Refusal,
    RefusalReason,
    Renewal,
    completion_lost,
)
from dutiful.stores.database_url import redacted_url
from dutiful.stores.postgres.engine import within
from dutiful.stores.postgres.engine.columns import change_arrays
from dutiful.stores.postgres.engine.connection import DRIVER_ERRORS, connect, fetch_after, translate
from dutiful.stores.postgres.engine.subject import Subject, arrays, selecting, text

_ANSWER = "job_id, claim_id, reason"
_RENEWAL = "job_id, claim_id, cancel"
LONGEST_PATIENCE = 5.0  # seconds


class PostgresTransaction:
    """The handler's writes, on a separate connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, statement: str, *args: Any) -> None:
        await self._connection.execute(statement, *args)

    @property
    def connection(self) -> Any:
        return self._connection


class PostgresLeaseRenewer:
    """Bounds each call by the lease that it renewed last, because one that hangs must not outlive it."""

    def __init__(self, dsn: str, schema: str, *, pooled: bool, first: str | None = None) -> None:
        self._dsn = dsn
        self._schema = schema
        self._first = first
        self._pooled = pooled
        self._runner: asyncio.Runner | None = None
        self._connection: Any = None
        self._patience = LONGEST_PATIENCE

    def renew(self, tokens: Sequence[ClaimToken], lease: timedelta, *, now: datetime | None = None) -> Renewal:
        # A quarter to connect and one to ask: then the next turn still comes in time, also after an outage.
        self._patience = min(lease.total_seconds() / 4, LONGEST_PATIENCE)
        return _renewal(tokens, self._fetch("renew", _RENEWAL, tokens, lease, now)) if tokens else Renewal()

    def check(self, tokens: Sequence[ClaimToken]) -> Renewal:
        return _renewal(tokens, self._fetch("check_claims", _RENEWAL, tokens)) if tokens else Renewal()

    def release(self, tokens: Sequence[ClaimToken]) -> None:
        if tokens:
            self._fetch("release", "release", tokens)

    def close(self) -> None:
        if self._runner is not None:
            if self._connection is not None:
                self._connection.terminate()
            self._runner.close()
            self._runner = self._connection = None

    def _fetch(self, function: str, columns: str, tokens: Sequence[ClaimToken], *args: Any) -> list[Any]:
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            statement = selecting(self._schema, function, columns, 2 + len(args))
            return self._runner.run(self._run(statement, *arrays(tokens, "job_id", "claim_id"), *args))
        except DRIVER_ERRORS as error:
            raise translate(error, redacted_url(self._dsn)) from error

    async def _run(self, statement: str, *args: Any) -> list[Any]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._dsn, pooled=self._pooled, timeout=self._patience)
        try:
            if self._first is None:
                return list(await self._connection.fetch(statement, *args, timeout=self._patience))
            return await fetch_after(self._connection, self._first, statement, args, timeout=self._patience)
        except TimeoutError:
            self._connection.terminate()  # the driver would wait for it to be cancelled; a new one answers at once
            raise


class PostgresClaims(Subject):
    async def peek(self, kinds: Sequence[str], *, now: datetime | None = None) -> list[QueueLevel]:
        return [QueueLevel(*row) for row in await self._rows("peek", "queue, priority, seq", kinds)]

    async def peek_at(
        self, kinds: Sequence[str], levels: Sequence[QueueLevel], *, now: datetime | None = None
    ) -> list[QueueLevel]:
        where = arrays(levels, "queue", "priority", "seq")
        rows = await self._rows("peek_at", "queue, priority, seq", kinds, *where, NEAR_JOBS) if levels else []
        return [QueueLevel(*row) for row in rows]

    async def claim(self, ask: ClaimRequest, *, now: datetime | None = None) -> list[Claim]:
        levels = ask.levels
        rows = await self._rows(
            "claim", "{claim_columns}",
            ask.worker_id, ask.lane, *arrays(levels, "queue", "priority", "seq"), ask.kinds, ask.limit, ask.suspects,
            ask.lease, ask.tenants or None, now, [level.after for level in levels],
            repeat=False,  # on failure the lane releases what the call may have claimed
        )  # fmt: skip
        claims = [Claim(*row) for row in rows]
        claims.sort(key=attrgetter("seq", "job_id"))
        if len(levels) > 1:
            order = {(level.queue, level.priority): n for n, level in enumerate(levels)}
            claims.sort(key=lambda c: order[c.queue, c.priority])  # a stable sort keeps each level's own order
        return claims

    async def claim_jobs(self, ask: JobClaimRequest, *, now: datetime | None = None) -> list[Claim]:
        rows = await self._rows(
            "claim_jobs", "{claim_columns}",
            ask.worker_id, ask.lane, ask.job_ids, ask.kinds, ask.suspects, ask.lease, ask.tenants or None,
            ask.queues or None, now,
            repeat=False,
        )  # fmt: skip
        order = {job_id: n for n, job_id in enumerate(ask.job_ids)}
        return sorted((Claim(*row) for row in rows), key=lambda claim: order[claim.job_id])

    async def complete(
        self, done: Sequence[Completion], *, skip_locked: bool = False, now: datetime | None = None
    ) -> list[Refusal]:
        *tokens, results, webhooks = arrays(done, "job_id", "claim_id", "result", "webhook")
        given = None if results.count(None) == len(results) else results  # an array costs the driver time for each item
        own = webhooks if True in webhooks else None
        rows = await self._rows("complete", _ANSWER, *tokens, given, own, skip_locked, now)
        if not rows:
            return []
        outcomes = {(r[0], r[1]): "done" for r in rows if not r[2]}
        return _still_held(rows) + (await self._refuse(outcomes, now) if outcomes else [])

    async def settle(
        self, changes: Sequence[Change], *, expired_only: bool = False, skip_locked: bool = False,
        now: datetime | None = None,
    ) -> list[Refusal]:  # fmt: skip
        if not changes:
            return []
        rows = await self._rows("settle", _ANSWER, expired_only, skip_locked, now, *change_arrays(changes))
        kept = _still_held(rows)
        lost = {(r[0], r[1]) for r in rows if not r[2]}
        if expired_only:
            # A rescue that came too late is not an outcome of the claim.
            return kept + [Refusal(*pair, RefusalReason.LOST) for pair in lost]
        outcomes = {(c.job_id, c.claim_id): c.outcome for c in changes if (c.job_id, c.claim_id) in lost}
        return kept + (await self._refuse(outcomes, now) if outcomes else [])

    async def _refuse(self, outcomes: dict[tuple[UUID, int], str], now: datetime | None) -> list[Refusal]:
        refused = [k[0] for k in outcomes], [k[1] for k in outcomes], list(outcomes.values())
        rows = await self._rows("record_refusals", _ANSWER, *refused, now)
        return [Refusal(r[0], r[1], RefusalReason(r[2])) for r in rows]

    def renewer(self) -> PostgresLeaseRenewer:
        return PostgresLeaseRenewer(self._db.dsn, self._schema, pooled=self._db.pooled, first=self._db.first)

    @asynccontextmanager
    async def transaction(
        self, token: ClaimToken, result: Callable[[], str | None], errors: Callable[[], Errors] = tuple
    ) -> AsyncIterator[PostgresTransaction]:
        async with self._db.lend() as connection:
            yield PostgresTransaction(connection)
            text, failed = result(), errors()
            try:
                await self.complete_within(connection, token, text, failed)
            except DRIVER_ERRORS as error:
                raise translate(error, self._db.url) from error

    async def complete_within(
        self, connection: Any, token: ClaimToken, result: str | None, errors: Errors = ()
    ) -> None:
        statement, args = self._session.on_users("complete_one", _completing(token, result, errors))
        _check_held(token, await within.fetch(connection, statement, args))

    def complete_within_sync(self, connection: Any, token: ClaimToken, result: str | None, errors: Errors = ()) -> None:
        statement, args = self._session.on_users("complete_one", _completing(token, result, errors))
        _check_held(token, within.fetch_sync(connection, statement, args))

    async def expired(self, limit: int, *, now: datetime | None = None) -> list[HeldClaim]:
        return [HeldClaim(*row) for row in await self._rows("expired_claims", "{held_columns}", limit, now)]

    async def held_by(self, worker_id: UUID) -> list[HeldClaim]:
        return [HeldClaim(*row) for row in await self._rows("claims_of_worker", "{held_columns}", worker_id)]

    async def held(self, job_id: UUID) -> HeldClaim | None:
        rows = await self._rows("held_claims", "{held_columns}", [job_id])
        return HeldClaim(*rows[0]) if rows else None

    async def orphans(self) -> list[HeldClaim]:
        # A worker without a heartbeat may still run on another machine, so only the end of its leases counts.
        return []


def _still_held(rows: Sequence[Any]) -> list[Refusal]:
    """Refusals of claims that are still held."""
    return [Refusal(r[0], r[1], RefusalReason(r[2])) for r in rows if r[2]]


def _completing(token: ClaimToken, result: str | None, errors: Errors) -> list[Any]:
    return [token.job_id, token.claim_id, result, text(errors) if errors else None]


def _check_held(token: ClaimToken, refused: list[tuple[Any, ...]]) -> None:
    if refused:
        raise completion_lost(token)


def _renewal(tokens: Sequence[ClaimToken], rows: list[Any]) -> Renewal:
    held = {row["claim_id"] for row in rows}
    return Renewal(
        lost=frozenset(t.claim_id for t in tokens) - held,
        cancel=frozenset(row["job_id"] for row in rows if row["cancel"]),
    )
