"""Runs the services while this process leads; one cheap survey a second says what there is to do."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from dutiful.core.errors import DutifulError
from dutiful.delivery import Delivery, Lines
from dutiful.service import Service
from dutiful.store import Duties, ScheduleRecord

log = logging.getLogger("dutiful.services")
LEADER_TTL = timedelta(seconds=8)
LEADER_LOOK = 1.0
FOLLOWER_LOOK = 2.5
SOONEST = 0.01


class Runner:
    def __init__(
        self,
        duties: Duties,
        services: Sequence[Service],
        delivery: Delivery,
        schedules: Callable[[datetime], Sequence[ScheduleRecord]],
    ) -> None:
        self._duties = duties
        self._services = services
        self._delivery = delivery
        self._schedules = schedules
        self._wake = asyncio.Event()
        self._next: float | None = None  # on the monotonic clock
        self.leading = False

    async def run(self, worker_id: UUID, moved: Callable[[Lines], None]) -> None:
        await self._duties.put_schedules(self._schedules(datetime.now(UTC)))
        while True:
            wait = await self.once(worker_id, moved)
            self._wake.clear()
            if self._next is not None:
                wait = min(wait, max(SOONEST, self._next - time.monotonic()))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait)

    async def once(self, worker_id: UUID, moved: Callable[[Lines], None]) -> float:
        """Survey, serve if we lead, and say how long nothing is due."""
        expected, self._next = self._next, None
        survey = await self._duties.survey(worker_id, LEADER_TTL)
        self.leading = survey.leading
        if not survey.leading:
            # The leader may not know that a job of ours is due: any worker may promote.
            if expected is not None and expected <= time.monotonic():
                self._say(moved, (await self._duties.promote(1_000)).lines)
            elif expected is not None:
                self._next = expected
            return FOLLOWER_LOOK
        busy = False
        for service in self._services:
            try:
                lines = await service.tick(survey)
                busy = busy or bool(lines)
                self._say(moved, lines)
            except DutifulError as error:
                log.warning("%s: %s", service.name, error)
            except Exception:
                log.exception("%s met an error and goes on", service.name)
        if busy:
            return SOONEST  # what was due is done; look at once when the next is
        times = [t for t in (survey.next_run_at, survey.next_fire_at) if t is not None and t > survey.now]
        soonest = min((t - survey.now).total_seconds() for t in times) if times else LEADER_LOOK
        return min(LEADER_LOOK, max(SOONEST, soonest))

    def _say(self, moved: Callable[[Lines], None], lines: Lines) -> None:
        if lines:
            known = frozenset(line for line in lines if line[0] != "*")
            moved(known)
            self._delivery.hint(known)

    def expect(self, delay: timedelta) -> None:
        due = time.monotonic() + delay.total_seconds()
        if self._next is None or due < self._next:
            self._next = due
            self._wake.set()
