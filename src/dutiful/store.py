"""The contract of a store: where jobs live.

Every store passes one conformance suite. What they all promise:

- A call that returned has been committed durably; a call that raised StoreUnavailable may or may not have been, and
  every call may be repeated safely.
- A live job stands in exactly one place (scheduled, ready, blocked or a lease); a final one has one `finished` row.
- Only the holder of (job_id, claim_id) moves a running job.
- Every `now` is for tests: production passes None and the store's own clock holds.
- Times are aware, in UTC. JSON travels as text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

import msgspec

from dutiful.access import Access
from dutiful.auditing import Auditing
from dutiful.core.job import AttemptRecord, Claim, Inserted, JobRecord, Lapsed, NewJob, Token
from dutiful.core.settle import Change
from dutiful.core.transitions import State
from dutiful.locking import Locking, LockMode
from dutiful.outbox import Outbox
from dutiful.payload_rule import PayloadRule
from dutiful.reviewing import Reviewing
from dutiful.tracking import Tracking
from dutiful.watching import Watching

Errors = Sequence[dict[str, Any]]


class Line(msgspec.Struct, frozen=True):
    """One queue at one priority; `seq` is its first job, or where to begin to look."""

    queue: str
    priority: int
    seq: int = 0


class Ask(msgspec.Struct, frozen=True):
    """What a lane wants to claim: from these lines, in their order, beyond each one's seq."""

    worker_id: UUID
    lane: str
    lines: Sequence[Line]
    kinds: Sequence[str]
    limit: int
    lease: timedelta
    suspects: int = 0  # besides `limit`: jobs with a lost attempt, to be run at once and one at a time
    tenants: Sequence[str] = ()  # none: any; jobs of others at the head of a line are passed over


class Completion(msgspec.Struct, frozen=True):
    """The common outcome: done, with or without a result."""

    job_id: UUID
    claim_id: int
    result: str | None = None
    webhook: bool = False  # the job names a webhook of its own


class Verdict(StrEnum):
    """Why a settlement was not applied."""

    LOST = "lost"  # the claim is no longer held; recorded as a refused attempt
    REPEATED = "repeated"  # it had been applied before (its reply was lost)
    CANCEL_REQUESTED = "cancel_requested"  # it would leave the job alive, but somebody cancelled it: decide again
    LOCKED = "locked"  # somebody's open transaction holds the lease: try again later (only with skip_locked)


class Refusal(msgspec.Struct, frozen=True):
    job_id: UUID
    claim_id: int
    verdict: Verdict


class Renewal(msgspec.Struct, frozen=True):
    """What a renewal found out: claims that are gone, and jobs that somebody wants cancelled.

    Claims, not their jobs: a job that was lost and claimed again has a dead claim and a living one.
    """

    lost: frozenset[int] = frozenset()
    cancel: frozenset[UUID] = frozenset()


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


class CancelResult(msgspec.Struct, frozen=True):
    """`state` is where the job stands now; `requested` says that a running one has been asked to stop."""

    state: State
    changed: bool
    requested: bool = False


class PauseScope(StrEnum):
    QUEUE = "queue"
    KIND = "kind"
    LANE = "lane"


class Pause(msgspec.Struct, frozen=True):
    scope: PauseScope
    name: str
    since: datetime
    by: str | None = None
    reason: str | None = None


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process, as the fleet sees it."""

    id: UUID
    name: str
    host: str
    pid: int
    started_at: datetime
    seen_at: datetime
    alive: bool = True
    leading: bool = False
    lanes: dict[str, Any]  # lane -> {"slots": 3, "queues": ["fast"] or ["*"], "busy": 1}
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


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    scheduled: int
    ready: int
    blocked: int
    running: int
    oldest_ready_at: datetime | None = None
    paused: bool = False


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts by state; those of final states are over `since` only, so that history never slows it."""

    live: dict[str, int]
    finished: dict[str, int]
    since: datetime
    oldest_ready_at: datetime | None
    dead_letters: int
    workers: int


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


class Fired(msgspec.Struct, frozen=True):
    """One firing of a schedule to be made if nobody else did: compare-and-set of its next_at, with the jobs."""

    name: str
    expected: datetime
    next_at: datetime
    jobs: Sequence[NewJob]
    at: datetime


