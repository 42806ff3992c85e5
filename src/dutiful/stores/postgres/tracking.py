"""Phases and progress of running jobs in Postgres."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from dutiful.core.job import PhaseRecord
from dutiful.core.pipeline import PhaseState
from dutiful.stores.postgres.part import PostgresPart, decoded
from dutiful.tracking import PhaseMark, Report


class PostgresTracking(PostgresPart):
    async def report(
        self, reports: Sequence[Report], marks: Sequence[PhaseMark] = (), *, now: datetime | None = None
    ) -> frozenset[int]:
        if not reports and not marks:
            return frozenset()
        rows = await self._db.fetch(self._sql["report"], *_report_columns(reports), *_mark_columns(marks), now)
        return frozenset(row[0] for row in rows)

    async def phases(self, job_id: UUID) -> list[PhaseRecord]:
        rows = [decoded(row) for row in await self._db.fetch(self._sql["phases"], job_id)]
        return [PhaseRecord(**row | {"state": PhaseState(row["state"])}) for row in rows]


def _report_columns(reports: Sequence[Report]) -> list[list[Any]]:
    return [
        [r.job_id for r in reports],
        [r.claim_id for r in reports],
        [r.phase for r in reports],
        [r.percent for r in reports],
        [r.overall for r in reports],
        [r.message for r in reports],
        [r.items for r in reports],
    ]


def _mark_columns(marks: Sequence[PhaseMark]) -> list[list[Any]]:
    return [
        [m.job_id for m in marks],
        [m.claim_id for m in marks],
        [m.name for m in marks],
        [m.position for m in marks],
        [m.state.value for m in marks],
        [m.result for m in marks],
        [m.error for m in marks],
        [m.anew for m in marks],
    ]
