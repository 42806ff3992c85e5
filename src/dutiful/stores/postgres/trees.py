"""Trees in Postgres: all jobs of one correlation id."""

from datetime import datetime
from uuid import UUID

from dutiful.store.trees import TreeCancel, TreeProgress, root_of, tree_progress
from dutiful.stores.postgres.engine.subject import Subject


class PostgresTrees(Subject):
    async def progress(self, correlation_id: str, *, tenant: str | None = None) -> TreeProgress:
        columns = "state, jobs, created_at, started_at, finished_at"
        rows = await self._rows("tree_progress", columns, correlation_id, root_of(correlation_id), tenant)
        return tree_progress(correlation_id, [tuple(row) for row in rows])

    async def oldest(
        self, correlation_id: str, limit: int, *, failed: bool = False, tenant: str | None = None
    ) -> list[UUID]:
        args = (correlation_id, root_of(correlation_id), tenant, failed, limit)
        return [row[0] for row in await self._rows("oldest_of_tree", "*", *args)]

    async def cancel(
        self,
        correlation_id: str,
        reason: str,
        before: UUID | None,
        limit: int,
        *,
        tenant: str | None = None,
        now: datetime | None = None,
    ) -> TreeCancel:
        args = (correlation_id, root_of(correlation_id), tenant, reason, before, limit, now)
        row = (await self._rows("cancel_tree", "cancelled, requested, last_id", *args))[0]
        return TreeCancel(row["cancelled"], tuple(row["requested"]), row["last_id"])