class Schema(Protocol):
    """The tables themselves."""

    async def open(self) -> None:
        """Connect and check that the schema can be worked with; SchemaMismatch says what to run."""

    async def close(self) -> None: ...

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; returns the names of the migrations that were applied. Can be repeated."""

    def migration_sql(self) -> str:
        """All migrations as a script, for a DBA."""
        ...

    @property
    def guarded(self) -> bool:
        """Whether the database itself keeps tenants apart for us; then a batch holds the jobs of one tenant only."""
        ...

    def check_worker(self) -> None:
        """UsageError if a worker could not do all of its work with the rights that we have here."""

    def for_tenant(self, tenant: str) -> "Store":
        """The same store, for calls on behalf of one tenant; where the database can, it lets them see nothing else.

        A second net: who calls it has to ask for nothing else, too. It shares this store's connections and is closed
        with it.
        """
        ...


class Intake(Protocol):
    async def insert(
        self, jobs: Sequence[NewJob], *, hint: bool = False, now: datetime | None = None
    ) -> list[Inserted]:
        """Store all of `jobs` in one transaction, or none; an id that is there already is left as it is.

        `hint`: let the commit tell other processes, where the database can (see Delivery.rides).
        """
        ...

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        """The same inside the transaction that is open on the user's own async `connection`."""
        ...

    def insert_within_sync(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        """The same for the user's own blocking connection or session."""
        ...


class Keeper(Protocol):
    """Renews leases on a connection of its own; its calls block, and are made from one thread only."""

    def renew(self, tokens: Sequence[Token], lease: timedelta, *, now: datetime | None = None) -> Renewal: ...

    def check(self, tokens: Sequence[Token]) -> Renewal:
        """What a renewal would find out, without writing: cheap enough for every second."""
        ...

    def release(self, tokens: Sequence[Token]) -> None:
        """Give claims back unspent, with their old places in line."""

    def close(self) -> None: ...


class Transaction(Protocol):
    """The handler's own writes, committed together with its job's completion."""

    async def execute(self, statement: str, *args: Any) -> None: ...

    @property
    def connection(self) -> Any:
        """The driver's connection; refused where statements are buffered (SQLite)."""
        ...


class Work(Protocol):
    async def peek(self, kinds: Sequence[str], *, now: datetime | None = None) -> list[Line]:
        """Every line that has a job of `kinds`, with the seq of its first; finds what a floor would pass over."""
        ...

    async def claim(self, ask: Ask, *, now: datetime | None = None) -> list[Claim]:
        """Take up to `limit` jobs, in order of lines and seq; fewer does not mean that there are no more."""
        ...

    async def complete(
        self, done: Sequence[Completion], *, skip_locked: bool = False, now: datetime | None = None
    ) -> list[Refusal]:
        """Settle many that are done; returns only those that were not applied.

        `skip_locked`: wait for nobody's transaction; what one holds is answered with LOCKED.
        """
        ...

    async def settle(
        self,
        changes: Sequence[Change],
        *,
        lapsed_only: bool = False,
        skip_locked: bool = False,
        now: datetime | None = None,
    ) -> list[Refusal]:
        """Apply decided changes, each claim at most once a call; with `lapsed_only`, to claims still expired."""
        ...

    def keeper(self) -> Keeper: ...

    def transaction(
        self, token: Token, result: Callable[[], str | None], errors: Callable[[], Errors] = tuple
    ) -> AbstractAsyncContextManager[Transaction]:
        """A block whose writes commit with the job's completion; asked at its end, `result()` gives JSON text.

        With `errors()` the job ends as completed_with_errors. What either of them raises rolls the block back.
        Raises ClaimLost, and rolls back, if the claim is no longer held.
        """
        ...

    async def complete_within(self, connection: Any, token: Token, result: str | None, errors: Errors = ()) -> None:
        """Complete the job in the transaction open on the user's async `connection`; ClaimLost if it is not held."""

    def complete_within_sync(self, connection: Any, token: Token, result: str | None, errors: Errors = ()) -> None: ...


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
        """Re-check all gates: move what may run out of `blocked`, and what may not into it."""
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
        have left, and ended webhook posts and closed dead letters that are older; returns whether there may be more."""
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


class Acts(Protocol):
    """What people do to jobs."""

    async def cancel(self, job_id: UUID, reason: str, *, now: datetime | None = None) -> CancelResult | None:
        """Cancel a waiting job, or ask a running one to stop; None if there is no such job."""
        ...

    async def bury(self, job_id: UUID, error: Mapping[str, Any], *, now: datetime | None = None) -> bool:
        """Make a waiting job failed, with its dead letter; False if it does not wait, so look at it again."""
        ...

    async def expedite(self, job_id: UUID, *, now: datetime | None = None) -> State | None:
        """Make a scheduled job due now; returns where it stands then."""
        ...

    async def pause(self, pause: Pause, *, now: datetime | None = None) -> bool: ...

    async def resume(self, scope: PauseScope, name: str) -> bool: ...

    async def enable_schedule(self, name: str, enabled: bool) -> bool: ...

    async def remove_schedule(self, name: str) -> bool:
        """Forget a schedule that no code declares any more; False if there is none."""
        ...


class Reader(Protocol):
    """What people and the client read."""

    async def find(self, job_id: UUID) -> JobRecord | None: ...

    async def outcomes(self, job_ids: Sequence[UUID]) -> list[JobRecord]:
        """Those of `job_ids` that are final; cheap enough to ask again and again."""
        ...

    async def jobs(self, filter: JobFilter) -> JobPage: ...

    async def attempts(self, job_id: UUID) -> list[AttemptRecord]: ...

    async def dependencies(self, job_id: UUID) -> list[JobRecord]: ...

    async def queues(self, *, tenant: str | None = None) -> list[QueueRecord]: ...

    async def stats(self, since: timedelta, *, tenant: str | None = None, now: datetime | None = None) -> Stats: ...

    async def workers(self) -> list[WorkerRecord]: ...

    async def schedules(self) -> list[ScheduleRecord]: ...

    async def pauses(self) -> list[Pause]: ...

    async def check_places(self) -> list[str]:
        """Every breach of the laws of storage, in words; empty when all is well."""
        ...

    async def health(self) -> dict[str, Any]:
        """Facts for `doctor`: versions, sizes, settings, and what to worry about."""
        ...


class Store(
    Schema,
    Intake,
    Work,
    Tracking,
    Locking,
    Duties,
    Outbox,
    Acts,
    Reader,
    Reviewing,
    Auditing,
    Access,
    Watching,
    Protocol,
):
    """All of it."""

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        ...
