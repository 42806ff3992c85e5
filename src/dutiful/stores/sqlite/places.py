"""Moves jobs between the places where they can stand."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from dutiful.core.transitions import WAITING, State
from dutiful.stores.sqlite import burial, outbox, tracking
from dutiful.stores.sqlite.codec import errors_json
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL

PAUSED, DEPENDENCY, BREAKER = "paused", "dependency", "breaker"
NEW = 0  # no place in line has this number: the job is to get the next one


def paused_kinds(db: Connection) -> frozenset[str]:
    return frozenset(name for (name,) in db.rows(SQL["paused_kinds"]))


def line_up(db: Connection, jobs: Sequence[tuple[str, int, bytes, str, str | None]]) -> None:
    """Put new jobs, of each its queue, priority, id, kind and tenant, at the end of their lines."""
    first = db.value(SQL["next_seq"], (len(jobs),)) - len(jobs) + 1
    rows = [
        (queue, priority, seq, job_id, 0, 0, kind, tenant)
        for seq, (queue, priority, job_id, kind, tenant) in enumerate(jobs, first)
    ]
    db.many(SQL["insert_ready"], rows)


class Placing:
    """Gives jobs that have no place one: blocked if their kind is paused, scheduled if not due, or ready."""

    def __init__(self, db: Connection, paused: frozenset[str], now: int) -> None:
        self._db = db
        self._paused = paused
        self._now = now
        self._ready: list[tuple[Any, ...]] = []
        self._scheduled: list[Row] = []
        self._blocked: list[Row] = []
        self.lines: set[tuple[str, int]] = set()

    def add(
        self,
        job_id: bytes,
        line: Row,
        attempt: int,
        crashes: int,
        run_at: int | None,
        seq: int | None = None,
        barred_by: str | None = None,
    ) -> State:
        """Where the job, whose queue, priority, kind and tenant are `line`, will stand; `seq` is its old place.

        What is due gets a place in line even if its kind is paused: it goes there when that is over.
        """
        queue, priority, kind, tenant = line
        due = run_at is None or run_at <= self._now
        if kind in self._paused:
            waits = (job_id, PAUSED, kind, queue, priority, kind, tenant, attempt, crashes, run_at, self._now)
            self._blocked.append((*waits, (seq or NEW) if due else None))
            return State.BLOCKED
        if barred_by is not None:
            waits = (job_id, BREAKER, barred_by, queue, priority, kind, tenant, attempt, crashes, None, self._now)
            self._blocked.append((*waits, NEW))
            return State.BLOCKED
        if not due:
            self._scheduled.append((run_at, job_id, queue, priority, kind, tenant, attempt, crashes))
            return State.SCHEDULED
        self._ready.append((queue, priority, seq or NEW, job_id, attempt, crashes, kind, tenant))
        return State.READY

    def write(self) -> None:
        """Write all of them, those of one place in the order in which they were added."""
        db = self._db
        new = sum(row[2] == NEW for row in self._ready) + sum(row[-1] == NEW for row in self._blocked)
        seqs = count(db.value(SQL["next_seq"], (new,)) - new + 1) if new else count()
        if self._ready:
            rows = [
                (queue, priority, next(seqs) if seq == NEW else seq, *rest)
                for queue, priority, seq, *rest in self._ready
            ]
            db.many(SQL["insert_ready"], rows)
            self.lines.update((queue, priority) for queue, priority, *_ in rows)
        if self._scheduled:
            db.many(SQL["insert_scheduled"], self._scheduled)
        if self._blocked:
            db.many(SQL["insert_blocked"], [(*row, next(seqs) if seq == NEW else seq) for *row, seq in self._blocked])


def place_due(db: Connection, job_ids: Sequence[bytes]) -> int:
    """Give jobs that have become due before a gate their places in line; returns how many."""
    first = db.value(SQL["next_seq"], (len(job_ids),)) - len(job_ids) + 1 if job_ids else 0
    return db.many(SQL["place_due"], list(enumerate(job_ids, first)))


def block(
    db: Connection, job_id: bytes, gate: str, key: str | None, line: Row, attempt: int, crashes: int,
    run_at: int | None, now: int,
) -> None:  # fmt: skip
    db.run(SQL["insert_blocked"], (job_id, gate, key, *line, attempt, crashes, run_at, now, None))


def cancel_waiting(db: Connection, job_id: bytes, reason: str, now: int) -> bool:
    return end_waiting(db, job_id, State.CANCELLED, {"type": "Cancelled", "message": reason}, now)


def end_waiting(db: Connection, job_id: bytes, to: State, error: Mapping[str, Any], now: int) -> bool:
    """End a job that waits as cancelled or failed, with all that it held; False if it does not wait."""
    found = db.row(SQL["place_of"], {"id": job_id})
    if found is None or found[1] not in WAITING:
        return False
    place, _, attempt, crashes, _ = found
    db.run(SQL[f"leave_{place}"], (job_id,))
    errors = (dict(error),)
    db.run(
        SQL["insert_finished"],
        (job_id, None, to.value, attempt, crashes, None, None, now, None, errors_json(errors)),
    )
    if to is State.FAILED:
        burial.bury(db, job_id, errors, attempt, now)
    tracking.cancel_phases(db, job_id, now)
    let_go(db, [job_id])
    outbox.announce(db, [job_id], [job_id], now)
    return True


def let_go(db: Connection, job_ids: Sequence[bytes]) -> None:
    """Free what a job holds while it lives: keys that end with it, and its own wait for others."""
    ids = [(job_id,) for job_id in job_ids]
    if db.value(SQL["any_active_key"]):
        db.many(SQL["free_active_key"], ids)
    if db.value(SQL["any_queued_key"]):
        db.many(SQL["free_queued_key"], ids)
    if db.value(SQL["any_dependency"]):
        db.many(SQL["delete_dependencies"], ids)
