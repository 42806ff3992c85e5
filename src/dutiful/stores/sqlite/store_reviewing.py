"""The store's face to those who review dead letters, one by one or in bulk."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from dutiful.core.audit import AuditEvent
from dutiful.reviewing import (
    BulkRun,
    BulkStep,
    DeadLetter,
    DeadLetterCounts,
    DeadLetterFilter,
    DeadLetterGroup,
    Place,
    Review,
    Reviewed,
)
from dutiful.stores.sqlite import bulk, reviewing
from dutiful.stores.sqlite.threads import Threaded


class SqliteReviewing(Threaded):
    _resolved_to = b""

    async def dead_letter(self, job_id: UUID) -> DeadLetter | None:
        return await self._read(lambda db: reviewing.dead_letter(db, job_id))

    async def dead_letters(
        self, filter: DeadLetterFilter, *, after: Place | None = None, limit: int = 50
    ) -> list[DeadLetter]:
        return await self._browse(lambda db: reviewing.dead_letters(db, filter, after, limit))

    async def dead_letter_count(self, filter: DeadLetterFilter) -> int:
        return await self._browse(lambda db: reviewing.count(db, filter))

    async def dead_letter_counts(self, filter: DeadLetterFilter) -> DeadLetterCounts:
        return await self._browse(lambda db: reviewing.counts(db, filter))

    async def dead_letter_groups(self, filter: DeadLetterFilter, limit: int = 50) -> list[DeadLetterGroup]:
        return await self._browse(lambda db: reviewing.groups(db, filter, limit))

    async def review(
        self, reviews: Sequence[Review], *, step: BulkStep | None = None, now: datetime | None = None
    ) -> list[Reviewed]:
        return await self._write(lambda db: reviewing.review(db, reviews, step, self._clock(now)))

    async def resolve_reprocessed(
        self, limit: int, *, new_job_id: UUID | None = None, now: datetime | None = None
    ) -> int:
        if new_job_id is not None:
            ended = await self._read(lambda db: reviewing.ended_as(db, new_job_id))
            return await self._write(lambda db: reviewing.resolve(db, ended, self._clock(now))) if ended else 0
        # Looked for by a reader and in stretches, since most of what is reprocessing may have to wait for long.
        rows, self._resolved_to = await self._read(lambda db: reviewing.ended(db, self._resolved_to, limit))
        return await self._write(lambda db: reviewing.resolve(db, rows, self._clock(now))) if rows else 0

    async def start_bulk(self, run: BulkRun, event: AuditEvent) -> None:
        await self._write(lambda db: bulk.start(db, run, event))

    async def bulk_run(self, run_id: UUID) -> BulkRun | None:
        return await self._read(lambda db: bulk.find(db, run_id))

    async def bulk_runs(self, *, running: bool = False, tenant: str | None = None, limit: int = 50) -> list[BulkRun]:
        return await self._read(lambda db: bulk.runs(db, running, tenant, limit))

    async def stop_bulk(self, run_id: UUID, *, now: datetime | None = None) -> bool:
        return await self._write(lambda db: bulk.stop(db, run_id, self._clock(now)))
