"""Enqueues in SQLite: stores new jobs as ready, scheduled or blocked."""

from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from itertools import count
from typing import Any
from uuid import UUID

from dutiful.core.errors import UsageError
from dutiful.core.ids import public
from dutiful.core.job import Inserted, Insertion, NewJob, OnConflict, OnFailure, Scope, Unique
from dutiful.core.states import State
from dutiful.payload.sql_rules import KindDefault, PayloadRule
from dutiful.store.jobs import Levels, unknown_dependency
from dutiful.stores.order import SEQ_STEP
from dutiful.stores.sqlite import placement
from dutiful.stores.sqlite.engine import SQL, Connection, Engine, Row
from dutiful.stores.sqlite.engine.codec import clock, micros, span, uuid
from dutiful.stores.sqlite.engine.columns import JOB, carried_by_new, job_encoder
from dutiful.stores.sqlite.engine.transactions import borrowed

MET = (State.COMPLETED, State.COMPLETED_WITH_ERRORS)
"""The states of a job that satisfy those that depend on it."""

_columns = list(JOB)
_ID, _RUN_AT = _columns.index("id"), _columns.index("run_at")


class SqliteJobs:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def insert(
        self, jobs: Sequence[NewJob], *, hint: Levels | None = None, now: datetime | None = None
    ) -> list[Inserted]:
        return await self._engine.write(lambda db: insert(db, jobs, clock(now)))

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        return self.insert_within_sync(connection, jobs)

    def insert_within_sync(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        with borrowed(connection, self._engine.driver, self._engine.path) as db:
            return insert(db, jobs, clock(None))

    async def put_payload_rules(self, rules: Mapping[str, PayloadRule | None]) -> None:
        """Does nothing: enqueues in Python check the rules, and other payloads are checked before they run."""

    async def put_defaults(self, defaults: Sequence[KindDefault]) -> None:
        """Does nothing: no function in SQL enqueues."""


def insert(db: Connection, jobs: Sequence[NewJob], now: int) -> list[Inserted]:
    """Stores all of `jobs` in the open transaction."""
    paused = placement.blocked_kinds(db)
    if all(job.plain for job in jobs):
        return _insert_plain(db, jobs, paused, now, now)
    if all(job.unique is None and not job.inherits for job in jobs) and (graph := _insert_graph(db, jobs, paused, now)):
        return graph
    made: set[UUID] = set()
    results = []
    for job, seq in zip(jobs, count(now, SEQ_STEP), strict=False):
        if job.plain:
            results += _insert_plain(db, [job], paused, now, seq)
        else:
            results.append(_insert_gated(db, job, paused, made, now, seq))
        made.add(job.id)
    return results


def _insert_plain(
    db: Connection, jobs: Sequence[NewJob], paused: placement.BlockedKinds, now: int, first: int
) -> list[Inserted]:
    """`first` is the seq of the first of those that are due now."""
    rows = [_row(job, now) for job in jobs]
    made = db.many(SQL["insert_job"], rows)
    if made == len(jobs):
        results = [Inserted(job.id, Insertion.MADE) for job in jobs]
    else:
        results = _which_are_new(db, jobs)
        pairs = [pair for pair in zip(jobs, rows, results, strict=True) if pair[2].insertion is Insertion.MADE]
        jobs, rows = [job for job, _, _ in pairs], [row for _, row, _ in pairs]
    if all(row[_RUN_AT] is None for row in rows) and not (paused and any(job.kind in paused for job in jobs)):
        # The common case: all are due now. This saves a large batch as much time as the index for lists costs it.
        placement.append_ready(db, jobs, [row[_ID] for row in rows], first)
        return results
    placing = placement.Placing(db, paused, now)
    for job, row, seq in zip(jobs, rows, count(first, SEQ_STEP), strict=False):
        placing.add(row[_ID], _carried(job), row[_RUN_AT], seq if row[_RUN_AT] is None else None)
    placing.write()
    return results


def _insert_graph(
    db: Connection, jobs: Sequence[NewJob], paused: placement.BlockedKinds, now: int
) -> list[Inserted] | None:
    """Stores new jobs that depend on each other and on earlier ones; None, and nothing stored, if one exists."""
    ids = {job.id for job in jobs}
    if len(ids) < len(jobs) or any(db.value(SQL["job_exists"], (job_id.bytes,)) for job_id in ids):
        return None
    ends = _Ends(db)
    waits = []
    for job in jobs:
        waits.append(ends.watched(job))
        ends.add(job)
    rows = [_row(job, now) for job in jobs]
    db.many(SQL["insert_job"], rows)
    edges = [
        (row[_ID], needed.bytes, policy) for job, row in zip(jobs, rows, strict=True) for needed, policy in job.edges
    ]
    db.many(SQL["insert_dependency"], edges)
    _join(db, jobs)
    placing = placement.Placing(db, paused, now)
    for job, row, watched, seq in zip(jobs, rows, waits, count(now, SEQ_STEP), strict=False):
        if watched is not None:
            placing.wait(row[_ID], _carried(job), row[_RUN_AT], watched)
        else:
            placing.add(row[_ID], _carried(job), row[_RUN_AT], seq if row[_RUN_AT] is None else None)
    placing.write()
    return [Inserted(job.id, Insertion.MADE) for job in jobs]


def _join(db: Connection, jobs: Sequence[NewJob]) -> None:
    """Makes what waits for the job that each joins wait for it too."""
    joining = [(job.id.bytes, job.joins.bytes, job.tenant) for job in jobs if job.joins is not None]
    db.many(SQL["join_dependents"], joining)


class _Ends:
    """How jobs that others are to depend on have ended, of one call."""

    def __init__(self, db: Connection) -> None:
        self._db = db
        self._known: dict[UUID, tuple[State | None, str | None]] = {}  # with their tenants

    def add(self, job: NewJob) -> None:
        self._known[job.id] = None, job.tenant

    def watched(self, job: NewJob) -> UUID | None:
        """The newest job that it has to wait for. All must exist already, so that there can be no cycle."""
        found = None
        for needed, policy in job.edges:
            if needed not in self._known:
                row = self._db.row(SQL["final_state"], (needed.bytes,))
                if row is None or needed == job.id:
                    raise unknown_dependency(needed)
                self._known[needed] = None if row[0] is None else State(row[0]), row[1]
            state, tenant = self._known[needed]
            # The same error for another tenant's job as for a job that does not exist.
            if tenant != job.tenant:
                raise unknown_dependency(needed)
            met = state in MET or (state is not None and policy is OnFailure.RUN)
            if not met and (found is None or needed.bytes > found.bytes):
                found = needed
        return found


def _which_are_new(db: Connection, jobs: Sequence[NewJob]) -> list[Inserted]:
    """A job that was only just written has no place yet; those that have one were there before."""
    seen: set[UUID] = set()
    results: list[Inserted] = []
    for job in jobs:
        known = job.id in seen or db.row(SQL["place_of"], {"id": job.id.bytes}) is not None
        seen.add(job.id)
        results.append(Inserted(job.id, Insertion.EXISTING if known else Insertion.MADE))
    return results


def _insert_gated(
    db: Connection, job: NewJob, paused: placement.BlockedKinds, made: Set[UUID], now: int, seq: int
) -> Inserted:
    """Stores one job that has a unique key or dependencies."""
    raw = job.id.bytes
    if db.value(SQL["job_exists"], (raw,)):
        return Inserted(job.id, Insertion.EXISTING)
    watched = _Ends(db).watched(job)
    insertion = Insertion.MADE
    if job.inherits and (rejected := _rejected(db, job, now)):
        return rejected
    if job.unique is not None:
        taken = _take_key(db, job, job.unique, made, now)
        if taken.job_id != job.id:
            return taken
        insertion = taken.insertion
    for inherited in job.inherits:
        _inherit_key(db, job, inherited, now)
    row = _row(job, now)
    db.run(SQL["insert_job"], row)
    db.many(SQL["insert_dependency"], [(raw, needed.bytes, policy) for needed, policy in job.edges])
    _join(db, [job])
    placing = placement.Placing(db, paused, now)
    if watched is not None:
        placing.wait(raw, _carried(job), row[_RUN_AT], watched)
    else:
        placing.add(raw, _carried(job), row[_RUN_AT], seq if row[_RUN_AT] is None else None)
    placing.write()
    return Inserted(job.id, insertion)


def _take_key(db: Connection, job: NewJob, unique: Unique, made: Set[UUID], now: int) -> Inserted:
    """Writes the job's unique key; returns the holder if another job keeps the key.

    A job that the same call has `made` is not replaced.
    """
    key = _key(job, unique)
    insertion = Insertion.MADE
    holder = _holder(db, key, now)
    if holder is not None:
        held_by = uuid(holder[1])
        if unique.on_conflict is OnConflict.REJECT:
            return Inserted(held_by, Insertion.REJECTED)
        keeps = unique.on_conflict is OnConflict.RETURN or held_by in made
        if keeps or not placement.cancel_waiting(db, holder[1], f"replaced by {public(job.id)}", now):
            return Inserted(held_by, Insertion.EXISTING)
        insertion = Insertion.REPLACED
    _put_key(db, job, unique, now)
    return Inserted(job.id, insertion)


def _rejected(db: Connection, job: NewJob, now: int) -> Inserted | None:
    """The answer if a job that has not ended holds one of the keys that `job` inherits."""
    for unique in job.inherits:
        holder = _holder(db, _key(job, unique), now)
        if holder is not None and holder[1] != job.id.bytes and _is_live(db, holder[1]):
            return Inserted(uuid(holder[1]), Insertion.REJECTED)
    return None


def _inherit_key(db: Connection, job: NewJob, unique: Unique, now: int) -> None:
    """Moves the key from a job that has ended, for as long as that held it; takes it, if none holds it."""
    if _holder(db, _key(job, unique), now) is None:
        _put_key(db, job, unique, now)
    else:
        db.run(SQL["move_unique"], (job.id.bytes, *_key(job, unique)))


def _is_live(db: Connection, job_id: bytes) -> bool:
    found = db.row(SQL["final_state"], (job_id,))
    return found is not None and found[0] is None


def _key(job: NewJob, unique: Unique) -> tuple[str, str, str]:
    return job.tenant or "", "" if unique.across_kinds else job.kind, unique.key


def _holder(db: Connection, key: tuple[str, str, str], now: int) -> Row | None:
    """The row of a key that is held at this time."""
    holder = db.row(SQL["unique_holder"], key)
    return None if holder is None or (holder[2] is not None and holder[2] <= now) else holder


def _put_key(db: Connection, job: NewJob, unique: Unique, now: int) -> None:
    expires = None
    if unique.scope is Scope.WINDOW:
        if unique.window is None:
            raise UsageError(f"the unique key {unique.key!r} is held for a window, but none is given: set `window`")
        expires = now + span(unique.window)
    db.run(SQL["put_unique"], (*_key(job, unique), unique.scope.value, job.id.bytes, expires))


def _due(job: NewJob, now: int) -> int:
    if job.run_at is not None:
        return micros(job.run_at)
    assert job.delay is not None
    return now + span(job.delay)


_row = job_encoder(_due)
_carried = carried_by_new()
