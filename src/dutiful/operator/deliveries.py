"""Deliveries of ready jobs to a broker: what is not delivered, and delivering it again."""

from dutiful.core.errors import UsageError
from dutiful.maintenance.deliveries import redeliver
from dutiful.observe.deliveries import DeliveryCounts, count_deliveries
from dutiful.operator.actor import OperatorPart


class Deliveries(OperatorPart):
    async def counts(self) -> DeliveryCounts:
        return await count_deliveries(self._store.deliveries)

    async def redeliver(self, queue: str | None = None, reason: str | None = None) -> int:
        """Delivers all ready jobs, or those of a queue, again; returns how many. A job runs once all the same."""
        dispatcher = self._client.dispatcher
        async with self._actor.audited("queue.redeliver", queue or "*", reason, fleetwide=True) as act:
            if dispatcher is None:
                raise UsageError("nothing is delivered without a broker: set redis_url, or start `dutiful worker`")
            sent = await redeliver(self._client.store.deliveries, dispatcher, queue)
            act.after = {"delivered": sent}
            return sent
