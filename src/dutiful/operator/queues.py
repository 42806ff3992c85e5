"""Queues, and counts of jobs by state."""

from datetime import timedelta

from dutiful.operator.actor import OperatorPart
from dutiful.store.queries import QueueRecord, Stats


class Queues(OperatorPart):
    async def all(self, tenant: str | None = None) -> list[QueueRecord]:
        return await self._store.queries.queues(tenant=self._actor.scope(tenant))

    async def stats(self, since: timedelta, tenant: str | None = None) -> Stats:
        return await self._store.queries.stats(since, tenant=self._actor.scope(tenant))
