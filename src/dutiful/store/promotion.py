"""The contract of promotion: jobs that wait for their time or behind a gate become ready."""

from datetime import datetime
from typing import Protocol

import msgspec


class Promotion(msgspec.Struct, frozen=True):
    moved: int
    levels: frozenset[tuple[str, int]] = frozenset()  # the (queue, priority) that got jobs
    next_run_at: datetime | None = None


class PromotionStore(Protocol):
    """Each call is correct when two processes make it at once."""

    async def promote(self, limit: int, *, now: datetime | None = None) -> Promotion: ...

    async def sweep(self, limit: int, *, now: datetime | None = None) -> Promotion:
        """Re-check all gates: move what may run out of `blocked`, and what may not into it.

        What waits for a pause or a breaker keeps its seq; what has become due meanwhile gets one.
        """

    async def admit_probes(self, limit: int, *, now: datetime | None = None) -> Promotion:
        """Of a sweep only what never takes long: unblock jobs whose kind is not paused any more, and admit probes."""
