"""The contract of retention: finished jobs are marked stale, deleted, and announced."""

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
        """Delete up to `limit` finished jobs with all that belongs to them; open dead letters and webhook posts stay.

        `stale_only`: only jobs that are stale and announced.
        """

    async def delete_leftovers(self, older_than: timedelta, limit: int, *, now: datetime | None = None) -> bool:
        """Delete what belongs to no job: expired unique keys, old tombstones, rows of dead workers, ended webhook posts
        and bulk runs, closed dead letters, and breakers that no kind declares and that block nothing; returns whether
        there may be more."""

    async def mark_stale(
        self, older_than: timedelta, limit: int, cursor: UUID | None, *, notified: bool, now: datetime | None = None
    ) -> RetentionStep:
        """Mark up to `limit` finished jobs stale; `notified`: no callback has to run before the event is published."""

    async def delete_announced(
        self,
        older_than: timedelta,
        limit: int,
        cursor: UUID | None,
        *,
        stale_only: bool,
        notified: bool,
        now: datetime | None = None,
    ) -> RetentionStep:
        """Delete as `delete` does, but leave a tombstone for each job and return the jobs.

        `stale_only`: only jobs that are stale and announced.
        """

    async def unsent(self, limit: int) -> list[RetentionNotice]:
        """Stale marks, then tombstones, whose callbacks have not run yet; the oldest first."""

    async def mark_sent(self, stale: Sequence[UUID], deleted: Sequence[UUID], *, now: datetime | None = None) -> None:
        """Their callbacks have run: from now on the events are published."""
