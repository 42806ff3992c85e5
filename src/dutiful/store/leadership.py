"""The contract of leadership: one process at a time leads, runs the maintenance services, and learns what is due."""

from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec


class Survey(msgspec.Struct, frozen=True):
    """What is due for the maintenance services; cheap to read."""

    leading: bool
    now: datetime
    next_run_at: datetime | None = None  # of the first scheduled job
    next_fire_at: datetime | None = None  # of the first schedule
    expired: bool = False
    blocked: bool = False
    next_post_at: datetime | None = None  # of the first pending webhook post
    reviewing: bool = False  # a bulk run is running, or a dead letter is reprocessing
    unsealed: bool = False  # audit events wait for their seal


class LeadershipStore(Protocol):
    """An election saves work; correctness does not depend on it, because two processes may lead at once."""

    async def survey(self, worker_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> Survey:
        """Acquires or renews the leadership if it is free or held by `worker_id`, and returns what is due."""

    async def resign(self, worker_id: UUID) -> None: ...
