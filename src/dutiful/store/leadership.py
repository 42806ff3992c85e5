"""The contract of leadership: one process at a time runs the maintenance services, and sees what is due."""

from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec


class Survey(msgspec.Struct, frozen=True):
    """What there is to do for the services, in one cheap look."""

    leading: bool
    now: datetime
    next_run_at: datetime | None = None  # of the first scheduled job
    next_fire_at: datetime | None = None  # of the first schedule
    expired: bool = False
    blocked: bool = False
    next_post_at: datetime | None = None  # of the first webhook that waits
    reviewing: bool = False  # a bulk run goes on, or a dead letter is reprocessing
    unsealed: bool = False  # audit events wait for their seal


class LeadershipStore(Protocol):
    """Correct when two processes believe that they lead: election saves work, safety does not rest on it."""

    async def survey(self, worker_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> Survey:
        """Acquire or renew the leadership if it is free or held by `worker_id`, and report what is due."""

    async def resign(self, worker_id: UUID) -> None: ...
