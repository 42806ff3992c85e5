"""What events are read from, in Postgres."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.event import JobView
from dutiful.core.readable import read_as
from dutiful.stores.postgres.part import PostgresPart
from dutiful.watching import Stir, Stirred, Tombstone

# Ids are made by clients, whose clocks differ from the database's.
CLOCKS = timedelta(seconds=2)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)
_view = msgspec.json.Decoder(JobView)
_tombstone = msgspec.json.Decoder(Tombstone)


class PostgresWatching(PostgresPart):
    async def listen(self, listener_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> None:
        await self._db.fetch(self._sql["listen"], listener_id, ttl, now)

    async def unlisten(self, listener_id: UUID) -> None:
        await self._db.fetch(self._sql["unlisten"], listener_id)

    async def listened(self, *, now: datetime | None = None) -> bool:
        return bool((await self._db.fetch(self._sql["listened"], now))[0][0])

    async def views(self, job_ids: Sequence[UUID]) -> list[JobView]:
        if not job_ids:
            return []
        return [read_as(_view, row[0]) for row in await self._db.fetch(self._sql["views"], job_ids)]

    async def stirred(self, since: datetime | None, limit: int) -> Stirred:
        floor = None if since is None else ids.floor_at(max(since - CLOCKS, _EPOCH))
        settled, *rows = await self._db.fetch(self._sql["stirred"], since, floor, limit + 1)
        until: datetime = settled["at"]
        if since is None:
            return Stirred([], [], until)
        until = max(until, since)
        if more := len(rows) > limit:
            # Cut between two moments, never within one: the next look could not begin in the middle of it.
            last: datetime = rows[limit - 1]["at"]
            rows, until = [row for row in rows if row["at"] <= last], last if last > since else since + _TICK
        return Stirred(
            [Stir(row["job_id"], row["mark"]) for row in rows if row["tombstone"] is None],
            [read_as(_tombstone, row["tombstone"]) for row in rows if row["tombstone"] is not None],
            until,
            more,
        )

    async def tombstones(self, job_ids: Sequence[UUID]) -> list[Tombstone]:
        return [read_as(_tombstone, row[0]) for row in await self._db.fetch(self._sql["tombstones"], job_ids)]
