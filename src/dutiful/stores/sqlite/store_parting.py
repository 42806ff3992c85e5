"""The store's face to those who part with jobs that are long finished."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from dutiful.core.job import JobRecord
from dutiful.duties import Parted, Retained, Tidings
from dutiful.stores.sqlite import breaking, parting
from dutiful.stores.sqlite.codec import span
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.threads import Threaded

Part = Callable[[Connection, Sequence[JobRecord], bool, int], list[JobRecord]]

_SLICE = 200  # as many jobs are parted with in one write, so that nobody waits long for the next


class SqliteParting(Threaded):
    async def retain(
        self,
        older_than: timedelta,
        limit: int,
        cursor: UUID | None,
        *,
        stale_only: bool = False,
        now: datetime | None = None,
    ) -> Retained:
        return await self._write(lambda db: parting.retain(db, older_than, limit, cursor, stale_only, self._clock(now)))

    async def tidy(self, older_than: timedelta, limit: int, *, now: datetime | None = None) -> bool:
        def purge(db: Connection) -> bool:
            at = self._clock(now)
            cutoff = at - span(older_than)
            forgotten = breaking.forget(db, cutoff, limit, at)
            return parting.purge(db, cutoff, limit, at) or forgotten >= limit

        return await self._write(purge)

    async def mark_stale(
        self, older_than: timedelta, limit: int, cursor: UUID | None, *, told: bool, now: datetime | None = None
    ) -> Parted:
        cutoff = self._clock(now) - span(older_than)
        old, following = await self._walk(lambda db: parting.walk(db, cutoff, limit, cursor, marking=True))
        return Parted(await self._in_slices(parting.mark_stale, old, told, now), following)

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
        cutoff = self._clock(now) - span(older_than)
        await self._write(lambda db: parting.purge(db, cutoff, limit, self._clock(now)))
        old, following = await self._walk(lambda db: parting.walk(db, cutoff, limit, cursor, stale_only=stale_only))
        return Parted(await self._in_slices(parting.remove, old, told, now), following)

    async def _walk(self, walk: Callable[[Connection], parting.Walked]) -> tuple[list[JobRecord], UUID | None]:
        """The jobs to part with; only a look, so that no writer waits while they are read."""

        def look(db: Connection) -> tuple[list[JobRecord], UUID | None]:
            walked = walk(db)
            return parting.records(db, walked.found), walked.cursor

        return await self._browse(look)

    async def _in_slices(self, part: Part, jobs: list[JobRecord], told: bool, now: datetime | None) -> list[JobRecord]:
        parted: list[JobRecord] = []
        for start in range(0, len(jobs), _SLICE):
            some = jobs[start : start + _SLICE]
            parted += await self._write(partial(self._part, part, some, told, now))
        return parted

    def _part(
        self, part: Part, jobs: list[JobRecord], told: bool, now: datetime | None, db: Connection
    ) -> list[JobRecord]:
        return part(db, jobs, told, self._clock(now))

    async def untold(self, limit: int) -> list[Tidings]:
        return await self._browse(lambda db: parting.untold(db, limit))

    async def tell(self, stale: Sequence[UUID], deleted: Sequence[UUID], *, now: datetime | None = None) -> None:
        await self._write(lambda db: parting.tell(db, stale, deleted, self._clock(now)))
