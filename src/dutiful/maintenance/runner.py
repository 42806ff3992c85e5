"""Runs the maintenance services while this process leads; one cheap survey a second says what is due."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from dutiful.core.errors import DutifulError, StoreAway
from dutiful.delivery.base import EVERYWHERE, Delivery, QueueLevels
from dutiful.maintenance.deliveries import Redelivery
from dutiful.maintenance.dependents import Releaser
from dutiful.maintenance.limits import Admitter
from dutiful.maintenance.promotion import promote_due
from dutiful.maintenance.rescuer import Rescuer
from dutiful.maintenance.webhooks.sender import WebhookSender
from dutiful.observe.outage import OutageLog
from dutiful.payload.sql_rules import KindDefault, PayloadRule
from dutiful.store import Store
from dutiful.store.claims import QueueLevel
from dutiful.store.leadership import DEFAULT_PATIENCE, Patience, Survey
from dutiful.store.schedules import ScheduleRecord

log = logging.getLogger("dutiful.maintenance")
LEADER_TTL = timedelta(seconds=8)
LEADER_POLL = 1.0
FOLLOWER_POLL = 2.5
ASK_EVERY = 0.25  # seconds; hints may come a hundred times a second, to each worker of a large fleet
STEP_ASIDE = 0.5
MIN_PAUSE = 0.01
PROMOTING_AT_START = 5.0  # seconds, so that a worker starts in time beside any number of them
TICK_TIMEOUT = 15.0
PART = "maintenance"


class Service(Protocol):
    """One duty of the leader. It must be correct when two processes run it at once, as around a change of leader."""

    @property
    def name(self) -> str: ...

    async def tick(self, survey: Survey) -> QueueLevels | None:
        """Does what is due, in bounded steps; returns the queue levels that got jobs, None if none did."""


@runtime_checkable
class Closable(Protocol):
    """A service that has work in flight, which must end before the store is closed."""

    async def close(self, timeout: float) -> None:
        """Starts nothing more, and waits up to `timeout` seconds for what is in flight."""


class OnReady(Protocol):
    """Called with queue levels that got jobs, and those that may be below the floors of workers, if that is known."""

    def __call__(self, levels: QueueLevels, below: Sequence[QueueLevel] | None = None, /) -> None: ...


class MaintenanceRunner:
    """Ticks `services` one after the other, and `slow` ones in tasks of their own, so that none waits for them."""

    def __init__(
        self,
        store: Store,
        services: Sequence[Service],
        slow: Sequence[Service],
        delivery: Delivery,
        schedules: Callable[[datetime], Sequence[ScheduleRecord]],
        rescuer: Rescuer,
        webhooks: WebhookSender,
        rules: Mapping[str, PayloadRule | None],
        defaults: Sequence[KindDefault],
        patience: Patience = DEFAULT_PATIENCE,
        outages: OutageLog | None = None,
        *,
        followers: Sequence[Service] = (),
        admitter: Admitter | None = None,
        releaser: Releaser | None = None,
        redelivery: Redelivery | None = None,
    ) -> None:
        """`followers` are slow services that are also run where this process does not lead."""
        self._store = store
        self._services = services
        self._slow = slow
        self._followers = followers
        self._delivery = delivery
        self._schedules = schedules
        self._rescuer = rescuer
        self._webhooks = webhooks
        self._rules = rules
        self._defaults = defaults
        self._patience = patience
        self._outages = outages or OutageLog()
        self._releaser = releaser
        self._admitter = admitter  # if this worker has kinds with limits
        self._redelivery = redelivery  # if a broker delivers the jobs
        self._tasks: dict[str, asyncio.Task[QueueLevels | None]] = {}
        self._wake = asyncio.Event()
        self._wakes_at = 0.0
        self._next_due: float | None = None  # when a job of this worker is due, on the monotonic clock
        self._ask_at: float | None = None  # when to ask whether anybody leads
        self._asked_at = 0.0
        self.leading = False
        self.wants_jobs = webhooks.wants_jobs  # a declared webhook waits for the end of jobs

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(service.name for service in (*self._services, *self._slow))

    async def prepare(self) -> None:
        """Before the first claim: stores what the code declares, rescues jobs of workers known to be dead, promotes.

        What became due while no worker ran would else start behind younger jobs that were ready at once.
        """
        await self._webhooks.declare()
        await self._store.jobs.put_payload_rules(self._rules)
        await self._store.jobs.put_defaults(self._defaults)
        await self._rescuer.rescue_orphans()
        try:
            async with asyncio.timeout(2 * PROMOTING_AT_START):
                promoted = await promote_due(self._store, PROMOTING_AT_START)
        except StoreAway:
            raise
        except (DutifulError, TimeoutError) as error:
            # A worker that runs out of order is better than none; the leader promotes as well, and says what is wrong.
            self._outages.failed("promoter", error, log)
        else:
            if promoted:
                self._delivery.hint(EVERYWHERE, known_to=self)  # others may run, and it is not known that one leads

    async def close(self, timeout: float) -> None:
        """After run() has ended: waits for what services have in flight."""
        for service in (*self._services, *self._slow):
            if isinstance(service, Closable):
                try:
                    await service.close(timeout)
                except Exception:
                    log.exception("%s could not be closed", service.name)

    async def run(self, worker_id: UUID, on_ready: OnReady) -> None:
        """Runs until cancelled; calls `on_ready` with queue levels that got jobs."""
        beside = [asyncio.create_task(one) for one in self._woken(on_ready)]
        try:
            if schedules := self._schedules(datetime.now(UTC)):  # without any, nothing is asked of the store
                with self._outages.watching(PART):
                    await self._store.schedules.put(schedules)
            while True:
                await self._sleep(await self.run_once(worker_id, on_ready))
                if self.leading and self._stalled():
                    # A handler blocks the event loop. Each gap between surveys defers rescues, so another should lead.
                    await self._resign(worker_id)
                    await asyncio.sleep(STEP_ASIDE)
        finally:
            running = [*self._tasks.values(), *beside]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self._resign(worker_id)

    def _woken(self, on_ready: OnReady) -> Iterator[Coroutine[Any, Any, None]]:
        """The services that also run when they are woken."""
        if self._admitter is not None:
            yield self._admitter.run(partial(self._hint_admitted, on_ready))
        if self._releaser is not None:
            yield self._releaser.run(partial(self._hint_released, on_ready))
        if self._redelivery is not None:
            yield self._redelivery.run(partial(self._hint, on_ready))

    async def _resign(self, worker_id: UUID) -> None:
        """Lets another process lead at once, while this one still finishes its running jobs."""
        led, self.leading = self.leading, False
        with contextlib.suppress(DutifulError, TimeoutError):  # then its term expires
            led = await asyncio.wait_for(self._store.leadership.resign(worker_id), 1)
        if led:
            self._delivery.hint(EVERYWHERE, known_to=self)  # others find that nobody leads

    async def run_once(self, worker_id: UUID, on_ready: Callable[[QueueLevels], None]) -> float:
        """Surveys, ticks the services if this process leads, and returns how long nothing is due."""
        due = self._next_due is not None and self._next_due <= time.monotonic()
        if due:
            self._next_due = None
        with self._outages.watching(PART):
            survey = await self._survey(worker_id)
        began_to_lead, self.leading = survey.leading and not self.leading, survey.leading
        if began_to_lead:
            self.hinted(EVERYWHERE)  # what came in between the survey and its answer was not for a leader yet
        if not survey.leading:
            if due:
                # Any worker may promote: the leader may not know yet that a job of this worker is due.
                with self._outages.watching(PART):
                    promoted = await self._store.promotion.promote(1_000)
                self._hint(on_ready, promoted.levels or None)
            await self._tick(self._webhooks, survey)
            self._start(self._followers, survey)
            return FOLLOWER_POLL
        busy = False
        leading = asyncio.create_task(self._keep_leading(worker_id))
        try:
            for service in self._services:
                levels = await self._tick(service, survey, TICK_TIMEOUT)
                busy = busy or levels is not None
                self._hint(on_ready, levels)
        finally:
            leading.cancel()
        self._start(self._slow, survey)
        if busy:
            return MIN_PAUSE  # what was due is done; survey at once for more
        known = (survey.next_run_at, survey.next_fire_at, survey.next_post_at)
        times = [t for t in known if t is not None and t > survey.now]
        soonest = min((t - survey.now).total_seconds() for t in times) if times else LEADER_POLL
        return min(LEADER_POLL, max(MIN_PAUSE, soonest))

    def _start(self, services: Sequence[Service], survey: Survey) -> None:
        """Ticks each of them in a task of its own, unless its last tick still runs."""
        for service in services:
            running = self._tasks.get(service.name)
            if running is None or running.done():
                self._tasks[service.name] = asyncio.create_task(self._tick(service, survey))

    async def _survey(self, worker_id: UUID) -> Survey:
        return await self._store.leadership.survey(worker_id, LEADER_TTL, self._patience)

    async def _keep_leading(self, worker_id: UUID) -> None:
        """Surveys while services take long, so that a slow one looks neither like a dead leader nor like an outage."""
        with contextlib.suppress(DutifulError):  # the next survey finds out
            while True:
                await asyncio.sleep(LEADER_POLL)
                await self._survey(worker_id)

    async def _tick(self, service: Service, survey: Survey, timeout: float | None = None) -> QueueLevels | None:
        """Ticks one service; one that hangs or fails does not keep the others from running."""
        try:
            async with asyncio.timeout(timeout):
                return await service.tick(survey)
        except TimeoutError:
            log.warning(
                "%s took longer than %.0f s and was interrupted; it continues at its next turn", service.name, timeout
            )
        except Exception as error:
            # An outage is one of all services: this one may never be run again here, if another process leads then.
            self._outages.failed(PART if isinstance(error, StoreAway) else service.name, error, log)
        return None

    def _hint(self, on_ready: Callable[[QueueLevels], None], levels: QueueLevels | None) -> None:
        if levels is not None:
            on_ready(levels)
            self.hinted(EVERYWHERE)
            # Jobs have the place at which they became due, so they may be below the floors of workers.
            self._delivery.hint(EVERYWHERE, known_to=self)

    def _hint_admitted(self, on_ready: OnReady, moved: Sequence[QueueLevel]) -> None:
        on_ready(EVERYWHERE, moved)
        self._hint_moved(EVERYWHERE)

    def _hint_released(self, on_ready: OnReady, levels: QueueLevels) -> None:
        on_ready(levels, ())  # they became due just now
        self._hint_moved(levels)

    def _hint_moved(self, levels: QueueLevels) -> None:
        """Hints others at jobs of which this worker's lanes know."""
        if self._redelivery is None:
            self._delivery.hint(levels, known_to=self)
            return
        if self.leading:
            self._redelivery.wake()
        self._delivery.hint(EVERYWHERE, known_to=self)  # without names, it wakes the redelivery of the leader

    async def _sleep(self, seconds: float) -> None:
        end = self._wakes_at = time.monotonic() + seconds
        while (left := min(end, self._next_due or end) - (now := time.monotonic())) > 0:
            if self._ask_at is not None:
                if self._ask_at <= now:
                    if await self._is_vacant():
                        return
                    continue
                left = min(left, self._ask_at - now)
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):  # wait_for may forget a cancellation
                    await self._wake.wait()

    async def _is_vacant(self) -> bool:
        """Asks before it surveys, because a survey locks a row, and any role that may connect can send hints."""
        self._ask_at, self._asked_at = None, time.monotonic()
        with contextlib.suppress(DutifulError):
            return await self._store.leadership.is_vacant()
        return False

    def _stalled(self) -> bool:
        """Whether this process woke so late that its pause looks like an outage of the store."""
        return time.monotonic() - self._wakes_at > self._patience.gap.total_seconds() / 2

    def job_scheduled(self, delay: timedelta) -> None:
        """Called when a job that is known to this worker is due after `delay`."""
        due = time.monotonic() + delay.total_seconds()
        if self._next_due is None or due < self._next_due:
            self._next_due = due
            self._wake.set()

    async def look_ahead(self) -> None:
        """Learns whether a job is due before the next survey; called when one may have been scheduled.

        Where this process does not lead, the leader may have resigned, which sends the same hint: it asks now and then.
        """
        if not self.leading:
            if self._ask_at is None:
                self._ask_at = max(time.monotonic(), self._asked_at + ASK_EVERY)
                self._wake.set()
            return
        with contextlib.suppress(DutifulError):
            wait = await self._store.promotion.next_due()
            if wait is not None and wait.total_seconds() < LEADER_POLL:
                self.job_scheduled(wait)

    def hinted(self, levels: QueueLevels) -> None:
        """Called when jobs may have come in: those of limited kinds wait until they are admitted.

        A hint of a client names its levels, and the client delivers its jobs. One that names none comes from a user's
        transaction, from SQL or from a service.
        """
        if self.leading and self._admitter is not None:
            self._admitter.wake()
        if self.leading and self._redelivery is not None and not levels:
            self._redelivery.wake()

    def slots_freed(self, jobs: Iterable[UUID]) -> None:
        """Jobs of limited kinds have ended or were given back by this worker."""
        if self._admitter is not None:
            self._admitter.wake(jobs)

    def awaited_ended(self, job_ids: Iterable[UUID]) -> None:
        """Jobs of this worker have ended that others were enqueued to wait for."""
        if self._releaser is not None:
            self._releaser.ended(job_ids)

    def jobs_ended(self) -> None:
        """Jobs of this worker have ended that a webhook waits for."""
        if self.leading:
            self._webhooks.wake()
