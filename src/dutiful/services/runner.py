"""Runs the services while this process leads; one cheap survey a second says what there is to do."""

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from dutiful.core.errors import DutifulError
from dutiful.delivery import Delivery, Lines
from dutiful.duties import Duties, ScheduleRecord, Survey
from dutiful.payload_rule import PayloadRule
from dutiful.service import Closing, Service
from dutiful.services.rescuer import Rescuer
from dutiful.services.webhooks import Poster

log = logging.getLogger("dutiful.services")
LEADER_TTL = timedelta(seconds=8)
LEADER_LOOK = 1.0
FOLLOWER_LOOK = 2.5
SOONEST = 0.01
TICK_LIMIT = 15.0
REPEAT = 60.0  # before a service says again what it has just said


class Runner:
    """`services` are ticked one after the other; `slow` ones in tasks of their own, so that nobody waits for them."""

    def __init__(
        self,
        duties: Duties,
        services: Sequence[Service],
        slow: Sequence[Service],
        delivery: Delivery,
        schedules: Callable[[datetime], Sequence[ScheduleRecord]],
        rescuer: Rescuer,
        poster: Poster,
        rules: Mapping[str, PayloadRule | None],
    ) -> None:
        self._duties = duties
        self._services = services
        self._slow = slow
        self._delivery = delivery
        self._schedules = schedules
        self._rescuer = rescuer
        self._poster = poster
        self._rules = rules
        self._tasks: dict[str, asyncio.Task[Lines | None]] = {}
        self._said: dict[str, tuple[str, float]] = {}  # by service: its last trouble, and when
        self._wake = asyncio.Event()
        self._expected: float | None = None  # when a job of ours is due, on the monotonic clock
        self.leading = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(service.name for service in (*self._services, *self._slow))

    async def recover(self) -> None:
        await self._poster.declare()
        await self._duties.put_rules(self._rules)
        await self._rescuer.recover()

    async def close(self, patience: float) -> None:
        closing = [service for service in (*self._services, *self._slow) if isinstance(service, Closing)]
        for service in closing:
            try:
                await service.close(patience)
            except Exception:
                log.exception("%s could not be brought to its end", type(service).__name__.lower())

    async def run(self, worker_id: UUID, moved: Callable[[Lines], None]) -> None:
        try:
            await self._duties.put_schedules(self._schedules(datetime.now(UTC)))
            while True:
                await self._sleep(await self.once(worker_id, moved))
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self._resign(worker_id)

    async def _resign(self, worker_id: UUID) -> None:
        """So that another one leads at once, while this process still brings its running jobs to an end."""
        self.leading = False
        with contextlib.suppress(DutifulError, TimeoutError):  # then its term runs out by itself
            await asyncio.wait_for(self._duties.resign(worker_id), 1)

    async def once(self, worker_id: UUID, moved: Callable[[Lines], None]) -> float:
        """Survey, serve if we lead, and say how long nothing is due."""
        due = self._expected is not None and self._expected <= time.monotonic()
        if due:
            self._expected = None
        survey = await self._duties.survey(worker_id, LEADER_TTL)
        self.leading = survey.leading
        if not survey.leading:
            if due:
                # Any worker may promote: the leader may not know yet that a job of ours is due.
                self._say(moved, (await self._duties.promote(1_000)).lines or None)
            await self._tick(self._poster, survey)
            return FOLLOWER_LOOK
        busy = False
        for service in self._services:
            lines = await self._tick(service, survey, TICK_LIMIT)
            busy = busy or lines is not None
            self._say(moved, lines)
        for service in self._slow:
            running = self._tasks.get(service.name)
            if running is None or running.done():
                self._tasks[service.name] = asyncio.create_task(self._tick(service, survey))
        if busy:
            return SOONEST  # what was due is done; look at once when the next is
        known = (survey.next_run_at, survey.next_fire_at, survey.next_post_at)
        times = [t for t in known if t is not None and t > survey.now]
        soonest = min((t - survey.now).total_seconds() for t in times) if times else LEADER_LOOK
        return min(LEADER_LOOK, max(SOONEST, soonest))

    async def _tick(self, service: Service, survey: Survey, limit: float | None = None) -> Lines | None:
        """One service that hangs must not keep the others from their duties."""
        try:
            async with asyncio.timeout(limit):
                return await service.tick(survey)
        except TimeoutError:
            log.warning(
                "%s took longer than %.0f s and was interrupted; it goes on at its next turn", service.name, limit
            )
        except Exception as error:
            self._complain(service.name, error)
        return None

    def _complain(self, name: str, error: Exception) -> None:
        """The same trouble comes at every tick until somebody mends it, and is not to fill the log meanwhile."""
        trouble, moment = "".join(traceback.format_exception_only(error)), time.monotonic()
        last, at = self._said.get(name, ("", 0.0))
        if trouble == last and moment - at < REPEAT:
            return
        self._said[name] = trouble, moment
        if isinstance(error, DutifulError):
            log.warning("%s: %s", name, error)
        else:
            log.error("%s met an error and goes on", name, exc_info=error)

    def _say(self, moved: Callable[[Lines], None], lines: Lines | None) -> None:
        if lines is not None:
            moved(lines)
            self._delivery.hint(lines)

    async def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := min(end, self._expected or end) - time.monotonic()) > 0:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), left)

    def expect(self, delay: timedelta) -> None:
        due = time.monotonic() + delay.total_seconds()
        if self._expected is None or due < self._expected:
            self._expected = due
            self._wake.set()

    def ended(self, webhook: bool) -> None:
        if self.leading and (webhook or self._poster.hears_of_jobs):
            self._poster.wake()
