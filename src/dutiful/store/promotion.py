"""The contract of promotion: scheduled jobs that are due and blocked jobs whose gate has opened become ready."""

from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec


class Promotion(msgspec.Struct, frozen=True):
    moved: int
    levels: frozenset[tuple[str, int]] = frozenset()  # the (queue, priority) that got jobs
    next_run_at: datetime | None = None
    next: tuple[UUID, ...] = ()  # jobs whose dependents are to be decided by a release


class PromotionStore(Protocol):
    """Each call is correct when two processes make it at once."""

    async def promote(self, limit: int, *, now: datetime | None = None) -> Promotion: ...

    async def next_due(self) -> timedelta | None:
        """How long it takes until the next scheduled job is due; negative if it is."""

    async def sweep(self, limit: int, *, now: datetime | None = None) -> Promotion:
        """Checks all gates again: unblocks jobs that may run, and blocks ready jobs that may not.

        Jobs blocked by a pause or a breaker keep their seq; those that have become due meanwhile get one.
        """

    async def unblock(self, limit: int, *, now: datetime | None = None) -> Promotion:
        """The fast part of a sweep: unblocks jobs whose kind is no longer paused, and admits probes."""
