"""Dependents in Postgres: what becomes of jobs that wait for others."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from dutiful.core.job import OnFailure
from dutiful.store.dependents import Edge, Release
from dutiful.stores.postgres.engine.subject import Subject

RELEASED = "queue, priority, moved, ended, watched"


class PostgresDependents(Subject):
    async def release(self, ended: Sequence[UUID], limit: int, *, now: datetime | None = None) -> Release:
        return releases(await self._rows("release_dependents", RELEASED, list(ended), limit, now))

    async def edges(self, job_ids: Sequence[UUID], *, newest: int | None = None) -> list[Edge]:
        rows = await self._rows("edges_of", "job_id, needs_id, policy", list(job_ids), newest)
        return [Edge(row["job_id"], row["needs_id"], OnFailure(row["policy"])) for row in reversed(rows)]


def releases(rows: Sequence[Any]) -> Release:
    """Rows of decide_dependents: those with a queue are levels that got jobs."""
    levels = [row for row in rows if row["queue"] is not None]
    rest = [row for row in rows if row["queue"] is None]
    return Release(
        sum(row["moved"] for row in rows),
        frozenset((row["queue"], row["priority"]) for row in levels),
        tuple(job_id for row in rest for job_id in row["ended"]),
        tuple(job_id for row in rest for job_id in row["watched"]),
    )
