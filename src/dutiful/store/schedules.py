"""The contract of schedules: jobs that are enqueued by a cron expression or an interval."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import msgspec

from dutiful.core.job import NewJob


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored schedule; core.cron reads its expression, the client its job, a JSON object."""

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
    """One firing of a schedule: its jobs, and a compare-and-set of its next_at."""

    name: str
    expected: datetime
    next_at: datetime
    jobs: Sequence[NewJob]
    at: datetime


class ScheduleStore(Protocol):
    """Each call is correct when two processes make it at once."""

    async def put(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Stores the schedules that the code declares; an unchanged schedule keeps its `next_at`."""

    async def fire(self, fired: Fired, *, now: datetime | None = None) -> bool:
        """Enqueues a schedule's jobs and advances its next_at; does nothing if another process has."""

    async def all(self) -> list[ScheduleRecord]: ...

    async def enable(self, name: str, enabled: bool) -> bool: ...

    async def remove(self, name: str) -> bool:
        """False if there is none of that name."""
