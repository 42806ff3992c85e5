"""The contract of what people and the client read."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import msgspec

from dutiful.core.job import AttemptRecord, JobRecord
from dutiful.core.states import State


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    scheduled: int
    ready: int
    blocked: int
    running: int
    oldest_ready_at: datetime | None = None
    paused: bool = False
    estimated: bool = False  # some of the counts are estimates


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts by state; those of final states are over `since` only, so that history never slows it.

    Exact up to 10,000 in a place, and of 10,000 that ended; beyond that, those that live are estimated, and those that
    ended are what workers have counted, which comes a few seconds late. Of a tenant, those that ended are sought among
    its newest 5,000 jobs. Dead letters are those that wait for review, 100,000 at most.
    """

    live: dict[str, int]
    finished: dict[str, int]
    since: datetime
    oldest_ready_at: datetime | None
    dead_letters: int
    workers: int
    estimated: bool = False  # some of the counts are estimates
    queues: list[QueueRecord] = []  # as they were at the same look


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list, newest first; `before` is the cursor that the page before gave.

    Times are those of the id, which is made when the job is asked for. `subject` matches jobs whose subject has all
    these fields; `text` is looked for in payload, subject and errors, without regard to case.
    """

    state: State | None = None
    kind: str | None = None
    kinds: Sequence[str] | None = None  # instead of `kind`: any of these
    queue: str | None = None
    tenant: str | None = None
    correlation_id: str | None = None
    subject: dict[str, Any] | None = None
    error_class: str | None = None
    text: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: UUID | None = None
    limit: int = 50


class JobPage(msgspec.Struct, frozen=True):
    """Some jobs, newest first. A page may hold fewer than asked for, even none, and not be the last: what no index
    serves is looked through in bounded stretches of time."""

    jobs: list[JobRecord]
    next: UUID | None = None  # the cursor of the next page; None: this was the last
    searched_since: datetime | None = None  # how far back this page has looked; None: to the very beginning

    def __iter__(self) -> Iterator[JobRecord]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, index: int) -> JobRecord:
        return self.jobs[index]


class QueryStore(Protocol):
    """What people and the client read."""

    async def job(self, job_id: UUID) -> JobRecord | None: ...

    async def outcomes(self, job_ids: Sequence[UUID]) -> list[JobRecord]:
        """Those of `job_ids` that are final; cheap enough to ask again and again."""

    async def jobs(self, filter: JobFilter) -> JobPage: ...

    async def attempts(self, job_id: UUID) -> list[AttemptRecord]: ...

    async def dependencies(self, job_id: UUID) -> list[JobRecord]: ...

    async def queues(self, *, tenant: str | None = None) -> list[QueueRecord]:
        """Those that have jobs or are paused; of a tenant, those where it has some."""

    async def stats(self, since: timedelta, *, tenant: str | None = None, now: datetime | None = None) -> Stats: ...

    async def clock(self, *, now: datetime | None = None) -> datetime:
        """The time by which it decides; people's machines may have another."""

    async def check_places(self) -> list[str]:
        """Every violation of the storage invariants, as a sentence; empty when there is none."""

    async def health(self) -> dict[str, Any]:
        """Facts for `doctor`: versions, sizes, settings, and what to worry about."""
