"""Events in Postgres: which jobs have changed, and their snapshots."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.events import JobView, LeftOut
from dutiful.core.json import read_as
from dutiful.store.events import JobChange, JobChanges, Tombstone
from dutiful.stores.postgres.engine.subject import Subject

# Ids are made by clients, whose clocks differ from the database's.
CLOCKS = timedelta(seconds=2)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)
_tombstone = msgspec.json.Decoder(Tombstone)


class _Found(msgspec.Struct):
    view: JobView
    large: bool
    large_phases: list[str]


_view, _found = msgspec.json.Decoder(JobView), msgspec.json.Decoder(_Found)


class PostgresEvents(Subject):
    async def listen(self, listener_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> None:
        await self._call("listen", listener_id, ttl, now)

    async def unlisten(self, listener_id: UUID) -> None:
        await self._call("unlisten", listener_id)

    async def has_listeners(self, *, now: datetime | None = None) -> bool:
        return bool((await self._db.fetch(self._sql["has_listeners"], now))[0][0])

    async def marks(self, job_ids: Sequence[UUID]) -> list[JobChange]:
        return [JobChange(*row) for row in await self._rows("job_marks", "job_id, mark", job_ids)]

    async def views(self, job_ids: Sequence[UUID], *, largest: int | None = None) -> list[JobView]:
        if not job_ids:
            return []
        if largest is None:
            return [read_as(_view, row[0]) for row in await self._rows("job_snapshots", "job_snapshots", job_ids)]
        rows = await self._rows("job_views", "job_views", job_ids, largest)
        found = [read_as(_found, row[0]) for row in rows]
        return [one.view.without(one.large, one.large_phases) for one in found]

    async def result(self, job_id: UUID, left_out: LeftOut) -> str | None:
        rows = await self._rows("job_result", "job_result", job_id, left_out.phase, left_out.ended_at)
        return rows[0][0] if rows else None

    async def changes_since(self, since: datetime | None, limit: int, *, tenant: str | None = None) -> JobChanges:
        floor = None if since is None else ids.floor_at(max(since - CLOCKS, _EPOCH))
        settled, *rows = await self._db.fetch(self._sql["changes_since"], since, floor, limit + 1, tenant)
        until: datetime = settled["at"]
        if since is None:
            return JobChanges([], [], until)
        until, more = max(until, since), settled["mark"] is not None
        if len(rows) and rows[-1]["number"] > limit:
            # Cut between two moments, never within one, because the next call cannot begin in the middle of it.
            last: datetime = next(row["at"] for row in rows if row["number"] == limit)
            until, more = last if last > since else since + _TICK, True
            rows = [row for row in rows if row["at"] <= last]
        rows = [row for row in rows if row["wanted"]]
        return JobChanges(
            [JobChange(row["job_id"], row["mark"]) for row in rows if row["tombstone"] is None],
            [read_as(_tombstone, row["tombstone"]) for row in rows if row["tombstone"] is not None],
            until,
            more,
        )

    async def tombstones(self, job_ids: Sequence[UUID]) -> list[Tombstone]:
        return [read_as(_tombstone, row[0]) for row in await self._rows("tombstones", "tombstones", job_ids)]
