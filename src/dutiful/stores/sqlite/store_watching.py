"""The store's face to those who watch jobs."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from dutiful.core.event import JobView
from dutiful.stores.sqlite import watching
from dutiful.stores.sqlite.threads import Threaded
from dutiful.watching import Stirred, Tombstone


class SqliteWatching(Threaded):
    async def listen(self, listener_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> None:
        await self._write(lambda db: watching.listen(db, listener_id, ttl, self._clock(now)))

    async def unlisten(self, listener_id: UUID) -> None:
        await self._write(lambda db: watching.unlisten(db, listener_id))

    async def listened(self, *, now: datetime | None = None) -> bool:
        return await self._read(lambda db: watching.listened(db, self._clock(now)))

    async def views(self, job_ids: Sequence[UUID]) -> list[JobView]:
        return await self._read(lambda db: watching.views(db, job_ids))

    async def stirred(self, since: datetime | None, limit: int) -> Stirred:
        return await self._browse(lambda db: watching.stirred(db, since, limit, self._clock(None)))

    async def tombstones(self, job_ids: Sequence[UUID]) -> list[Tombstone]:
        return await self._read(lambda db: watching.tombstones(db, job_ids))
