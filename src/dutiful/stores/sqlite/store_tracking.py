"""The store's face to running jobs that tell how far they are."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from dutiful.core.job import PhaseRecord
from dutiful.stores.sqlite import tracking
from dutiful.stores.sqlite.threads import Threaded
from dutiful.tracking import PhaseMark, Report


class SqliteTracking(Threaded):
    async def report(
        self, reports: Sequence[Report], marks: Sequence[PhaseMark] = (), *, now: datetime | None = None
    ) -> frozenset[int]:
        return await self._write(lambda db: tracking.report(db, reports, marks, self._clock(now)))

    async def phases(self, job_id: UUID) -> list[PhaseRecord]:
        return await self._read(lambda db: tracking.phases(db, job_id))
