"""The contract of dependents: jobs that wait for other jobs, and what becomes of them when those end."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.job import OnFailure


class Edge(msgspec.Struct, frozen=True):
    """`job_id` depends on `needs_id`; `policy`: what happens to it if that does not complete."""

    job_id: UUID
    needs_id: UUID
    policy: OnFailure


class Release(msgspec.Struct, frozen=True):
    """What one step decided."""

    moved: int = 0
    levels: frozenset[tuple[str, int]] = frozenset()  # the (queue, priority) that got jobs
    next: tuple[UUID, ...] = ()  # jobs whose dependents are to be decided by the next step


class DependentStore(Protocol):
    """Each call is correct when two processes make it at once."""

    async def release(self, ended: Sequence[UUID], limit: int, *, now: datetime | None = None) -> Release:
        """Decides jobs that wait for these, if they have ended, and for those that this ends; about `limit` at most.

        Each becomes ready or scheduled if nothing is left to wait for, is cancelled or fails by the policy of its edge,
        or waits for the next one.
        """

    async def counts(self, job_ids: Sequence[UUID]) -> dict[UUID, int]:
        """How many jobs each of these depends on, if any."""

    async def edges(self, job_ids: Sequence[UUID], *, newest: int | None = None) -> list[Edge]:
        """The edges from these jobs to those that they depend on; of each, only to the `newest`, if that is given."""
