"""Phases and progress of running jobs in Postgres."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from dutiful.core.job import PhaseRecord
from dutiful.store.progress import PhaseMark, ProgressReport
from dutiful.stores.postgres.engine.subject import Subject, arrays, as_struct


class PostgresProgress(Subject):
    async def report(
        self, reports: Sequence[ProgressReport], marks: Sequence[PhaseMark] = (), *, now: datetime | None = None
    ) -> frozenset[int]:
        if not reports and not marks:
            return frozenset()
        reported = arrays(reports, *ProgressReport.__struct_fields__)
        marked = arrays(marks, *PhaseMark.__struct_fields__)
        rows = await self._rows("report_progress", "report_progress", *reported, *marked, now)
        return frozenset(row[0] for row in rows)

    async def phases(self, job_id: UUID) -> list[PhaseRecord]:
        return [as_struct(PhaseRecord, row) for row in await self._db.fetch(self._sql["phases"], job_id)]
