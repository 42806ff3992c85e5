"""Queues, and counts of jobs by state."""

from collections.abc import Iterable
from datetime import timedelta

from dutiful.observe.measure import served_by_name
from dutiful.operator.actor import OperatorPart
from dutiful.store.queries import QueueRecord, Stats, TenantCount


class Queues(OperatorPart):
    async def all(self, tenant: str | None = None, named: Iterable[str] = ()) -> list[QueueRecord]:
        """Queues that have jobs or are paused. Of more than 1,000, those that `named`, this code or lanes name, and
        then those with the most jobs; the last record has no name, and adds up all others."""
        return await self._store.queries.queues(tenant=self._actor.scope(tenant), named=await self._named(named))

    async def stats(self, since: timedelta, tenant: str | None = None) -> Stats:
        return await self._store.queries.stats(since, tenant=self._actor.scope(tenant), named=await self._named())

    async def _named(self, others: Iterable[str] = ()) -> set[str]:
        return {*others, *self._actor.queues, *served_by_name(await self._store.workers.all())}

    async def ended_by_tenant(self, since: timedelta) -> list[TenantCount]:
        """Jobs that ended lately, by tenant and state; a principal with a tenant sees its own."""
        found = await self._store.queries.ended_by_tenant(since)
        return [count for count in found if self._actor.owns(count.tenant)]
