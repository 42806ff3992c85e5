"""Dependents in Postgres: what becomes of jobs that wait for others."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from dutiful.core.job import OnFailure
from dutiful.store.dependents import Edge, Release
from dutiful.stores.postgres.engine.subject import Subject

RELEASED = "queue, priority, moved, next_ids"


class PostgresDependents(Subject):
    async def release(self, ended: Sequence[UUID], limit: int, *, now: datetime | None = None) -> Release:
        return releases(await self._rows("release_dependents", RELEASED, list(ended), limit, now))

    async def counts(self, job_ids: Sequence[UUID]) -> dict[UUID, int]:
        rows = await self._rows("count_edges", "job_id, edges", list(job_ids))
        return {row["job_id"]: row["edges"] for row in rows}

    async def edges(self, job_ids: Sequence[UUID], *, newest: int | None = None) -> list[Edge]:
        rows = await self._rows("edges_of", "job_id, needs_id, policy", list(job_ids), newest)
        return [Edge(row["job_id"], row["needs_id"], OnFailure(row["policy"])) for row in reversed(rows)]


def releases(rows: Sequence[Any]) -> Release:
    """Rows of release_dependents: those with a queue are levels that got jobs."""
    return Release(
        sum(row["moved"] for row in rows),
        frozenset((row["queue"], row["priority"]) for row in rows if row["queue"] is not None),
        tuple(job_id for row in rows for job_id in row["next_ids"] or ()),
    )
