"""The store's face to running jobs that tell how far they are or want a lock, and to those who watch them."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from dutiful.core.event import JobView
from dutiful.core.job import PhaseRecord, Token
from dutiful.locking import LockMode, LockName
from dutiful.stores.sqlite import locking, tracking, watching
from dutiful.stores.sqlite.locking import Standing
from dutiful.stores.sqlite.threads import Threaded
from dutiful.tracking import PhaseMark, Report
from dutiful.watching import Stirred, Tombstone


class SqliteFollowing(Threaded):
    # Tracking

    async def report(
        self, reports: Sequence[Report], marks: Sequence[PhaseMark] = (), *, now: datetime | None = None
    ) -> frozenset[int]:
        return await self._write(lambda db: tracking.report(db, reports, marks, self._clock(now)))

    async def phases(self, job_id: UUID) -> list[PhaseRecord]:
        return await self._read(lambda db: tracking.phases(db, job_id))

    # Locking

    async def lock_mode(self) -> LockMode:
        return LockMode.ROWS

    async def lock_session(self, lost: Callable[[], None]) -> None:
        """A process has no connection here that would end with it: locks are rows."""

    async def try_lock(self, token: Token, name: LockName, *, now: datetime | None = None) -> bool:
        # Whoever waits asks often, and then only reads.
        standing = await self._read(lambda db: locking.look(db, token, name, self._clock(now)))
        if standing in (Standing.HELD, Standing.WAITING):
            return standing is Standing.HELD
        return await self._write(lambda db: locking.try_lock(db, token, name, self._clock(now)))

    async def unlock(self, token: Token, name: LockName) -> None:
        await self._write(lambda db: locking.unlock(db, token, name))

    # Watching

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
