"""How jobs come into Postgres: in one call, in chunks, or in a transaction of the user's own."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from dutiful.core import ids
from dutiful.core.errors import DataRefused, StoreUnavailable, UsageError
from dutiful.core.job import Inserted, Insertion, NewJob
from dutiful.stores.postgres import encode, within
from dutiful.stores.postgres.tenancy import PostgresTenancy

CHUNK = 5_000


class PostgresIntake(PostgresTenancy):
    _notify_within: str

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


def _unknown_dependency(error: Any) -> UsageError | DataRefused:
    try:
        missing = ids.public(UUID(error.detail))
    except (TypeError, ValueError):
        return DataRefused(str(error))
    return UsageError(f"depends_on: there is no job {missing}; it never was, or retention has removed it")
