"""Retention in Postgres."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dutiful.core import ids
from dutiful.store.retention import KEEP_UNUSED, RetentionNotice, RetentionStep
from dutiful.stores.postgres.engine.subject import Subject, snapshot

NIL = UUID(int=0)
_STEP = "job, number, last_id"  # all but the last row have only a job


class PostgresRetention(Subject):
    async def delete(
        self, older_than: timedelta, limit: int, cursor: UUID | None, *, stale_only: bool = False,
        tombstones: bool = False, sent: bool = False, now: datetime | None = None,
    ) -> RetentionStep:  # fmt: skip
        walk = await self._walk(older_than, limit, cursor, now)
        return _step(await self._rows("delete_finished", _STEP, *walk, stale_only, tombstones, sent, now))

    async def delete_leftovers(self, older_than: timedelta, limit: int, *, now: datetime | None = None) -> bool:
        now = now or await self._clock()
        more = await self._call("delete_leftovers", now - older_than, limit, now)
        breakers = await self._call("delete_unused_breakers", now - max(older_than, KEEP_UNUSED), limit, now)
        return bool(more or breakers >= limit)

    async def mark_stale(
        self, older_than: timedelta, limit: int, cursor: UUID | None, *, sent: bool, now: datetime | None = None
    ) -> RetentionStep:
        walk = await self._walk(older_than, limit, cursor, now)
        return _step(await self._rows("mark_stale", _STEP, *walk, sent, now))

    async def unsent(self, limit: int) -> list[RetentionNotice]:
        rows = await self._rows("unsent_notices", "job, deleted", limit)
        return [RetentionNotice(snapshot(row[0]), row[1]) for row in rows]

    async def mark_sent(self, stale: Sequence[UUID], deleted: Sequence[UUID], *, now: datetime | None = None) -> None:
        await self._db.fetch(self._sql["mark_sent"], stale, deleted, now)

    async def _walk(
        self, older_than: timedelta, limit: int, cursor: UUID | None, now: datetime | None
    ) -> tuple[Any, ...]:
        """The arguments of a walk along ids, which are ordered by time, so that it ends at the cutoff."""
        cutoff = (now or await self._clock()) - older_than
        return cursor or NIL, ids.floor_at(cutoff), cutoff, limit


def _step(rows: list[Any]) -> RetentionStep:
    *jobs, last = rows
    return RetentionStep(last[1], [snapshot(row[0]) for row in jobs], last[2])
