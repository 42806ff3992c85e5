"""Delivers ready jobs that no broker has: retries, scheduled jobs, and what was lost with the broker."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from dutiful.client.dispatcher import Dispatcher, Parcel
from dutiful.concurrency.cancellation import check_cancelled
from dutiful.core.errors import BackendAway, DutifulError
from dutiful.delivery.base import QueueLevels
from dutiful.store.deliveries import Cursor, DeliveryStore, WaitingJob
from dutiful.store.leadership import Survey

PAGE = 1_000
PAGES = 5  # that a tick reads at most, unless it finds something to deliver
TICK_TIME = 1.0
NEW = timedelta(milliseconds=300)  # a new job that is younger is just being delivered by the process that stored it
# What waits longer is delivered by any process, because the leader may have no broker: its ticks come every second.
FOLLOWING = timedelta(seconds=2)
LOST_AFTER = timedelta(seconds=10)  # from then on the broker is asked whether it still has the message
TOGETHER = 0.01  # seconds between a hint and the look, which is also for those hints that follow it
LONGEST_REST = 0.25


class Redelivery:
    """Walks along the ready jobs, a few thousand a second, and delivers what is not outstanding or was lost.

    Two processes may do so at once: both send the same messages, and a claim decides in any case.
    """

    name = "deliveries"

    def __init__(self, store: DeliveryStore, dispatcher: Dispatcher) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._cursor: Cursor | None = None
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Jobs may have become ready that no process delivers by itself: those of a user's transaction, or of SQL."""
        self._wake.set()

    async def run(self, _: Callable[[QueueLevels], None]) -> None:
        """Delivers whenever it is woken, until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(TOGETHER)
            self._wake.clear()
            began = time.monotonic()
            with contextlib.suppress(DutifulError):  # the next tick tries again, and logs what is wrong
                await self._deliver_new()
            check_cancelled()
            # Hints come from any role that may connect: a flood of them takes a fifth of a connection's time at most.
            await asyncio.sleep(min(4 * (time.monotonic() - began), LONGEST_REST))

    async def _deliver_new(self) -> None:
        after = None
        for _ in range(PAGES):  # behind so many that wait, a job has time until the ticks come to it
            page = await self._store.waiting(after, PAGE)
            await self._dispatcher.deliver([_next_parcel(job) for job in page if not job.outstanding])
            if len(page) < PAGE:
                return
            after = page[-1].cursor

    async def tick(self, survey: Survey) -> QueueLevels | None:
        age = timedelta(0) if survey.leading else FOLLOWING
        began, pages = time.monotonic(), 0
        try:
            while pages < PAGES and time.monotonic() - began < TICK_TIME:
                page = await self._store.waiting(self._cursor, PAGE)
                self._cursor = page[-1].cursor if len(page) == PAGE else None
                if not await self._deliver(page, survey.now, age):
                    pages += 1
                if self._cursor is None:
                    break
        except BackendAway:  # it is on record; what was read is read again
            self._cursor = None
        return None

    async def _deliver(self, page: list[WaitingJob], now: datetime, age: timedelta) -> int:
        unsent = [job for job in page if not job.outstanding and _waited(job, now) >= max(age, _patience(job))]
        old = [job for job in page if job.outstanding and job.delivered_at is not None]
        old = [job for job in old if job.delivered_at is not None and now - job.delivered_at >= max(age, LOST_AFTER)]
        lost = await self._dispatcher.missing(old)
        parcels = [_next_parcel(job) for job in unsent]
        parcels += [_same_parcel(job) for job in old if job.job_id in lost]
        return await self._dispatcher.deliver(parcels)


async def redeliver(store: DeliveryStore, dispatcher: Dispatcher, queue: str | None = None) -> int:
    """Delivers all ready jobs, or those of a queue, whatever is known of their deliveries; returns how many.

    A broker that still has a message keeps it as it is.
    """
    sent, after, more = 0, None, True
    while more:
        page = await store.waiting(after, PAGE)
        more = len(page) == PAGE
        after = page[-1].cursor if page else None
        wanted = [job for job in page if queue is None or job.queue == queue]
        sent += await dispatcher.deliver([_same_parcel(j) if j.outstanding else _next_parcel(j) for j in wanted])
    return sent


def _next_parcel(job: WaitingJob) -> Parcel:
    return Parcel(job.job_id, job.kind, job.queue, job.priority, job.number + 1, job.attempt)


def _same_parcel(job: WaitingJob) -> Parcel:
    """The last delivery again, by the same name: a broker that still has it ignores this one."""
    return Parcel(job.job_id, job.kind, job.queue, job.priority, job.number, job.attempt)


def _waited(job: WaitingJob, now: datetime) -> timedelta:
    return now - job.due_at


def _patience(job: WaitingJob) -> timedelta:
    return NEW if job.number == 0 and job.attempt == 0 else timedelta.min
