"""The contract of leadership: one process at a time leads, runs the maintenance services, and learns what is due.

The survey also keeps an outage of the store from being taken for the death of its workers. Surveys come every second; a
gap between two of them means that the store may have been away, and that workers which live could not renew. They get
time to do so before anything is rescued.
"""

from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec


class Patience(msgspec.Struct, frozen=True):
    """After `gap` without a survey, by the store's clock, no lease is rescued for `hold`."""

    gap: timedelta
    hold: timedelta

    @classmethod
    def with_lease(cls, lease: timedelta) -> "Patience":
        """For workers that renew leases of this length every third of it, and try again each second in an outage.

        A gap of up to a third costs no worker its lease. The margin beyond the renewal interval is for a renewal that
        was under way when the store came back, and has to fail first.
        """
        return cls(max(lease / 3, timedelta(seconds=3)), lease / 3 + timedelta(seconds=5))


DEFAULT_PATIENCE = Patience.with_lease(timedelta(seconds=30))


class Survey(msgspec.Struct, frozen=True):
    """What is due for the maintenance services; cheap to read."""

    leading: bool
    now: datetime
    next_run_at: datetime | None = None  # of the first scheduled job
    next_fire_at: datetime | None = None  # of the first schedule
    expired: bool = False  # leases are over that may be rescued
    blocked: bool = False
    next_post_at: datetime | None = None  # of the first pending webhook post
    reviewing: bool = False  # a bulk run is running, or a dead letter is reprocessing
    unsealed: bool = False  # audit events wait for their seal
    limited: bool = False  # there are limits
    waits: bool = False  # an event is to be delivered, or a wait for one is over


class LeadershipStore(Protocol):
    """An election saves work; correctness does not depend on it, because two processes may lead at once."""

    async def survey(
        self, worker_id: UUID, ttl: timedelta, patience: Patience = DEFAULT_PATIENCE, *, now: datetime | None = None
    ) -> Survey:
        """Acquires or renews the leadership if it is free or held by `worker_id`, and returns what is due.

        An answer means that the store could also be written to, at least while jobs are running.
        """

    async def resign(self, worker_id: UUID) -> bool:
        """Gives up the leadership, if `worker_id` has it; returns whether it had."""

    async def is_vacant(self) -> bool:
        """Whether a survey would lead now. Cheap, for who is about to survey: it may reserve the leadership for it."""
