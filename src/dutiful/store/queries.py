"""The contract of queries by operators and clients."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import msgspec

from dutiful.core.job import AttemptRecord, JobRecord
from dutiful.core.states import State

MOST_QUEUES = 1_000
"""So many queues are listed one by one."""


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True):
    queue: str  # OTHERS: this record adds up all other queues
    scheduled: int
    ready: int
    blocked: int
    running: int
    oldest_ready_at: datetime | None = None
    paused: bool = False
    estimated: bool = False  # some of the counts are estimates
    queues: int = 1  # how many it adds up; of estimates, at least


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts by state; those of final states cover only the time since `since`, so that history does not slow them.

    Exact up to 10,000 jobs in a live state, and 10,000 finished ones. Beyond that, live jobs are estimated; finished
    ones are those that workers have counted, a few seconds late. For a tenant, finished jobs are counted among its
    newest 5,000 jobs. Dead letters are those that wait for review, 100,000 at most.
    """

    live: dict[str, int]
    finished: dict[str, int]
    since: datetime
    oldest_ready_at: datetime | None
    dead_letters: int
    workers: int
    estimated: bool = False  # some of the counts are estimates
    queues: list[QueueRecord] = []  # of the same snapshot


class TenantCount(msgspec.Struct, frozen=True):
    """How many jobs of a tenant ended in a state lately; `tenant` is None for jobs without one."""

    tenant: str | None
    state: State
    jobs: int


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list, newest first; `before` is the previous page's cursor.

    Times are those of the id, which is made at the enqueue. `subject` matches jobs whose subject has all these fields;
    `text` is searched for in payload, subject and errors, ignoring case.
    """

    state: State | None = None
    kind: str | None = None
    kinds: Sequence[str] | None = None  # instead of `kind`: any of these
    queue: str | None = None
    tenant: str | None = None
    correlation_id: str | None = None
    subject: dict[str, Any] | None = None
    error_class: str | None = None
    phase: str | None = None  # that its progress names: the running one, or the last one of an ended job
    text: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: UUID | None = None
    limit: int = 50
    details: bool = True  # without, jobs have no payload, result and subject, and cost the same however large those are


DETAILS = ("payload", "result", "subject")  # of a JobRecord


class JobPage(msgspec.Struct, frozen=True):
    """Some jobs, newest first. A page may have fewer jobs than requested, even none, and not be the last: filters
    without an index search a bounded stretch of time."""

    jobs: list[JobRecord]
    next: UUID | None = None  # the cursor of the next page; None: this was the last
    searched_since: datetime | None = None  # how far back this page has searched; None: to the very beginning

    def __iter__(self) -> Iterator[JobRecord]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, index: int) -> JobRecord:
        return self.jobs[index]


class QueryStore(Protocol):
    """Queries by operators and clients."""

    async def job(self, job_id: UUID) -> JobRecord | None: ...

    async def records(self, job_ids: Sequence[UUID], *, details: bool = True) -> list[JobRecord]:
        """Those of these jobs that exist, newest first; without `details`, as in a list."""

    async def outcomes(self, job_ids: Sequence[UUID]) -> list[JobRecord]:
        """Those of `job_ids` that are final; cheap enough to be polled."""

    async def jobs(self, filter: JobFilter) -> JobPage: ...

    async def attempts(self, job_id: UUID) -> list[AttemptRecord]: ...

    async def dependencies(self, job_id: UUID) -> list[JobRecord]: ...

    async def queues(self, *, tenant: str | None = None, named: Collection[str] = ()) -> list[QueueRecord]:
        """Queues that have jobs or are paused; with `tenant`, those with jobs of the tenant.

        If there are more than MOST_QUEUES: those in `named`, then those with the most jobs; the last record has all
        others.
        """

    async def stats(
        self,
        since: timedelta,
        *,
        tenant: str | None = None,
        named: Collection[str] = (),
        now: datetime | None = None,
    ) -> Stats:
        """`named` as in `queues`."""

    async def ended_by_tenant(self, since: timedelta, *, now: datetime | None = None) -> list[TenantCount]:
        """Jobs that ended within `since`, by tenant and state; of at most 100,000, so that it stays fast."""

    async def clock(self, *, now: datetime | None = None) -> datetime:
        """The store's time, which may differ from that of this machine."""

    async def check_places(self) -> list[str]:
        """Every violation of the storage invariants, as a sentence; empty if there is none."""

    async def health(self) -> dict[str, Any]:
        """Facts for `doctor`: versions, sizes, settings, and problems."""
