"""What has been told already, so that nothing is told twice; forgets what cannot come again."""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from uuid import UUID

import msgspec

from dutiful.core.event import Event, EventType, JobView, facts
from dutiful.watching import Stir, Tombstone

LIMIT = 10_000


class _Known(msgspec.Struct, frozen=True):
    marks: frozenset[str]
    keys: frozenset[str]
    latest: datetime


class Seen:
    """Jobs with the facts that were told of them.

    A look tells what happened since a moment, and of a job that is not known only that. So a job may be forgotten when
    its last fact is older: until then it is kept, however many there are.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._jobs: OrderedDict[UUID, _Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def fresh(self, stirs: Iterable[Stir]) -> dict[UUID, frozenset[str]]:
        """The jobs that are worth a look, with their marks."""
        marks: defaultdict[UUID, set[str]] = defaultdict(set)
        for stir in stirs:
            marks[stir.job_id].add(stir.mark)
        return {
            job_id: frozenset(found)
            for job_id, found in marks.items()
            if (known := self._jobs.get(job_id)) is None or not found <= known.marks
        }

    def news(
        self,
        fresh: Mapping[UUID, frozenset[str]],
        views: Mapping[UUID, JobView],
        tombstones: Iterable[Tombstone],
        since: datetime,
    ) -> list[Event]:
        """What was not told before, in order; from now on it counts as told."""
        events: list[Event] = []
        for job_id, marks in fresh.items():
            if job_id in views:
                events += self._note(job_id, marks, facts(views[job_id]), since)
        for tombstone in tombstones:
            events += self._note(tombstone.job_id, frozenset(), farewell(tombstone), since)
        self._forget(since)
        return sorted(events, key=lambda event: event.at)  # stable, so that each job's own order stays

    def _note(self, job_id: UUID, marks: frozenset[str], events: list[Event], since: datetime) -> list[Event]:
        known = self._jobs.pop(job_id, None)
        # Keys that the job no longer has, such as those of old progress, cannot come again.
        self._jobs[job_id] = _Known(marks, frozenset(e.key for e in events), max(e.at for e in events))
        if known is None:
            return [event for event in events if event.at >= since]
        return [event for event in events if event.key not in known.keys]

    def _forget(self, since: datetime) -> None:
        while len(self._jobs) > self._limit:
            oldest = next(iter(self._jobs))
            if self._jobs[oldest].latest >= since:
                return
            del self._jobs[oldest]


def farewell(gone: Tombstone) -> list[Event]:
    """That it was deleted; and that it had become stale, which nobody may have had the time to see."""
    deleted = Event(
        type=EventType.DELETED,
        key=EventType.DELETED.value,
        at=gone.told_at,
        job_id=gone.job_id,
        kind=gone.kind,
        queue=gone.queue,
        tenant=gone.tenant,
        correlation_id=gone.correlation_id,
        data={"deleted_at": gone.deleted_at},
    )
    if gone.stale_at is None:
        return [deleted]
    stale = EventType.STALE
    told = {"stale_at": gone.stale_at}
    return [msgspec.structs.replace(deleted, type=stale, key=stale.value, at=gone.stale_at, data=told), deleted]
