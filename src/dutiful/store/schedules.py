"""The contract of schedules: what is enqueued again and again, and when."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import msgspec

from dutiful.core.job import NewJob


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A cron schedule as stored; `spec` and `job` are JSON objects that core.cron and the client understand."""

    name: str
    kind: str
    expression: str
    timezone: str
    catch_up: str
    job: dict[str, Any]  # queue, payload, priority, max_attempts, tenant …
    next_at: datetime
    last_at: datetime | None = None
    last_job_id: UUID | None = None
    enabled: bool = True


class Fired(msgspec.Struct, frozen=True):
    """One firing of a schedule: a compare-and-set of its next_at, together with the jobs."""

    name: str
    expected: datetime
    next_at: datetime
    jobs: Sequence[NewJob]
    at: datetime


class ScheduleStore(Protocol):
    """Each call is correct when two processes make it at once."""

    async def put(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Store what the code declares; `next_at` of a known, unchanged schedule is kept."""

    async def fire(self, fired: Fired, *, now: datetime | None = None) -> bool:
        """Enqueue a schedule's jobs and move its next_at on, or do nothing if another process has."""

    async def all(self) -> list[ScheduleRecord]: ...

    async def enable(self, name: str, enabled: bool) -> bool: ...

    async def remove(self, name: str) -> bool:
        """False: there is none of that name."""
