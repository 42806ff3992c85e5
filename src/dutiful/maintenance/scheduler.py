"""Fires schedules by compare-and-set of their next time, in the transaction that enqueues."""

import logging
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import msgspec

from dutiful.core.cron import CatchUp, due
from dutiful.core.errors import DataRefused, DutifulError, StoreBusy, UsageError
from dutiful.core.job import NewJob, Unique
from dutiful.declare.schedule import when_of
from dutiful.delivery.base import QueueLevels
from dutiful.observe.producer import Producer, producing
from dutiful.store import Store
from dutiful.store.leadership import Survey
from dutiful.store.schedules import Fired, ScheduleRecord

log = logging.getLogger("dutiful.maintenance")


class Scheduler:
    name = "scheduler"

    def __init__(self, store: Store, new_id: Callable[[], UUID], producer: Producer | None = None) -> None:
        self._store = store
        self._new_id = new_id
        self._producer = producer
        self._logged: dict[str, str] = {}  # by schedule: why it cannot fire

    async def tick(self, survey: Survey) -> QueueLevels | None:
        if survey.next_fire_at is None or survey.next_fire_at > survey.now:
            return None
        levels: set[tuple[str, int]] = set()
        busy: StoreBusy | None = None
        for record in await self._store.schedules.all():
            if record.enabled and record.next_at <= survey.now:
                try:
                    levels |= await self._fire(record, survey.now)
                    self._logged.pop(record.name, None)
                except StoreBusy as error:  # another transaction holds what this one needs; the others may fire
                    busy = error
                except Exception as error:
                    if isinstance(error, DutifulError) and not isinstance(error, (UsageError, DataRefused)):
                        raise  # the store's: it concerns all schedules
                    # A row may be of another release, or written by SQL; the others must fire all the same.
                    self._log_failure(record.name, f"{type(error).__name__}: {error}")
        if busy is not None:
            raise busy
        return frozenset(levels) or None

    def _log_failure(self, name: str, reason: str) -> None:
        """Logs once why a schedule cannot fire, because it is due at every tick until it is mended."""
        if self._logged.get(name) != reason:
            self._logged[name] = reason
            log.error("schedule %s cannot fire: %s", name, reason)

    async def _fire(self, record: ScheduleRecord, now: datetime) -> QueueLevels:
        firing = due(when_of(record), record.next_at, now, CatchUp(record.catch_up))
        jobs = [self._job(record, at) for at in firing.times]
        with producing(self._producer, jobs, new_trace=True) as span:
            fired = Fired(record.name, record.next_at, firing.next_at, span.jobs, now)
            span.void = not await self._store.schedules.fire(fired)  # another process was first
        return frozenset() if span.void else frozenset((job.queue, job.priority) for job in jobs)

    def _job(self, record: ScheduleRecord, at: datetime) -> NewJob:
        job, options = record.job, {**record.job.get("options", {}), "scheduled_for": at}
        payload, unique = job["payload"], None
        if "unique" in job:
            # Each firing is a job of its own, so it needs a key of its own.
            unique = msgspec.convert(job["unique"], Unique)
            unique = msgspec.structs.replace(unique, key=f"{unique.key}_{at:%Y%m%dT%H%M%S.%f}")
            payload = {**payload, job["unique"]["field"]: unique.key}
            options |= unique.as_options() | {"unique_field": job["unique"]["field"]}
        return NewJob(
            id=self._new_id(),
            kind=record.kind,
            queue=job["queue"],
            payload=msgspec.json.encode(payload).decode(),
            priority=job["priority"],
            max_attempts=job["max_attempts"],
            tenant=job.get("tenant"),
            correlation_id=job.get("correlation_id"),
            created_by=f"schedule {record.name}",
            options=msgspec.json.encode(options).decode(),
            unique=unique,
        )
