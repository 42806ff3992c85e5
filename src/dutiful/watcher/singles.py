"""Who watches which job, and what each has been told of it."""

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from uuid import UUID

from dutiful.core.event import Event, JobView, facts
from dutiful.core.job import JobRecord
from dutiful.watcher.seen import farewell
from dutiful.watcher.stream import EventStream
from dutiful.watching import Tombstone

# A job's tombstone is told of after the app's on_delete; nobody waits longer than this for one that may never come.
PATIENCE = 30.0
Audience = Mapping[UUID, tuple[EventStream, ...]]


class Singles:
    def __init__(self) -> None:
        self._told: dict[UUID, dict[EventStream, frozenset[str]]] = {}
        self._jobs: dict[EventStream, set[UUID]] = {}
        self._last: dict[UUID, JobRecord] = {}
        self._missing: dict[UUID, float] = {}  # since when, on the monotonic clock

    @property
    def streams(self) -> set[EventStream]:
        return set(self._jobs)

    def add(self, stream: EventStream, view: JobView) -> None:
        """From the next look on, tell it what the view does not show yet."""
        self._told.setdefault(view.job.id, {})[stream] = frozenset(event.key for event in facts(view))
        self._jobs.setdefault(stream, set()).add(view.job.id)
        self._last[view.job.id] = view.job

    def remove(self, stream: EventStream) -> None:
        for job_id in self._jobs.pop(stream, set()):
            self._drop(job_id, stream)

    def audience(self) -> Audience:
        """Who watches what at this moment: a look that begins now knows more than any of them."""
        return {job_id: tuple(streams) for job_id, streams in self._told.items()}

    def missing(self, audience: Audience, views: Mapping[UUID, JobView]) -> set[UUID]:
        """Watched jobs that are no longer there."""
        gone = audience.keys() - views.keys()
        self._missing = {job_id: self._missing.get(job_id, time.monotonic()) for job_id in gone}
        return gone

    def news(
        self, audience: Audience, views: Mapping[UUID, JobView], graves: Mapping[UUID, Tombstone]
    ) -> Iterator[tuple[EventStream, Event]]:
        """What each has not been told before; from now on it counts as told."""
        for job_id, streams in audience.items():
            view = views.get(job_id)
            events = facts(view) if view is not None else self._end(job_id, graves)
            keys = frozenset(event.key for event in events)
            for stream in streams:
                seen = self._told.get(job_id, {}).get(stream)
                if seen is None:  # it has left while we looked
                    continue
                for event in events:
                    if event.key not in seen:
                        yield stream, event
                if view is not None:
                    self._told[job_id][stream], self._last[job_id] = keys, view.job
                elif events:
                    self._jobs[stream].discard(job_id)
                    self._drop(job_id, stream)

    def bereft(self) -> list[EventStream]:
        """Those of whose jobs none is left."""
        return [stream for stream, jobs in self._jobs.items() if not jobs]

    def _end(self, job_id: UUID, graves: Mapping[UUID, Tombstone]) -> list[Event]:
        if job_id in graves:
            return farewell(graves[job_id])
        if job_id not in self._last or time.monotonic() - self._missing.get(job_id, time.monotonic()) < PATIENCE:
            return []
        job, now = self._last[job_id], datetime.now(UTC)
        unmarked = Tombstone(
            job_id=job_id,
            kind=job.kind,
            queue=job.queue,
            tenant=job.tenant,
            correlation_id=job.correlation_id,
            deleted_at=now,
            told_at=now,
        )
        return farewell(unmarked)

    def _drop(self, job_id: UUID, stream: EventStream) -> None:
        streams = self._told.get(job_id, {})
        streams.pop(stream, None)
        if not streams:
            for table in (self._told, self._last, self._missing):
                table.pop(job_id, None)
