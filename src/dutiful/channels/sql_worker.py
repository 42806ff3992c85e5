"""A worker that uses only the published functions: it dequeues, runs, renews and maintains, and touches no table."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.channels.calls import ProviderCalls
from dutiful.channels.channels import Channels
from dutiful.channels.database import ChannelDatabase, ChannelJob
from dutiful.channels.dispatch import Dispatcher, HeldJob
from dutiful.channels.payload import DB_FUNCTION
from dutiful.core import ids
from dutiful.core.errors import DutifulError, ShutdownTimeout
from dutiful.delivery.postgres import Listener
from dutiful.observe.outage import OutageLog
from dutiful.worker.startup import StartLimit

log = logging.getLogger("dutiful.channels")
LONGEST_RENEWAL = 20.0  # seconds between two renewals
RENEWALS_A_LEASE = 3
RETRY = 1.0  # seconds; the leader rescues soon after an outage, so living workers must renew sooner
SHORTEST_BREAK = 3.0  # seconds; a shorter silence of the database costs no worker its lease
LONGEST_MARGIN = 5.0  # seconds beyond a renewal that a worker waits before it rescues jobs of others
HANDLER_SHARE = 0.8  # of a lease that a function may take
HEARTBEAT = 5.0  # seconds; a record counts for 30
CLEANUP = 5.0  # seconds to give jobs back after the grace period


class SqlWorkerConfig(msgspec.Struct, frozen=True):
    worker_id: UUID
    concurrency: int
    lease: timedelta
    grace: timedelta
    poll: timedelta
    queues: Sequence[str] | None = None  # None: all

    @property
    def renewal(self) -> float:
        """Seconds between two renewals."""
        return min(self.lease.total_seconds() / RENEWALS_A_LEASE, LONGEST_RENEWAL)

    @property
    def longest_silence(self) -> float:
        """Seconds without a maintenance that are no break. As long as a renewal: two thirds of the lease are left."""
        return max(self.renewal, SHORTEST_BREAK)

    @property
    def handler_timeout(self) -> timedelta:
        """How long one function may take: less than a lease, so that one that hangs ends before it is run again."""
        return self.lease * HANDLER_SHARE


class SqlWorker:
    def __init__(self, config: SqlWorkerConfig, database: ChannelDatabase, channels: Channels) -> None:
        self.url = database.url
        self._config = config
        self._database = database
        self._outages = OutageLog()
        self._calls = ProviderCalls(limit=config.concurrency)
        self._dispatcher = Dispatcher(database, channels, self._calls, config.lease, self._outages)
        self.kinds = (DB_FUNCTION, *channels)
        self._running: dict[asyncio.Task[None], HeldJob] = {}
        self._wake = asyncio.Event()  # there may be work, or a slot is free
        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()
        self._locked: set[int] = set()  # claims that could not be renewed, because another transaction holds their rows
        self._warned: set[int] = set()  # those of them that were logged
        self._report_at = 0.0
        self._reached_since: float | None = None  # since when the database has answered without a break
        self._outages.waiting = lambda: f"{len(self._running)} jobs wait for it"

    def stop(self) -> None:
        """Takes no more jobs, and lets running ones finish within the grace period."""
        self._stopping.set()
        self._wake.set()

    def abort(self) -> None:
        """Stops, and gives running jobs back at once, but those whose provider was called."""
        self.stop()
        self._aborting.set()

    async def run(self, limit: StartLimit | None = None) -> None:
        """Runs until it is stopped; raises ShutdownTimeout if jobs were still running."""
        opened = await (limit or StartLimit(None)).wait_for(self._open, self._outages, self._stopping)
        if opened is None:
            return
        listener = Listener(
            self._database.connect_direct, (self._database.schema,), lambda *_: self._wake.set(), self._wake.set
        )
        if self._database.listens:
            listener.start()
        duties = [
            asyncio.create_task(self._repeat("renewals", self._renew, self._until_renewal)),
            asyncio.create_task(self._maintain()),
        ]
        try:
            await self._fetch()
            await self._drain()
        finally:
            listener.stop()
            for task in duties:
                task.cancel()
            await asyncio.gather(*duties, return_exceptions=True)
            await self._sign_off()
            await self._database.close()

    async def _open(self) -> bool:
        await self._database.open()
        self._reached_since = time.monotonic()
        return True

    # --- jobs

    async def _fetch(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            taken = False
            await self._report()
            try:
                taken = await self._take()
            except Exception as error:
                self._failed("dequeue", error)
            if not taken:
                await self._sleep(self._config.poll.total_seconds())

    async def _report(self) -> None:
        """Sends a heartbeat if one is due: here, because no dequeue is under way that may have missed a pause."""
        if time.monotonic() < self._report_at:
            return
        config, jobs = self._config, [held.job.job_id for held in self._running.values()]
        try:
            await self._database.report(config.worker_id, self.kinds, config.queues, config.concurrency, jobs)
            self._outages.works("heartbeat")
            self._report_at = time.monotonic() + HEARTBEAT
        except Exception as error:
            self._failed("heartbeat", error)
            self._report_at = time.monotonic() + RETRY

    async def _sign_off(self) -> None:
        with suppress(DutifulError, TimeoutError):  # the record expires by itself
            await asyncio.wait_for(self._database.report(self._config.worker_id, (), None, 0, ()), CLEANUP)

    async def _take(self) -> bool:
        """Dequeues as many jobs as there are free slots; returns whether there may be more."""
        free = self._config.concurrency - len(self._running)
        if free < 1:
            return False
        kinds = [kind for kind in self.kinds if self._calls.available(kind)]
        # A job that ran when a worker died may be what killed it: it runs beside no other such job.
        suspects = not any(held.job.crashes for held in self._running.values())
        jobs = await self._database.dequeue(
            kinds, self._config.queues, free, self._config.lease, self._config.worker_id, suspects=suspects
        )
        self._outages.works("dequeue")
        for job in jobs:
            self._start(job)
        return bool(jobs)

    def _start(self, job: ChannelJob) -> None:
        held = HeldJob(job)
        task = asyncio.create_task(self._run(held), name=f"dutiful job {ids.public(job.job_id)}")
        self._running[task] = held
        task.add_done_callback(self._ended)

    async def _run(self, held: HeldJob) -> None:
        try:
            await self._dispatcher.run(held)
        except Exception:
            # Its lease ends by itself, and the job is rescued.
            log.exception("job %s (%s) could not be settled", ids.public(held.job.job_id), held.job.kind)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.pop(task, None)
        self._wake.set()

    async def _sleep(self, seconds: float) -> None:
        """Until there may be work."""
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return

    # --- duties

    async def _renew(self) -> None:
        jobs = {held.job.claim_id: held for held in self._running.values()}
        if not jobs:
            self._locked = set()
            return
        answers = await self._database.renew([held.job for held in jobs.values()], self._config.lease)
        locked = {claim for claim, answer in answers.items() if answer == "locked"}
        # For a moment, the settlement of a job locks it, too.
        for claim in (locked & self._locked) - self._warned:
            log.warning(
                "job %s (%s): another transaction has locked its lease, which is renewed when that ends",
                ids.public(jobs[claim].job.job_id),
                jobs[claim].job.kind,
            )
        self._warned = (self._warned | (locked & self._locked)) & locked
        self._locked = locked
        for claim, answer in answers.items():
            if answer == "cancel_requested":
                jobs[claim].cancel_requested.set()

    def _until_renewal(self) -> float:
        return min(self._config.renewal, RETRY) if self._locked else self._config.renewal

    async def _maintain(self) -> None:
        due_in: float | None = None
        seen: datetime | None = None
        within = timedelta(seconds=self._config.longest_silence)

        async def maintain() -> None:
            nonlocal due_in, seen
            due_in = None
            rescue = seen is not None and self._may_rescue()
            kept = await self._database.maintain(self.kinds, rescue=rescue, seen=seen, within=within)
            if seen is not None and kept.seen_at - seen > within:
                self._reached_since = time.monotonic()  # it hung, and has found out only now that there was a break
            seen = kept.seen_at
            due_in = None if kept.due_in is None else max(kept.due_in.total_seconds(), 0.0)
            if kept.promoted or kept.rescued:
                self._wake.set()
            if kept.rescued:
                log.warning("%d jobs whose workers died were taken from them", kept.rescued)

        # Often enough that the time between two is no break by itself.
        poll = min(self._config.poll.total_seconds(), self._config.longest_silence / 3)
        await self._repeat("maintenance", maintain, lambda: poll if due_in is None else min(poll, due_in + 0.001))

    async def _repeat(self, part: str, duty: Callable[[], Any], pause: Callable[[], float]) -> None:
        while True:
            longest = math.inf
            try:
                await duty()
                self._outages.works(part)
                if self._reached_since is None:
                    self._reached_since = time.monotonic()
            except Exception as error:
                self._failed(part, error)
                longest = RETRY
            await asyncio.sleep(min(pause(), longest))

    def _failed(self, part: str, error: Exception) -> None:
        if isinstance(error, DutifulError):
            self._reached_since = None
        self._outages.failed(part, error, log)

    def _may_rescue(self) -> bool:
        """Not after a break, until workers that live have had time to renew: an outage is not their death."""
        if self._reached_since is None:
            return False
        margin = min(self._config.renewal, LONGEST_MARGIN)
        return time.monotonic() - self._reached_since > self._config.renewal + margin

    # --- shutdown

    async def _drain(self) -> None:
        if self._running:
            aborted = asyncio.create_task(self._aborting.wait())
            ended = asyncio.create_task(asyncio.wait(list(self._running)))
            grace = self._config.grace.total_seconds()
            await asyncio.wait({aborted, ended}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            aborted.cancel()
            ended.cancel()
        if not self._running:
            return
        left = dict(self._running)
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=CLEANUP)
        # A job given back runs again as if for the first time, which is not true of one whose provider was called.
        called = [held.job for held in left.values() if held.provider_called]
        for job in called:
            log.warning(
                "job %s (%s): its provider was called, and may have accepted; it is run again when its lease has ended",
                ids.public(job.job_id),
                job.kind,
            )
        await asyncio.gather(*(self._give_back(held.job) for held in left.values() if not held.provider_called))
        raise ShutdownTimeout(
            f"{len(left)} jobs were still running after the grace period: {len(left) - len(called)} were given back, "
            f"{len(called)} have called their provider and are run again when their lease has ended"
        )

    async def _give_back(self, job: ChannelJob) -> None:
        try:
            await asyncio.wait_for(self._database.release(job), CLEANUP)
        except (DutifulError, TimeoutError) as error:
            log.warning("job %s is taken over when its lease ends: %s", ids.public(job.job_id), error)
