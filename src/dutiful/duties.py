"""The contract of what services ask of a store. Each call is correct when two do it at once."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

import msgspec

from dutiful.core.job import JobRecord, Lapsed, NewJob
from dutiful.locking import LockMode
from dutiful.payload_rule import PayloadRule


class Survey(msgspec.Struct, frozen=True):
    """What there is to do for the services, in one cheap look."""

    leading: bool
    now: datetime
    next_run_at: datetime | None = None  # of the first scheduled job
    next_fire_at: datetime | None = None  # of the first schedule
    lapsed: bool = False
    blocked: bool = False
    next_post_at: datetime | None = None  # of the first webhook that waits
    reviewing: bool = False  # a bulk run goes on, or a dead letter is reprocessing
    unsealed: bool = False  # audit events wait for their seal


class Promotion(msgspec.Struct, frozen=True):
    moved: int
    lines: frozenset[tuple[str, int]] = frozenset()  # the (queue, priority) that got jobs
    next_run_at: datetime | None = None


class Retained(msgspec.Struct, frozen=True):
    """How many jobs one step of retention deleted, and where the next one begins (None: at the start)."""

    deleted: int
    cursor: UUID | None


class Parted(msgspec.Struct, frozen=True):
    """Finished jobs that one step of retention has marked stale or deleted, and where the next one begins."""

    jobs: list[JobRecord]
    cursor: UUID | None


class Tidings(msgspec.Struct, frozen=True):
    """A job that retention has marked stale or deleted, and that nobody has been told of yet."""

    job: JobRecord
    deleted: bool


class Process(StrEnum):
    """What becomes of a worker's process, as seen by whoever asks: from another host, nothing can be seen."""

    UNSEEN = "unseen"
    RUNS = "runs"
    STOPPED = "stopped"  # by a signal or a debugger: it does nothing, and may go on at any time
    ENDED = "ended"


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process, as the fleet sees it."""

    id: UUID
    name: str
    host: str
    pid: int
    started_at: datetime
    seen_at: datetime
    alive: bool = True  # its process is there; or, where that cannot be seen, it was heard of lately
    process: Process = Process.UNSEEN
    leading: bool = False
    # lane -> its slots, queues (["*"]: any), how many are busy, with which jobs, and how many it has claimed ahead:
    # {"slots": 3, "queues": ["fast"], "busy": 1, "jobs": ["0193…"], "ahead": 0}; "heard": the marks of
    # the pauses that all its claims heed, those under way included; "breakers": by kind, the one that it declares
    lanes: dict[str, Any]
    kinds: list[str]
    locks: LockMode | None = None  # None: it takes none, or does not say


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A cron schedule as stored; `spec` and `job` are JSON objects that core.cron and the client understand."""

    name: str
    kind: str
    expression: str
    timezone: str
    catch_up: str
    job: dict[str, Any]  # queue, payload, priority, max_attempts, tenant …
    next_at: datetime
    last_at: datetime | None = None
    last_job_id: UUID | None = None
    enabled: bool = True


class Fired(msgspec.Struct, frozen=True):
    """One firing of a schedule to be made if nobody else did: compare-and-set of its next_at, with the jobs."""

    name: str
    expected: datetime
    next_at: datetime
    jobs: Sequence[NewJob]
    at: datetime


class Duties(Protocol):
    """What services ask of a store. Each is correct when two do it at once."""

    async def survey(self, worker_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> Survey:
        """Take or renew the leadership if it is free or ours, and see what there is to do."""
        ...

    async def resign(self, worker_id: UUID) -> None: ...

    async def promote(self, limit: int, *, now: datetime | None = None) -> Promotion: ...

    async def lapsed(self, limit: int, *, now: datetime | None = None) -> list[Lapsed]: ...

    async def held_by(self, worker_id: UUID) -> list[Lapsed]:
        """The claims of one worker, for a supervisor that has seen it die."""
        ...

    async def held(self, job_id: UUID) -> Lapsed | None:
        """The claim of one job; None if it does not run."""
        ...

    async def sweep(self, limit: int, *, now: datetime | None = None) -> Promotion:
        """Re-check all gates: move what may run out of `blocked`, and what may not into it.

        What waits for a pause or a breaker has its place in line, and goes back to it; what has become due meanwhile
        gets one.
        """
        ...

    async def let_out(self, limit: int, *, now: datetime | None = None) -> Promotion:
        """Of a sweep only what never takes long: let jobs out whose kind is paused no more, and those that probe."""
        ...

    async def orphans(self) -> list[Lapsed]:
        """Claims of workers that are known to be dead, whether or not their leases are over."""
        ...

    async def retain(
        self,
        older_than: timedelta,
        limit: int,
        cursor: UUID | None,
        *,
        stale_only: bool = False,
        now: datetime | None = None,
    ) -> Retained:
        """Delete up to `limit` finished jobs with all that belongs to them; open dead letters and webhook posts stay.

        `stale_only`: only what is stale and has been told of.
        """
        ...

    async def tidy(self, older_than: timedelta, limit: int, *, now: datetime | None = None) -> bool:
        """As retain does by the way, delete what belongs to no job: expired unique keys, old tombstones, what the dead
        have left, and ended webhook posts and bulk runs, closed dead letters and breakers that nobody declares and that
        keep nobody from anything, if all that is older; returns whether there may be more."""
        ...

    async def mark_stale(
        self, older_than: timedelta, limit: int, cursor: UUID | None, *, told: bool, now: datetime | None = None
    ) -> Parted:
        """Mark up to `limit` finished jobs stale; `told`: nobody has to be told before the event may go out."""
        ...

    async def remove(
        self,
        older_than: timedelta,
        limit: int,
        cursor: UUID | None,
        *,
        stale_only: bool,
        told: bool,
        now: datetime | None = None,
    ) -> Parted:
        """Delete as retain does, but leave a tombstone for each and say which they were.

        `stale_only`: only what is stale and has been told of.
        """
        ...

    async def untold(self, limit: int) -> list[Tidings]:
        """Stale marks, then tombstones, that were made with `told` false and not told of since; the oldest first."""
        ...

    async def tell(self, stale: Sequence[UUID], deleted: Sequence[UUID], *, now: datetime | None = None) -> None:
        """They have been told of: from now on the event may go out."""

    async def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        """Store what the code declares; `next_at` of a known, unchanged schedule is kept."""

    async def put_rules(self, rules: Mapping[str, PayloadRule | None]) -> None:
        """By kind, the rules for jobs that come by SQL; None: it has none any more. Where none can come so, this is
        nothing to do."""

    async def fire(self, fired: Fired, *, now: datetime | None = None) -> bool:
        """Enqueue a schedule's jobs and move its next_at on, or do nothing if somebody else has."""
        ...

    async def beat(self, worker: WorkerRecord, ttl: timedelta, *, now: datetime | None = None) -> None:
        """Say that the worker lives, for `ttl`."""

    async def leave(self, worker_id: UUID) -> None: ...
