"""Queues, and counts of jobs by state."""

from datetime import timedelta

from dutiful.operator.actor import OperatorPart
from dutiful.store.queries import QueueRecord, Stats, TenantCount


class Queues(OperatorPart):
    async def all(self, tenant: str | None = None) -> list[QueueRecord]:
        return await self._store.queries.queues(tenant=self._actor.scope(tenant))

    async def stats(self, since: timedelta, tenant: str | None = None) -> Stats:
        return await self._store.queries.stats(since, tenant=self._actor.scope(tenant))

    async def ended_by_tenant(self, since: timedelta) -> list[TenantCount]:
        """Jobs that ended lately, by tenant and state; a principal with a tenant sees its own."""
        found = await self._store.queries.ended_by_tenant(since)
        return [count for count in found if self._actor.owns(count.tenant)]
