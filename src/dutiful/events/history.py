"""Turns job changes into events, each once: `SeenEvents` drops duplicates, `History` reads the time before a stream."""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec

from dutiful.core.events import Event, EventType, JobView, events_of
from dutiful.store.events import EventStore, JobChange, Tombstone

PAGE = 2_000
# How much later than its own time an event may become visible, besides what the store makes up for itself.
LATE = timedelta(seconds=2)
VIEW_BATCH = 500
# Bytes of a result that waits in memory with its event; a larger one is read when the reader is ready for it.
LARGEST = 8 * 1024
PAGE_BYTES = 4 * 1024 * 1024  # of all results of jobs that a page of history keeps for one stream
SEEN_LIMIT = 10_000


class _SeenJob(msgspec.Struct, frozen=True):
    marks: frozenset[str]
    keys: frozenset[str]
    latest: datetime


class SeenEvents:
    """Remembers which events of which jobs were sent.

    A poll returns what happened since a moment; of an unknown job, only events after that moment are sent. So a job may
    be dropped once its last event is older than that. Until then it is kept, however many there are.
    """

    def __init__(self, limit: int = SEEN_LIMIT) -> None:
        self._limit = limit
        self._jobs: OrderedDict[UUID, _SeenJob] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def unseen(self, changes: Iterable[JobChange]) -> dict[UUID, frozenset[str]]:
        """Returns the marks of each job that has a mark not seen before."""
        marks: defaultdict[UUID, set[str]] = defaultdict(set)
        for change in changes:
            marks[change.job_id].add(change.mark)
        return {
            job_id: frozenset(found)
            for job_id, found in marks.items()
            if (known := self._jobs.get(job_id)) is None or not found <= known.marks
        }

    def new_events(
        self,
        unseen: Mapping[UUID, frozenset[str]],
        views: Mapping[UUID, JobView],
        tombstones: Iterable[Tombstone],
        since: datetime,
    ) -> list[Event]:
        """Returns the events not returned before, in order, and remembers them."""
        events: list[Event] = []
        for job_id, marks in unseen.items():
            if job_id in views:
                events += self._remember(job_id, marks, events_of(views[job_id]), since)
        for tombstone in tombstones:
            events += self._remember(tombstone.job_id, frozenset(), deletion_events(tombstone), since)
        self._trim(since)
        return sorted(events, key=lambda event: event.at)  # stable: each job's own order stays

    def _remember(self, job_id: UUID, marks: frozenset[str], events: list[Event], since: datetime) -> list[Event]:
        known = self._jobs.pop(job_id, None)
        # Keys that the job no longer has, such as those of old progress, cannot come again.
        self._jobs[job_id] = _SeenJob(marks, frozenset(e.key for e in events), max(e.at for e in events))
        if known is None:
            return [event for event in events if event.at >= since]
        return [event for event in events if event.key not in known.keys]

    def _trim(self, since: datetime) -> None:
        while len(self._jobs) > self._limit:
            oldest = next(iter(self._jobs))
            if self._jobs[oldest].latest >= since:
                return
            del self._jobs[oldest]


class HistoryTurns:
    """Lets a few streams read a page of history, or a large result, at a time, and one of each tenant.

    The rest of the store's connections is for others. A tenant waits behind one page of each other tenant at most,
    because both locks are fair. Its results wait for none of its own pages, so that readers of history do not hold up
    those of live events.
    """

    def __init__(self, readers: int) -> None:
        self._readers = asyncio.Semaphore(readers)
        self._tenants: WeakValueDictionary[tuple[str, str | None], asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, tenant: str | None, what: str = "history") -> AsyncIterator[None]:
        lock = self._tenants.setdefault((what, tenant), asyncio.Lock())
        async with lock, self._readers:
            yield


class History:
    """Reads events since a moment, page by page; ordered within a job and within a page."""

    def __init__(self, store: EventStore, since: datetime, turns: HistoryTurns, tenant: str | None = None) -> None:
        self._store = store
        self._turns = turns
        self._tenant = tenant  # None: of all
        self._begin = self._since = since
        self._seen = SeenEvents()
        self._over = False

    async def page(self) -> list[Event] | None:
        """Returns the next events, perhaps none; None once the present is reached."""
        if self._over:
            return None
        async with self._turns.turn(self._tenant):
            changes = await self._store.changes_since(self._since, PAGE, tenant=self._tenant)
            unseen = self._seen.unseen(changes.changes)
            views = await load_views(self._store, unseen, min(LARGEST, PAGE_BYTES // max(len(unseen), 1)))
        events = self._seen.new_events(unseen, views, changes.tombstones, self.cutoff)
        self._since, self._over = changes.until, not changes.more
        return events

    @property
    def cutoff(self) -> datetime:
        """No event of the next page is earlier."""
        return max(self._begin, self._since - LATE)


async def load_views(store: EventStore, job_ids: Iterable[UUID], largest: int = LARGEST) -> dict[UUID, JobView]:
    """Loads the jobs that exist, without results of more than `largest` bytes."""
    return {view.job.id: view for batch in _batches(job_ids) for view in await store.views(batch, largest=largest)}


async def load_marks(store: EventStore, job_ids: Iterable[UUID]) -> dict[UUID, str]:
    """Loads the marks of the jobs that exist."""
    return {found.job_id: found.mark for batch in _batches(job_ids) for found in await store.marks(batch)}


def _batches(job_ids: Iterable[UUID]) -> list[list[UUID]]:
    """Small enough not to delay other statements."""
    wanted = list(job_ids)
    return [wanted[start : start + VIEW_BATCH] for start in range(0, len(wanted), VIEW_BATCH)]


def deletion_events(tombstone: Tombstone) -> list[Event]:
    """Returns the deletion, preceded by the stale mark, which no poll may have seen in time."""
    deleted = Event(
        type=EventType.DELETED,
        key=EventType.DELETED.value,
        at=tombstone.sent_at,
        job_id=tombstone.job_id,
        kind=tombstone.kind,
        queue=tombstone.queue,
        tenant=tombstone.tenant,
        correlation_id=tombstone.correlation_id,
        data={"deleted_at": tombstone.deleted_at},
    )
    if tombstone.stale_at is None:
        return [deleted]
    stale, data = EventType.STALE, {"stale_at": tombstone.stale_at}
    return [msgspec.structs.replace(deleted, type=stale, key=stale.value, at=tombstone.stale_at, data=data), deleted]
