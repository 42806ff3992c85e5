"""Puts a live job into its place: ready, scheduled or blocked; and ends one that waits there."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from dutiful.core.states import WAITING, State
from dutiful.stores.sqlite import dead_letters_writer, progress, webhooks
from dutiful.stores.sqlite.engine import SQL, Connection, Row
from dutiful.stores.sqlite.engine.codec import errors_json

PAUSED, DEPENDENCY, BREAKER = "paused", "dependency", "breaker"
NEW = 0  # no job has this seq: the next one is to be given out


def blocked_kinds(db: Connection) -> frozenset[str]:
    return frozenset(name for (name,) in db.rows(SQL["blocked_kinds"]))


def state_of(db: Connection, job_id: bytes) -> State | None:
    found = db.row(SQL["place_of"], {"id": job_id})
    return None if found is None else State(found[0])


def append_ready(db: Connection, jobs: Sequence[tuple[str, int, bytes, str, str | None]]) -> None:
    """Make new jobs ready, behind all others; of each its queue, priority, id, kind and tenant."""
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
        self.levels: set[tuple[str, int]] = set()  # the (queue, priority) that got ready jobs

    def add(
        self,
        job_id: bytes,
        route: Row,
        attempt: int,
        crashes: int,
        run_at: int | None,
        seq: int | None = None,
        rejected_by: str | None = None,
    ) -> State:
        """Returns the job's new state; `route` is its queue, priority, kind and tenant, `seq` its old position.

        What is due gets a seq even if its kind is paused, and becomes ready at that position when the pause is over.
        """
        queue, priority, kind, tenant = route
        due = run_at is None or run_at <= self._now
        if kind in self._paused:
            waits = (job_id, PAUSED, kind, queue, priority, kind, tenant, attempt, crashes, run_at, self._now)
            self._blocked.append((*waits, (seq or NEW) if due else None))
            return State.BLOCKED
        if rejected_by is not None:
            waits = (job_id, BREAKER, rejected_by, queue, priority, kind, tenant, attempt, crashes, None, self._now)
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
            self.levels.update((queue, priority) for queue, priority, *_ in rows)
        if self._scheduled:
            db.many(SQL["insert_scheduled"], self._scheduled)
        if self._blocked:
            db.many(SQL["insert_blocked"], [(*row, next(seqs) if seq == NEW else seq) for *row, seq in self._blocked])


def cancel_waiting(db: Connection, job_id: bytes, reason: str, now: int) -> bool:
    return end_waiting(db, job_id, State.CANCELLED, {"type": "Cancelled", "message": reason}, now)


def end_waiting(db: Connection, job_id: bytes, to: State, error: Mapping[str, Any], now: int) -> bool:
    """End a waiting job as cancelled or failed, and free what it held; False if it does not wait."""
    found = db.row(SQL["place_of"], {"id": job_id})
    if found is None or found[0] not in WAITING:
        return False
    state, attempt, crashes = found
    db.run(SQL[f"delete_{state}"], (job_id,))
    errors = (dict(error),)
    db.run(
        SQL["insert_finished"],
        (job_id, None, to.value, attempt, crashes, None, None, now, None, errors_json(errors)),
    )
    if to is State.FAILED:
        dead_letters_writer.write(db, job_id, errors, attempt, now)
    progress.cancel_phases(db, job_id, now)
    free_keys(db, [job_id])
    webhooks.announce(db, [job_id], [job_id], now)
    return True


def free_keys(db: Connection, job_ids: Sequence[bytes]) -> None:
    """Free the unique keys that end with these jobs, and delete their own dependencies."""
    ids = [(job_id,) for job_id in job_ids]
    held = ("any_active_key", "free_active_key"), ("any_queued_key", "free_queued_key")
    for any_held, free in (*held, ("any_dependency", "delete_dependency")):
        if db.value(SQL[any_held]):
            db.many(SQL[free], ids)
