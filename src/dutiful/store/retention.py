"""The contract of retention: finished jobs are marked stale and deleted, with a notice of each."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.job import JobRecord

KEEP_UNUSED = timedelta(days=30)
"""How long a breaker is kept that no kind declares; and, where jobs are kept forever, other rows beside them."""


class RetentionStep(msgspec.Struct, frozen=True):
    """What one step of retention has marked stale or deleted, and where the next one begins (None: at the start)."""

    count: int
    jobs: list[JobRecord]  # empty where they were deleted without tombstones, because they are not read then
    cursor: UUID | None


class RetentionNotice(msgspec.Struct, frozen=True):
    """A job that retention has marked stale or deleted, whose callbacks have not run yet."""

    job: JobRecord
    deleted: bool


class RetentionStore(Protocol):
    """Each call is correct when two processes make it at once."""

    async def delete(
        self,
        older_than: timedelta,
        limit: int,
        cursor: UUID | None,
        *,
        stale_only: bool = False,
        tombstones: bool = False,
        sent: bool = False,
        now: datetime | None = None,
    ) -> RetentionStep:
        """Deletes up to `limit` finished jobs with all that belongs to them; dead letters and webhook posts stay,
        and so does what the view `job_metrics` shows, for a year.

        `stale_only`: only jobs that are stale, and whose notice of that is sent. `tombstones`: leaves one for each job,
        and returns the jobs; `sent`: no callback has to run, so their notices count as sent.
        """

    async def delete_leftovers(self, older_than: timedelta, limit: int, *, now: datetime | None = None) -> bool:
        """Deletes rows beside jobs: expired unique keys, locks of ended claims, tombstones an hour after their notices;
        of this age, ended webhook posts and bulk runs, and closed dead letters whose job is gone; and after
        KEEP_UNUSED, or `older_than` if that is longer, breakers that no kind declares and that block nothing. Postgres
        deletes workers and watchers here that died a day ago; SQLite does so with a heartbeat.

        Returns whether there may be more.
        """

    async def mark_stale(
        self, older_than: timedelta, limit: int, cursor: UUID | None, *, sent: bool, now: datetime | None = None
    ) -> RetentionStep:
        """Marks up to `limit` finished jobs stale; `sent`: no callback has to run, so their notices count as sent."""

    async def unsent(self, limit: int) -> list[RetentionNotice]:
        """Stale marks, then tombstones, whose notices are unsent; the oldest first."""

    async def mark_sent(self, stale: Sequence[UUID], deleted: Sequence[UUID], *, now: datetime | None = None) -> None:
        """Records that their callbacks have run, so that their events are published."""
