"""The contract of deliveries: which ready jobs were sent to a broker, so that the others, and lost ones, are sent.

A delivery is a hint. The claim alone decides which worker runs a job, so a delivery may be repeated or lost.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID

import msgspec


class Delivered(msgspec.Struct, frozen=True):
    """A delivery that the broker has accepted."""

    job_id: UUID
    backend_job_id: str | None  # what the broker calls it, if it has a name
    number: int  # 1: the first of its job
    attempt: int  # how many attempts were spent when it was sent


class WaitingJob(msgspec.Struct, frozen=True):
    """A ready job, with its last delivery, if there was one."""

    job_id: UUID
    kind: str
    queue: str
    priority: int
    seq: int
    attempt: int
    backend_job_id: str | None = None
    number: int = 0
    delivered_at: datetime | None = None
    outstanding: bool = False  # this delivery was made since the job became ready, and no worker has taken it

    @property
    def due_at(self) -> datetime:
        """Since when it has been ready, or should have been."""
        return datetime.fromtimestamp(self.seq / 1_000_000, UTC)

    @property
    def cursor(self) -> "Cursor":
        return self.queue, self.priority, self.seq, self.job_id


Cursor = tuple[str, int, int, UUID]


class DeliveryStore(Protocol):
    async def record(self, sent: Sequence[Delivered], *, now: datetime | None = None) -> None:
        """Stores deliveries, at most one of a job.

        An older one than is stored changes nothing, nor one of no job, nor one whose number is not the next.
        """

    async def take(self, taken: Sequence[tuple[UUID, str]]) -> None:
        """Notes that these deliveries, by job and backend_job_id, have left the broker without a claim."""

    async def find(self, job_id: UUID) -> WaitingJob | None:
        """One ready job with its last delivery; None if it is not ready."""

    async def waiting(self, after: Cursor | None, limit: int) -> list[WaitingJob]:
        """Up to `limit` ready jobs by queue, priority and order; `after`: behind the last one of the previous page."""
