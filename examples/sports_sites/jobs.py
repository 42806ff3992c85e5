"""Jobs: the queue with the register's own verbs, each a line or two of Dutiful."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dutiful import (
    DeadLetter,
    DeadLetterFilter,
    Dutiful,
    JobHandle,
    JobRecord,
    ReviewState,
    Scope,
    State,
    Unique,
)
from examples.sports_sites.views import Views

PRIORITY, ATTEMPTS = 100, 3
PAGE = 1_000


@dataclass(frozen=True)
class Requeued:
    """The job that replaces a dead letter."""

    id: UUID
    type: str
    payload: Any
    correlation_id: str


@dataclass(frozen=True)
class Stats:
    """The view `job_queue_stats`."""

    pending: int
    processing: int
    failed: int  # to be tried again
    oldest_pending_minutes: int  # since it was due


class Jobs:
    """Acts as `by`, whose name is in the audit trail."""

    def __init__(self, app: Dutiful, by: str = "register") -> None:
        self._app = app
        self._by = by

    async def enqueue(
        self,
        type: str,
        payload: Mapping[str, Any] | None = None,
        *,
        priority: int = PRIORITY,
        run_at: datetime | None = None,
        correlation_id: str | None = None,
        dedup_key: str | None = None,
        once: bool = False,
        max_attempts: int = ATTEMPTS,
        within: Any = None,
    ) -> JobHandle[Any]:
        """Lower priorities run first. If a live job of this type has the key, that job is returned instead.

        With `once`, the key stays taken after that job has ended or was deleted.
        """
        scope = Scope.FOREVER if once else Scope.ACTIVE
        return await self._app.enqueue(
            type,
            payload or {},
            priority=priority,
            run_at=run_at,
            correlation_id=correlation_id,
            unique=None if dedup_key is None else Unique(dedup_key, scope=scope),
            max_attempts=max_attempts,
            created_by=self._by,
            within=within,
        )

    async def by_correlation(self, correlation_id: str) -> list[JobRecord]:
        """All jobs that one action of a user has caused, the first one first."""
        page = await self._app.jobs(correlation_id=correlation_id, limit=PAGE)
        found = list(page)
        while page.next is not None:
            page = await self._app.jobs(correlation_id=correlation_id, limit=PAGE, before=page.next)
            found += page
        return sorted(found, key=lambda job: (job.created_at, job.id))

    async def stats(self, views: Views) -> Stats:
        (row,) = await views.rows("select * from job_queue_stats")
        return Stats(**row)

    async def fail(self, job_id: UUID, error: str, *, will_retry: bool) -> State:
        """Fails the running attempt, or the next of a waiting job; without a retry, the job becomes a dead letter."""
        return await (await self._app.operator(self._by)).jobs.fail(job_id, error, retry=will_retry)

    async def move_to_dead_letter(self, job_id: UUID, error: str) -> None:
        await self.fail(job_id, error, will_retry=False)

    async def dead_letters(self) -> list[DeadLetter]:
        """Dead letters that are not acknowledged, the newest first."""
        letters = (await self._app.operator(self._by)).dead_letters
        wanted = DeadLetterFilter(status=[ReviewState.PENDING_REVIEW])
        found = page = await letters.search(wanted, limit=PAGE)
        while len(page) == PAGE:
            page = await letters.search(wanted, limit=PAGE, after=found[-1].cursor)
            found = found + page
        return found

    async def dead_letter(self, job_id: UUID) -> DeadLetter:
        return await (await self._app.operator(self._by)).dead_letters.get(job_id)

    async def acknowledge(self, job_id: UUID, notes: str | None = None) -> DeadLetter:
        return await (await self._app.operator(self._by)).dead_letters.acknowledge(job_id, notes)

    async def requeue(self, job_id: UUID, notes: str | None = None) -> Requeued:
        """Enqueues a job of the same type, payload and correlation id, with new attempts."""
        operator = await self._app.operator(self._by)
        made = await operator.jobs.get((await operator.dead_letters.reprocess(job_id, notes)).new_job_id)
        return Requeued(made.id, made.kind, made.payload, made.correlation_id)

    async def remove_finished(self, older_than: timedelta) -> int:
        """Deletes in small steps, so that other transactions do not wait."""
        return await (await self._app.operator(self._by)).jobs.delete_finished(older_than)
