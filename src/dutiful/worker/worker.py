"""The life of a worker: assemble, start, run, drain, sign off."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, closing
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from dutiful.context import CURRENT
from dutiful.core.duration import brief
from dutiful.core.errors import ShutdownTimeout, StoreAway
from dutiful.core.outcome import Released
from dutiful.observe.logs import WORKER
from dutiful.observe.outage import OutageLog
from dutiful.worker.assembly import WorkerParts, assemble
from dutiful.worker.config import WorkerConfig
from dutiful.worker.counters import Timing
from dutiful.worker.executor.batch import BatchAttempt
from dutiful.worker.executor.context import AttemptContext
from dutiful.worker.executor.outcomes import settlement_without_handler
from dutiful.worker.lanes.lane import Lane
from dutiful.worker.lingering import Lingering, SlotTasks
from dutiful.worker.settler import Settler
from dutiful.worker.slots import Slots
from dutiful.worker.startup import StartLimit

log = logging.getLogger("dutiful.worker")
opening = logging.getLogger("dutiful.startup")  # each step of a start, in its order
TICK = 0.1
CLEANUP_SECONDS = 5.0  # how long interrupted handlers may take to clean up
Tasks = list["asyncio.Task[None]"]


class Worker:
    def __init__(self, config: WorkerConfig) -> None:
        self.id = config.worker_id
        self._config = config
        self._maintenance = config.maintenance
        self._slots = Slots()
        self._grace = config.settings.grace
        self._cleanup = CLEANUP_SECONDS
        self.stopping = self._stopping = asyncio.Event()  # claims no more
        self._aborting = asyncio.Event()
        self.lanes: list[Lane] = []
        self.started = asyncio.Event()
        self._lingering: Lingering | None = None
        self.replaced = False  # it has stopped because handlers linger in it

    def stop(self, grace: timedelta | None = None) -> None:
        """Claims no more, finishes running jobs within the grace period (of the settings, unless given), then ends."""
        self._grace = self._grace if grace is None else grace
        self._stopping.set()

    def abort(self, cleanup: float = CLEANUP_SECONDS) -> None:
        """Interrupts running jobs, gives handlers `cleanup` seconds, releases the jobs, and ends."""
        self._cleanup = cleanup
        self._stopping.set()
        self._aborting.set()

    def cancel(self, job_id: UUID) -> None:
        """Stops this job at once if it runs here, because its cancellation is stored."""
        self._slots.cancel(job_id)
        if self._lingering is not None:
            self._lingering.check()  # at once, if the grace period is 0

    def thread_left(self, thread: "Future[Any]") -> None:
        """Called with a thread of the event loop whose caller was cancelled, in the caller's context."""
        context = CURRENT.get(None)
        if self._lingering is None or not isinstance(context, (AttemptContext, BatchAttempt)):
            return
        if (lingers := context.left_thread(thread)) is not None:
            self._lingering.note(lingers)

    async def run(self, limit: StartLimit | None = None) -> None:
        """Works until stop() or abort(); ShutdownTimeout if handlers were interrupted or outcomes not stored.

        While it starts, it waits for a store that is away within `limit`, or not at all; for another transaction's lock
        in any case.
        """
        async with AsyncExitStack() as stack:
            # Log records of every task and thread started from here on name this worker.
            stack.callback(WORKER.reset, WORKER.set(str(self.id)))
            parts = self._parts = await assemble(stack, self._config, self._slots)
            self.lanes = parts.lanes
            try:
                start = limit or StartLimit(timedelta(0), busy=self._config.settings.startup_timeout)
                if await start.wait_for(partial(self._start, parts), self._config.outages, self._stopping):
                    with closing(parts.renewal):
                        await self._work(parts)
            finally:
                await parts.heartbeat.sign_off()

    async def _start(self, parts: WorkerParts) -> bool:
        """May be called again after an error of the store; True when it has succeeded."""
        await parts.heartbeat.beat()
        await parts.mode_check.check_at_start()
        # By every worker, also one that never leads: it releases jobs that a breaker rejects, and would claim them
        # again at once while the store does not know that their kind has to wait.
        await parts.declaration.declare()
        await self._config.store.limits.put(self._config.limits)
        if self._maintenance is not None:
            await self._maintenance.prepare()
            opening.debug("recovered")
        await parts.poller.peek()  # before the first claim, which is to go by priority
        parts.renewal.start()
        return True

    async def _work(self, parts: WorkerParts) -> None:
        lanes, settler, poller, outages = parts.lanes, parts.settler, parts.poller, self._config.outages
        settling = asyncio.create_task(settler.run(), name="dutiful settler")
        services = [asyncio.create_task(_run_forever(self._services, outages))] if self._maintenance is not None else []
        opening.debug("services: %s", ", ".join(self._maintenance.names) if self._maintenance is not None else "none")
        slots = SlotTasks()
        for lane in lanes:
            for slot in lane.slots:
                slots.start(lane, slot)
        self._lingering = Lingering(self._config, self._slots, lanes, settler, slots, self._on_pile)
        opening.debug("first claim")
        fetching = [asyncio.create_task(lane.run_fetcher(), name=f"dutiful lane {lane.name}") for lane in lanes]
        background = (poller.listen, poller.look, poller.poll, poller.walk, parts.heartbeat.heartbeat)
        loops = [asyncio.create_task(_run_forever(loop, outages)) for loop in background]
        loops.append(asyncio.create_task(self._tick(parts)))
        self.started.set()
        stopping: asyncio.Task[Any] = asyncio.create_task(self._stopping.wait())
        interrupted = unsettled = 0
        try:
            # A slot or lane that ends by itself is a bug: end with its error rather than idle.
            watched = [stopping, settling, slots.ended, *fetching]
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()
            for lane in lanes:
                lane.close()
            parts.declaration.withdraw()
            # The services first, so that another worker leads.
            await _cancel_all(services)
            interrupted = await self._drain(settler, slots, fetching)
        except BaseException:
            for lane in lanes:
                lane.close()
            # A claim under way could take what is released here, and no worker would know of it.
            await asyncio.wait(fetching, timeout=CLEANUP_SECONDS)
            # Jobs without an outcome are not at fault, so they spend no attempt; the one whose slot has ended has one.
            settler.release_rest()
            raise
        finally:
            self._slots.close()
            await _cancel_all([stopping, *slots.remaining(), *fetching, *loops, *services])
            try:
                unsettled = await _settle_rest(settler, settling)
            finally:
                self._config.delivery.notify_watchers()
                if self._maintenance is not None:
                    # A webhook post under way may take its full timeout, unless the worker is aborted.
                    usual = self._config.settings.webhook_timeout.total_seconds()
                    await self._maintenance.close(self._cleanup if self._aborting.is_set() else usual)
        if problems := self._problems(interrupted, unsettled):
            raise ShutdownTimeout("; ".join(problems))

    async def _tick(self, parts: WorkerParts) -> None:
        """One timer for all slots and buffers, instead of one each."""
        seen = 0
        while True:
            await asyncio.sleep(TICK)
            moved = parts.settler.settled_count + sum(lane.taken for lane in parts.lanes)
            if moved != seen:
                seen = moved
                self._config.delivery.notify_watchers()
            for lane in parts.lanes:
                lane.release_unstarted()
            parts.heartbeat.sample_busy()
            self._slots.stop_overdue()
            if self._lingering is not None:
                self._lingering.check()

    def _on_pile(self) -> None:
        if self._config.supervised:
            log.error("this worker stops, so that its supervisor starts another in its place")
            self.replaced = True
            self.stop()

    async def _services(self) -> None:
        assert self._maintenance is not None
        await self._maintenance.run(self.id, self._parts.poller.on_jobs_moved)

    async def _drain(self, settler: Settler, running: SlotTasks, fetching: Tasks) -> int:
        """Lets running jobs finish; returns how many took longer than the grace period, and were interrupted."""
        all_ended = asyncio.create_task(running.wait())
        aborting = asyncio.create_task(self._aborting.wait())
        both: list[asyncio.Task[Any]] = [all_ended, aborting]
        await asyncio.wait(both, timeout=self._grace.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
        aborting.cancel()
        interrupted = self._slots.stop_all()
        if interrupted:
            await asyncio.wait([all_ended], timeout=self._cleanup)
        all_ended.cancel()
        for slot in interrupted:
            if slot.claim is not None:  # its handler has not stopped; another worker gets the job all the same
                slot.abandoned = True
                settlement = settlement_without_handler(slot, Released())
                for claim in slot.claims:
                    settler.settle(claim, settlement, Timing(0.0, slot.elapsed.total_seconds()))
        # A claim under way is waited for: cancelled, it would hold jobs that no worker knows of.
        await asyncio.wait(fetching, timeout=CLEANUP_SECONDS)
        return len(interrupted)

    def _problems(self, interrupted: int, unsettled: int) -> list[str]:
        problems = []
        if interrupted:
            when = "at once, as asked" if self._aborting.is_set() else f"after the grace of {brief(self._grace)}"
            fate = "" if unsettled else ", and released"  # a release that could not be stored has not happened
            problems.append(f"{_count(interrupted, 'job was', 'jobs were')} interrupted {when}{fate}")
        if unsettled:
            outcomes = _count(unsettled, "outcome", "outcomes")
            problems.append(f"{outcomes} could not be stored: the jobs are run again when their leases end")
        return problems


async def _settle_rest(settler: Settler, settling: "asyncio.Task[None]") -> int:
    """Waits until the settler has stored all outcomes; returns how many it could not."""
    settler.close()
    try:
        await asyncio.wait_for(settling, CLEANUP_SECONDS)
    except TimeoutError:
        outcomes = _count(len(settler.unsettled), "outcome", "outcomes")
        log.warning("%s could not be stored in time: the jobs are run again when their leases end", outcomes)
        return len(settler.unsettled)
    return 0


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


async def _run_forever(loop: Callable[[], Coroutine[Any, Any, None]], outages: OutageLog) -> None:
    """Runs a loop, and starts it again after an error, which is logged."""
    pause = 0.1
    while True:
        began = time.monotonic()
        try:
            await loop()
        except Exception as error:
            if not isinstance(error, StoreAway):  # which the loop itself has reported
                outages.failed(loop.__name__.strip("_"), error)
        pause = 0.1 if time.monotonic() - began > 5 else min(pause * 2, 2.0)
        await asyncio.sleep(pause)


async def _cancel_all(tasks: Sequence["asyncio.Task[Any]"]) -> None:
    """Cancels tasks and waits, but not for ever, because a task may catch its cancellation."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=2)


__all__ = ["Worker"]
