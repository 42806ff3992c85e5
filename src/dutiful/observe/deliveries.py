"""Counts ready jobs that a broker has, and those that it has not."""

import msgspec

from dutiful.store.deliveries import DeliveryStore

PAGE = 1_000
COUNTED = 10  # pages


class DeliveryCounts(msgspec.Struct, frozen=True):
    """Of the first ready jobs of all queues, 10,000 at most: `more` says that there are others."""

    outstanding: int
    undelivered: int
    more: bool = False


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
