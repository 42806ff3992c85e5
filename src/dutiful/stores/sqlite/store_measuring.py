"""The store's face to those who count, and to those who ask how many."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from dutiful.measuring import Counted, Depth, Signs, Tally
from dutiful.stores.sqlite import counting, measuring
from dutiful.stores.sqlite.threads import Threaded


class SqliteMeasuring(Threaded):
    async def tally(self, worker_id: UUID, turn: int, tallies: Sequence[Tally], *, now: datetime | None = None) -> None:
        if tallies:
            await self._write(lambda db: measuring.tally(db, worker_id, turn, tallies, self._clock(now)))

    async def fold_tallies(self, keep: timedelta, *, now: datetime | None = None) -> bool:
        # An idle store is looked at, and not written to.
        if not await self._read(lambda db: measuring.any_to_fold(db, keep, self._clock(now))):
            return False
        return await self._write(lambda db: measuring.fold(db, keep, self._clock(now)))

    async def tallied(self, since: timedelta, *, now: datetime | None = None) -> list[Tally]:
        return await self._browse(lambda db: measuring.tallied(db, since, self._clock(now)))

    async def counted(self, since: timedelta, *, now: datetime | None = None) -> Counted:
        return await self._browse(lambda db: measuring.counted(db, since, self._clock(now)))

    async def totals(self) -> list[Tally]:
        return (await self.counted(timedelta(0))).ever

    async def signs(self, stuck_after: timedelta, *, now: datetime | None = None) -> Signs:
        return await self._browse(lambda db: counting.signs(db, stuck_after, self._clock(now)))

    async def depths(self, *, tenant: str | None = None) -> list[Depth]:
        return await self._browse(lambda db: counting.depths(db, tenant))
