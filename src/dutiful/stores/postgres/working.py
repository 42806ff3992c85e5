"""What workers do with jobs in Postgres: claim, settle, renew, and complete in a transaction of the user's own."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.errors import ClaimLost
from dutiful.core.job import Claim, Token
from dutiful.core.settle import Change
from dutiful.stores.postgres import within
from dutiful.stores.postgres.connection import DRIVER_ERRORS, translate
from dutiful.stores.postgres.keeper import PostgresKeeper
from dutiful.stores.postgres.tenancy import PostgresTenancy
from dutiful.working import Ask, Completion, Errors, Line, Refusal, Verdict


class PostgresTransaction:
    """The handler's writes, on a connection of their own."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, statement: str, *args: Any) -> None:
        await self._connection.execute(statement, *args)

    @property
    def connection(self) -> Any:
        return self._connection


class PostgresWorking(PostgresTenancy):
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
                raise translate(error, self._db.url) from error

    async def complete_within(self, connection: Any, token: Token, result: str | None, errors: Errors = ()) -> None:
        statement, args = self._on_users("complete_one", _completing(token, result, errors))
        _check_held(token, await within.fetch(connection, statement, args))

    def complete_within_sync(self, connection: Any, token: Token, result: str | None, errors: Errors = ()) -> None:
        statement, args = self._on_users("complete_one", _completing(token, result, errors))
        _check_held(token, within.fetch_sync(connection, statement, args))


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
