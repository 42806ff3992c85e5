"""Enqueues in Postgres: in one call, in chunks, or in the user's own transaction."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from dutiful.core.errors import DataRefused, StoreUnavailable, UsageError
from dutiful.core.job import Inserted, Insertion, NewJob
from dutiful.payload.sql_rules import KindDefault, PayloadRule
from dutiful.store.jobs import Levels, hinted_levels, unknown_dependency
from dutiful.stores.postgres.engine import columns, within
from dutiful.stores.postgres.engine.columns import job_arrays, job_values
from dutiful.stores.postgres.engine.subject import Session, Subject, text

CHUNK = 5_000
# Payloads of hints: for any queue level, and for none, because the caller sends such a hint by itself. With any other,
# or without one, the database sends one if a run_at is near by its own clock: that of the client may be behind.
UNNAMED, BY_CALLER = "[]", ""


class PostgresJobs(Subject):
    def __init__(self, session: Session, *, notify_within: bool) -> None:
        super().__init__(session)
        self._notify_within = str(notify_within).lower()

    async def insert(
        self, jobs: Sequence[NewJob], *, hint: Levels | None = None, now: datetime | None = None
    ) -> list[Inserted]:
        if not jobs:
            return []
        payload = _payload(jobs, hint)
        if len(jobs) == 1 and jobs[0].plain:
            row = (await self._db.fetch(self._sql["insert_one"], now, payload, *job_values(jobs[0])))[0]
            return [Inserted(jobs[0].id, Insertion.MADE if row[0] else Insertion.EXISTING)]
        if len(jobs) <= CHUNK and all(job.plain for job in jobs):
            # One call is one transaction: no begin and commit to wait for.
            rows = await self._db.fetch(self._sql["insert_plain"], now, payload, *job_arrays(jobs))
            return _made(jobs, rows)
        try:
            return await self._insert_all(jobs, payload, now)
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, asyncpg.DeadlockDetectedError):
                raise
            return await self._insert_all(jobs, payload, now)

    async def _insert_all(self, jobs: Sequence[NewJob], payload: str | None, now: datetime | None) -> list[Inserted]:
        results: list[Inserted] = []
        async with self._db.transaction() as connection:
            for start in range(0, len(jobs), CHUNK):
                results += await self._insert_chunk(connection, jobs[start : start + CHUNK], now)
            if payload:
                await connection.execute(self._sql["notify"], self._schema, payload)
            if payload not in (UNNAMED, BY_CALLER) and (
                times := [job.run_at for job in jobs if job.run_at is not None]
            ):
                await connection.execute(self._sql["notify_if_near"], self._schema, times)
        return results

    async def _insert_chunk(self, connection: Any, jobs: Sequence[NewJob], now: datetime | None) -> list[Inserted]:
        if all(job.plain for job in jobs):
            return _made(jobs, await connection.fetch(self._sql["insert_plain"], now, BY_CALLER, *job_arrays(jobs)))
        try:
            # A unique key may be locked by a long transaction, so the wait for it is bounded.
            await connection.execute("set local lock_timeout = '5s'")
            args = [columns.as_json(jobs), now]
            if self._db.first is None:
                return columns.inserted(await connection.fetch(self._sql["insert_jobs"], *args))
            return columns.inserted(await connection.fetch(self._sql["insert_jobs_for"], *args, self._session.tenant))
        except asyncpg.ForeignKeyViolationError as error:
            raise _unknown_dependency(error) from error

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        return columns.inserted(await within.fetch(connection, *self._inserting(jobs)))

    def insert_within_sync(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        return columns.inserted(within.fetch_sync(connection, *self._inserting(jobs)))

    def _inserting(self, jobs: Sequence[NewJob]) -> tuple[str, list[Any]]:
        statement, args = self._session.on_users("insert_within", [columns.as_json(jobs)])
        return statement.replace("{notify}", self._notify_within), args

    async def put_payload_rules(self, rules: Mapping[str, PayloadRule | None]) -> None:
        given = [rule for rule in rules.values() if rule is not None]
        without = [kind for kind, rule in rules.items() if rule is None]
        await self._db.fetch(self._sql["put_rules"], text(given), without)

    async def put_defaults(self, defaults: Sequence[KindDefault]) -> None:
        if defaults:
            await self._db.fetch(self._sql["put_defaults"], text(defaults))


def _payload(jobs: Sequence[NewJob], hint: Levels | None) -> str | None:
    if hint is not None:
        return columns.hint(hint)
    return BY_CALLER if hinted_levels(jobs) == frozenset() else None


def _made(jobs: Sequence[NewJob], rows: Sequence[Any]) -> list[Inserted]:
    """The result of an insert; `rows` are the ids that existed already."""
    if not rows and len({job.id.int for job in jobs}) == len(jobs):
        return [Inserted(job.id, Insertion.MADE) for job in jobs]
    known = {row[0] for row in rows}
    results = []
    for job in jobs:
        results.append(Inserted(job.id, Insertion.EXISTING if job.id in known else Insertion.MADE))
        known.add(job.id)  # the same id twice in a batch is one job
    return results


def _unknown_dependency(error: Any) -> UsageError | DataRefused:
    try:
        return unknown_dependency(UUID(error.detail))
    except (TypeError, ValueError):
        return DataRefused(str(error))
