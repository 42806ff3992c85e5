"""How finished jobs go from Postgres: marked stale, deleted, told of."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dutiful.core import ids
from dutiful.duties import Parted, Retained, Tidings
from dutiful.stores.postgres.part import PostgresPart, snapshot

NIL = UUID(int=0)


class PostgresParting(PostgresPart):
    async def retain(
        self,
        older_than: timedelta,
        limit: int,
        cursor: UUID | None,
        *,
        stale_only: bool = False,
        now: datetime | None = None,
    ) -> Retained:
        walk = await self._walk(older_than, limit, cursor, now)
        return Retained(*(await self._db.fetch(self._sql["retain"], *walk, stale_only, now))[0])

    async def tidy(self, older_than: timedelta, limit: int, *, now: datetime | None = None) -> bool:
        now = now or await self._clock()
        more: bool = (await self._db.fetch(self._sql["tidy"], now - older_than, limit, now))[0][0]
        forgotten = (await self._db.fetch(self._sql["forget_breakers"], now - older_than, limit, now))[0][0]
        return more or forgotten >= limit

    async def mark_stale(
        self, older_than: timedelta, limit: int, cursor: UUID | None, *, told: bool, now: datetime | None = None
    ) -> Parted:
        walk = await self._walk(older_than, limit, cursor, now)
        return _parted(await self._db.fetch(self._sql["mark_stale"], *walk, told, now))

    async def remove(
        self,
        older_than: timedelta,
        limit: int,
        cursor: UUID | None,
        *,
        stale_only: bool,
        told: bool,
        now: datetime | None = None,
    ) -> Parted:
        walk = await self._walk(older_than, limit, cursor, now)
        return _parted(await self._db.fetch(self._sql["remove"], *walk, stale_only, told, now))

    async def untold(self, limit: int) -> list[Tidings]:
        return [Tidings(snapshot(row[0]), row[1]) for row in await self._db.fetch(self._sql["untold"], limit)]

    async def tell(self, stale: Sequence[UUID], deleted: Sequence[UUID], *, now: datetime | None = None) -> None:
        await self._db.fetch(self._sql["tell"], stale, deleted, now)

    async def _walk(
        self, older_than: timedelta, limit: int, cursor: UUID | None, now: datetime | None
    ) -> tuple[Any, ...]:
        """Ids are in order of time, so none above the cutoff's has to be looked at."""
        cutoff = (now or await self._clock()) - older_than
        return cursor or NIL, ids.floor_at(cutoff), cutoff, limit


def _parted(rows: list[Any]) -> Parted:
    *jobs, last = rows
    return Parted([snapshot(row[0]) for row in jobs], last[1])
