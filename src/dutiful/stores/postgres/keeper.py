"""Renews leases from a thread of its own, on a connection and an event loop of its own."""

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from dutiful.core.job import Token
from dutiful.stores.postgres.connection import DRIVER_ERRORS, connect, fetch_after, translate, without_secrets
from dutiful.stores.statements import Statements
from dutiful.working import Renewal

T = TypeVar("T")


class PostgresKeeper:
    def __init__(self, dsn: str, sql: Statements, *, pooled: bool, first: str | None = None) -> None:
        self._dsn = dsn
        self._sql = sql
        self._first = first
        self._pooled = pooled
        self._runner: asyncio.Runner | None = None
        self._connection: Any = None

    def renew(self, tokens: Sequence[Token], lease: timedelta, *, now: datetime | None = None) -> Renewal:
        if not tokens:
            return Renewal()
        return _renewal(tokens, self._run(self._fetch(self._sql["renew"], *_columns(tokens), lease, now)))

    def check(self, tokens: Sequence[Token]) -> Renewal:
        if not tokens:
            return Renewal()
        return _renewal(tokens, self._run(self._fetch(self._sql["check_claims"], *_columns(tokens))))

    def release(self, tokens: Sequence[Token]) -> None:
        if tokens:
            self._run(self._fetch(self._sql["give_back"], *_columns(tokens)))

    def close(self) -> None:
        if self._runner is not None:
            if self._connection is not None:
                self._connection.terminate()
            self._runner.close()
            self._runner = self._connection = None

    async def _fetch(self, statement: str, *args: Any) -> list[Any]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._dsn, pooled=self._pooled, timeout=5)
        # Bounded, for a renewal that hangs must not outlive the lease that it is for.
        if self._first is None:
            return list(await self._connection.fetch(statement, *args, timeout=10))
        return await fetch_after(self._connection, self._first, statement, args, timeout=10)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(work)
        except DRIVER_ERRORS as error:
            raise translate(error, without_secrets(self._dsn)) from error


def _renewal(tokens: Sequence[Token], rows: list[Any]) -> Renewal:
    held = {row["claim_id"] for row in rows}
    return Renewal(
        lost=frozenset(t.claim_id for t in tokens) - held,
        cancel=frozenset(row["job_id"] for row in rows if row["cancel"]),
    )


def _columns(tokens: Sequence[Token]) -> tuple[list[Any], list[int]]:
    return [t.job_id for t in tokens], [t.claim_id for t in tokens]
