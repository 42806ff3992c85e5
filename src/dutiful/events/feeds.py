"""Feeds: the streams of subscribers, and which events were sent to each."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.core.events import Event, JobView, events_of
from dutiful.events.history import LATE, PAGE, SeenEvents, deletion_events
from dutiful.events.items import Gap
from dutiful.events.stream import EventStream
from dutiful.store.events import EventStore, JobChanges, Tombstone

# After this many truncated polls in a row the feed skips ahead and sends a gap, because it would lag for ever.
MAX_TRUNCATED = 10
# A transaction that stays open for longer is not waited for: its changes are sent when the job changes again.
MAX_TRANSACTION = timedelta(seconds=30)
# Events that one poll sends, summed over all streams. Sending costs more than reading, and in a worker's process jobs
# wait meanwhile; above it the next poll reads a smaller page, and what cannot be sent in time becomes a gap.
FAN_OUT, MIN_PAGE = 20_000, 25
# Tombstones become visible after the app's on_delete; a job that has none by then counts as deleted.
TOMBSTONE_WAIT = 30.0
_LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)
Subscribers = Mapping[UUID, tuple[EventStream, ...]]


class ChangeBatch(msgspec.Struct, frozen=True):
    """What one poll found, for the streams that were there when it began."""

    changes: JobChanges
    seen: SeenEvents
    unseen: dict[UUID, frozenset[str]]
    cutoff: datetime  # earlier events of an unknown job are not sent
    streams: set[EventStream]
    joining: dict[EventStream, "asyncio.Future[datetime]"]


class AllJobsFeed:
    """Streams that get events of any job. All of them are at the same position."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._joined: set[EventStream] = set()
        self._joining: dict[EventStream, asyncio.Future[datetime]] = {}
        self._seen = SeenEvents()
        self._since: datetime | None = None  # where the next poll begins
        self._began = self._latest = _LONG_AGO
        self._truncated = 0
        self._page = PAGE

    @property
    def streams(self) -> set[EventStream]:
        return self._joined | self._joining.keys()

    def add(self, stream: EventStream) -> "asyncio.Future[datetime]":
        """Adds a stream after the next poll, because what that poll finds happened before.

        The future's result is a moment: no event that the stream gets happened earlier.
        """
        self._joining[stream] = asyncio.get_running_loop().create_future()
        return self._joining[stream]

    def remove(self, stream: EventStream) -> None:
        self._joined.discard(stream)
        if joined := self._joining.pop(stream, None):
            joined.cancel()
        if not self.streams:
            self._since, self._truncated, self._seen = None, 0, SeenEvents()

    async def poll(self) -> ChangeBatch | None:
        """Reads what changed since the last poll; None without streams."""
        # A stream added from now on waits for another poll: this one may miss what has happened by then.
        streams, joining, seen = set(self._joined), dict(self._joining), self._seen
        if not streams and not joining:
            return None
        if self._since is None:
            # A little earlier, so that events from before it began are known as such when they become visible.
            self._since = self._began = await self._now() - LATE
        since = self._since
        found = await self._store.changes_since(since, self._page)
        return ChangeBatch(found, seen, seen.unseen(found.changes), max(self._began, since - LATE), streams, joining)

    def new_events(self, batch: ChangeBatch, views: Mapping[UUID, JobView]) -> tuple[list[Event], set[EventStream]]:
        """Returns events not sent before, which count as sent from now on, and the streams to send them to."""
        if batch.seen is not self._seen:  # all streams have left since the poll
            return [], set()
        events = batch.seen.new_events(batch.unseen, views, batch.changes.tombstones, batch.cutoff)
        self._latest = max([self._latest, *(event.at for event in events)])
        return events, batch.streams & self._joined

    def adjust_page(self, sent: int) -> None:
        """Sizes the next page by the number of events sent, each counted once a stream."""
        if sent > FAN_OUT:
            self._page = max(MIN_PAGE, self._page // 2)
        elif sent < FAN_OUT // 4:
            self._page = min(PAGE, self._page * 2)

    async def advance(self, batch: ChangeBatch) -> None:
        """Moves on to where the next poll begins, and lets streams join that waited for this one."""
        if batch.seen is not self._seen:
            return
        self._since = max(batch.changes.until, self._began, self._latest - MAX_TRANSACTION)
        self._truncated = self._truncated + 1 if batch.changes.more else 0
        if self._truncated > MAX_TRUNCATED:
            self._since = max(self._since, await self._now())
            self._truncated = 0
            for stream in self._joined:
                stream.add_gap(Gap(since=batch.changes.until, until=self._since))
        if self._truncated == 0:
            for stream, joined in batch.joining.items():
                if self._joining.pop(stream, None) is not None and not joined.done():
                    self._joined.add(stream)
                    joined.set_result(max(self._began, self._since - LATE))

    def fail_joining(self, error: Exception) -> None:
        """Raises the error in callers that wait to join; streams that have joined just wait longer."""
        joining, self._joining = self._joining, {}
        for joined in joining.values():
            if not joined.done():
                joined.set_exception(error)

    async def _now(self) -> datetime:
        return (await self._store.changes_since(None, 1)).until


class _Sent(msgspec.Struct, frozen=True):
    """What a stream has been sent of a job: the keys of events, and the job's mark, read before them."""

    keys: frozenset[str]
    mark: str | None = None


class SingleJobsFeed:
    """Streams that get events of given jobs."""

    def __init__(self) -> None:
        self._sent: dict[UUID, dict[EventStream, _Sent]] = {}
        self._jobs: dict[EventStream, set[UUID]] = {}
        self._gone: dict[UUID, Tombstone] = {}  # as it will be if the job has none
        self._missing: dict[UUID, float] = {}  # since when, on the monotonic clock

    @property
    def streams(self) -> set[EventStream]:
        return set(self._jobs)

    def add(self, stream: EventStream, view: JobView) -> None:
        """Adds a stream; from the next poll on, it gets the events that the view does not show yet."""
        job = view.job
        self._sent.setdefault(job.id, {})[stream] = _Sent(frozenset(event.key for event in events_of(view)))
        self._jobs.setdefault(stream, set()).add(job.id)
        self._gone[job.id] = Tombstone(
            job_id=job.id,
            kind=job.kind,
            queue=job.queue,
            tenant=job.tenant,
            correlation_id=job.correlation_id,
            deleted_at=job.created_at,
            sent_at=job.created_at,
        )

    def remove(self, stream: EventStream) -> None:
        for job_id in self._jobs.pop(stream, set()):
            self._drop(job_id, stream)

    def subscribers(self) -> Subscribers:
        """The streams of each job, copied before a poll: those that are added later have newer views."""
        return {job_id: tuple(streams) for job_id, streams in self._sent.items()}

    def changed(self, subscribers: Subscribers, marks: Mapping[UUID, str]) -> set[UUID]:
        """Returns the jobs that have another mark than when a stream was sent their events."""
        return {
            job_id
            for job_id, mark in marks.items()
            for sent in map(self._sent.get(job_id, {}).get, subscribers[job_id])
            if sent is not None and sent.mark != mark
        }

    def missing(self, subscribers: Subscribers, marks: Mapping[UUID, str]) -> set[UUID]:
        """Returns the jobs that no longer exist."""
        gone = subscribers.keys() - marks.keys()
        self._missing = {job_id: self._missing.get(job_id, time.monotonic()) for job_id in gone}
        return gone

    def new_events(
        self,
        subscribers: Subscribers,
        marks: Mapping[UUID, str],
        views: Mapping[UUID, JobView],
        tombstones: Mapping[UUID, Tombstone],
    ) -> Iterator[tuple[EventStream, Event]]:
        """Yields for each stream the events not sent to it before, which count as sent from now on."""
        for job_id, streams in subscribers.items():
            view = views.get(job_id)
            if view is None and job_id in marks:  # not changed, or deleted since its mark was read
                continue
            events = events_of(view) if view is not None else self._deleted(job_id, tombstones)
            now = _Sent(frozenset(event.key for event in events), marks.get(job_id))
            for stream in streams:
                sent = self._sent.get(job_id, {}).get(stream)
                if sent is None:  # it left during the poll
                    continue
                for event in events:
                    if event.key not in sent.keys:
                        yield stream, event
                if view is not None:
                    self._sent[job_id][stream] = now
                elif events:
                    self._jobs[stream].discard(job_id)
                    self._drop(job_id, stream)

    def without_jobs(self) -> list[EventStream]:
        """Returns the streams whose jobs are all deleted."""
        return [stream for stream, jobs in self._jobs.items() if not jobs]

    def _deleted(self, job_id: UUID, tombstones: Mapping[UUID, Tombstone]) -> list[Event]:
        if job_id in tombstones:
            return deletion_events(tombstones[job_id])
        if job_id not in self._gone or time.monotonic() - self._missing.get(job_id, time.monotonic()) < TOMBSTONE_WAIT:
            return []
        now = datetime.now(UTC)
        return deletion_events(msgspec.structs.replace(self._gone[job_id], deleted_at=now, sent_at=now))

    def _drop(self, job_id: UUID, stream: EventStream) -> None:
        streams = self._sent.get(job_id, {})
        streams.pop(stream, None)
        if not streams:
            for table in (self._sent, self._gone, self._missing):
                table.pop(job_id, None)
