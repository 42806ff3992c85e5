"""The contract of retention: finished jobs are marked stale and deleted, with a notice of each."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.job import JobRecord


class Deleted(msgspec.Struct, frozen=True):
    """How many jobs one step of retention deleted, and where the next one begins (None: at the start)."""

    deleted: int
    cursor: UUID | None


class RetentionStep(msgspec.Struct, frozen=True):
    """Finished jobs that one step of retention has marked stale or deleted, and where the next one begins."""

    jobs: list[JobRecord]
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
        now: datetime | None = None,
    ) -> Deleted:
        """Deletes up to `limit` finished jobs with all that belongs to them; open dead letters and webhook posts stay.

        `stale_only`: only jobs that are stale, and whose notice of that is sent.
        """

    async def delete_leftovers(self, older_than: timedelta, limit: int, *, now: datetime | None = None) -> bool:
        """Deletes old rows beside jobs, also of jobs that are kept: expired unique keys, tombstones, dead workers,
        ended webhook posts and bulk runs, closed dead letters, breakers that no kind declares and that block nothing.

        Returns whether there may be more.
        """

    async def mark_stale(
        self, older_than: timedelta, limit: int, cursor: UUID | None, *, sent: bool, now: datetime | None = None
    ) -> RetentionStep:
        """Marks up to `limit` finished jobs stale; `sent`: no callback has to run, so their notices count as sent."""

    async def delete_with_tombstones(
        self,
        older_than: timedelta,
        limit: int,
        cursor: UUID | None,
        *,
        stale_only: bool,
        sent: bool,
        now: datetime | None = None,
    ) -> RetentionStep:
        """Deletes as `delete` does, but leaves a tombstone for each job and returns the jobs.

        `stale_only`: only jobs that are stale, and whose notice of that is sent.
        """

    async def unsent(self, limit: int) -> list[RetentionNotice]:
        """Stale marks, then tombstones, whose notices are unsent; the oldest first."""

    async def mark_sent(self, stale: Sequence[UUID], deleted: Sequence[UUID], *, now: datetime | None = None) -> None:
        """Records that their callbacks have run, so that their events are published."""
