"""The store's face to those who only look."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dutiful.acting import Pause
from dutiful.core.job import AttemptRecord, JobRecord
from dutiful.duties import ScheduleRecord, WorkerRecord
from dutiful.reading import JobFilter, JobPage, QueueRecord, Stats
from dutiful.stores.sqlite import check, counting, health, listing, looking
from dutiful.stores.sqlite.codec import moment
from dutiful.stores.sqlite.threads import Threaded


class SqliteReading(Threaded):
    async def find(self, job_id: UUID) -> JobRecord | None:
        return await self._read(lambda db: looking.find(db, job_id))

    async def outcomes(self, job_ids: Sequence[UUID]) -> list[JobRecord]:
        return await self._read(lambda db: looking.outcomes(db, job_ids))

    async def jobs(self, filter: JobFilter) -> JobPage:
        return await self._browse(lambda db: listing.jobs(db, filter))

    async def attempts(self, job_id: UUID) -> list[AttemptRecord]:
        return await self._read(lambda db: looking.attempts(db, job_id))

    async def dependencies(self, job_id: UUID) -> list[JobRecord]:
        return await self._read(lambda db: looking.dependencies(db, job_id))

    async def queues(self, *, tenant: str | None = None) -> list[QueueRecord]:
        return await self._browse(lambda db: counting.queues(db, tenant))

    async def stats(self, since: timedelta, *, tenant: str | None = None, now: datetime | None = None) -> Stats:
        return await self._browse(lambda db: counting.stats(db, since, tenant, self._clock(now)))

    async def workers(self) -> list[WorkerRecord]:
        return await self._browse(lambda db: looking.workers(db, self._clock(None)))

    async def schedules(self) -> list[ScheduleRecord]:
        return await self._browse(looking.schedules)

    async def pauses(self) -> list[Pause]:
        return await self._browse(looking.pauses)

    async def clock(self, *, now: datetime | None = None) -> datetime:
        return moment(self._clock(now))

    async def check_places(self) -> list[str]:
        return await self._browse(check.check_places)

    async def health(self) -> dict[str, Any]:
        return await self._browse(lambda db: health.health(db, self._path, self._driver))
