"""Deliveries of ready jobs to a broker: what is not delivered, and delivering it again."""

import msgspec

from dutiful.core.errors import UsageError
from dutiful.maintenance.deliveries import redeliver
from dutiful.operator.actor import OperatorPart
from dutiful.store.deliveries import DeliveryStore

PAGE = 1_000
COUNTED = 10  # pages


class DeliveryCounts(msgspec.Struct, frozen=True):
    """Of the first ready jobs of all queues, 10,000 at most: `more` says that there are others."""

    outstanding: int
    undelivered: int
    more: bool = False


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


async def count_deliveries(store: DeliveryStore) -> DeliveryCounts:
    after, outstanding, undelivered = None, 0, 0
    for _ in range(COUNTED):
        page = await store.waiting(after, PAGE)
        outstanding += sum(job.outstanding for job in page)
        undelivered += sum(not job.outstanding for job in page)
        if len(page) < PAGE:
            return DeliveryCounts(outstanding, undelivered)
        after = page[-1].cursor
    return DeliveryCounts(outstanding, undelivered, more=True)
