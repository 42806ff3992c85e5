"""Stores new jobs, each in the place where it belongs."""

from collections.abc import Sequence
from uuid import UUID

from dutiful.core.errors import UsageError
from dutiful.core.ids import public
from dutiful.core.job import Inserted, Insertion, NewJob, OnConflict, Scope, Unique
from dutiful.core.transitions import State
from dutiful.stores.sqlite import places
from dutiful.stores.sqlite.codec import checked, maybe_bytes, maybe_checked, micros, span, uuid
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL

_MET = (State.COMPLETED, State.COMPLETED_WITH_ERRORS)


def insert(db: Connection, jobs: Sequence[NewJob], now: int) -> list[Inserted]:
    """Store all of `jobs`, inside the transaction that is open."""
    paused = places.paused_kinds(db)
    if all(job.plain for job in jobs):
        return _insert_plain(db, jobs, paused, now)
    return [
        _insert_plain(db, [job], paused, now)[0] if job.plain else _insert_gated(db, job, paused, now) for job in jobs
    ]


def _insert_plain(db: Connection, jobs: Sequence[NewJob], paused: frozenset[str], now: int) -> list[Inserted]:
    rows = [_row(job, now) for job in jobs]
    made = db.many(SQL["insert_job"], rows)
    if made == len(jobs):
        results = [Inserted(job.id, Insertion.MADE) for job in jobs]
    else:
        results = _which_are_new(db, jobs)
        pairs = [pair for pair in zip(jobs, rows, results, strict=True) if pair[2].insertion is Insertion.MADE]
        jobs, rows = [job for job, _, _ in pairs], [row for _, row, _ in pairs]
    if not paused and all(row[6] is None for row in rows):
        # The common case: all are due now. What this saves a large batch, the index that lists are made from costs it.
        places.line_up(
            db, [(job.queue, job.priority, row[0], job.kind, job.tenant) for job, row in zip(jobs, rows, strict=True)]
        )
        return results
    placing = places.Placing(db, paused, now)
    for job, row in zip(jobs, rows, strict=True):
        placing.add(row[0], (job.queue, job.priority, job.kind, job.tenant), 0, 0, row[6])
    placing.write()
    return results


def _which_are_new(db: Connection, jobs: Sequence[NewJob]) -> list[Inserted]:
    """Tell those that were there before: a job that was only just written stands nowhere yet."""
    seen: set[UUID] = set()
    results: list[Inserted] = []
    for job in jobs:
        known = job.id in seen or db.row(SQL["place_of"], {"id": job.id.bytes}) is not None
        seen.add(job.id)
        results.append(Inserted(job.id, Insertion.EXISTING if known else Insertion.MADE))
    return results


def _insert_gated(db: Connection, job: NewJob, paused: frozenset[str], now: int) -> Inserted:
    """One job that has to look at others first: at the holder of its key, or at the jobs it needs."""
    raw = job.id.bytes
    if db.value(SQL["job_exists"], (raw,)):
        return Inserted(job.id, Insertion.EXISTING)
    must_wait = _must_wait(db, job)
    insertion = Insertion.MADE
    if job.unique is not None:
        taken = _take_key(db, job, job.unique, now)
        if taken.job_id != job.id:
            return taken
        insertion = taken.insertion
    row = _row(job, now)
    db.run(SQL["insert_job"], row)
    if must_wait:
        db.many(SQL["insert_dependency"], [(raw, needed.bytes) for needed in job.depends_on])
        places.block(db, raw, "dependency", None, (job.queue, job.priority, job.kind, job.tenant), 0, 0, row[6], now)
    else:
        placing = places.Placing(db, paused, now)
        placing.add(raw, (job.queue, job.priority, job.kind, job.tenant), 0, 0, row[6])
        placing.write()
    return Inserted(job.id, insertion)


def _take_key(db: Connection, job: NewJob, unique: Unique, now: int) -> Inserted:
    """Write the job's unique key; if another job stands for the request, that one is in the answer."""
    key = (job.tenant or "", "" if unique.across_kinds else job.kind, unique.key)
    insertion = Insertion.MADE
    holder = db.row(SQL["unique_holder"], key)
    if holder is not None and (holder[2] is None or holder[2] > now):
        held_by = uuid(holder[1])
        if unique.on_conflict is OnConflict.REJECT:
            return Inserted(held_by, Insertion.REJECTED)
        if unique.on_conflict is OnConflict.RETURN or not places.cancel_waiting(
            db, holder[1], f"replaced by {public(job.id)}", now
        ):
            return Inserted(held_by, Insertion.EXISTING)
        insertion = Insertion.REPLACED
    expires = None
    if unique.scope is Scope.WINDOW:
        if unique.window is None:
            raise UsageError(f"the unique key {unique.key!r} is held for a window, but none is given: set `window`")
        expires = now + span(unique.window)
    db.run(SQL["put_unique"], (*key, unique.scope.value, job.id.bytes, expires))
    return Inserted(job.id, insertion)


def _must_wait(db: Connection, job: NewJob) -> bool:
    """Whether a needed job is still to complete; all must be there already, so that no circle can be made."""
    wait = False
    for needed in job.depends_on:
        found = db.row(SQL["final_state"], (needed.bytes,))
        # One of another tenant is told from none in no way.
        if found is None or needed == job.id or found[1] != job.tenant:
            raise UsageError(
                f"job {public(job.id)} depends on {public(needed)} ({needed}), which does not exist: "
                "enqueue that one before, or earlier in the same call"
            )
        wait = wait or found[0] not in _MET
    return wait


def _row(job: NewJob, now: int) -> Row:
    run_at = None
    if job.run_at is not None:
        run_at = micros(job.run_at)
    elif job.delay is not None:
        run_at = now + span(job.delay)
    return (
        job.id.bytes, job.kind, job.queue, checked(job.payload), job.priority, job.max_attempts, run_at, job.tenant,
        job.correlation_id, maybe_bytes(job.parent_id), maybe_bytes(job.retry_of), maybe_checked(job.subject),
        job.created_by, maybe_checked(job.options), now,
    )  # fmt: skip
