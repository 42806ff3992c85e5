"""Moves jobs between the places where they can stand."""

from collections.abc import Sequence
from typing import Any

import msgspec

from dutiful.core.transitions import WAITING, State
from dutiful.stores.sqlite import outbox, tracking
from dutiful.stores.sqlite.codec import errors_json, maybe_moment, maybe_uuid, to_json, uuid
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL

PAUSED, DEPENDENCY = "paused", "dependency"


def paused_kinds(db: Connection) -> frozenset[str]:
    return frozenset(name for (name,) in db.rows(SQL["paused_kinds"]))


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
        self, job_id: bytes, line: Row, attempt: int, crashes: int, run_at: int | None, seq: int | None = None
    ) -> State:
        """Where the job, whose queue, priority, kind and tenant are `line`, will stand; `seq` is its old place."""
        queue, priority, kind, tenant = line
        if kind in self._paused:
            self._blocked.append(
                (job_id, PAUSED, kind, queue, priority, kind, tenant, attempt, crashes, run_at, self._now)
            )
            return State.BLOCKED
        if run_at is not None and run_at > self._now:
            self._scheduled.append((run_at, job_id, queue, priority, kind, tenant, attempt, crashes))
            return State.SCHEDULED
        self._ready.append((queue, priority, seq, job_id, attempt, crashes, kind, tenant))
        return State.READY

    def write(self) -> None:
        """Write all of them, those for `ready` in the order in which they were added."""
        db = self._db
        if self._ready:
            new = sum(row[2] is None for row in self._ready)
            seq = db.value(SQL["next_seq"], (new,)) - new if new else 0
            rows = []
            for queue, priority, old, *rest in self._ready:
                if old is None:
                    seq += 1
                rows.append((queue, priority, seq if old is None else old, *rest))
                self.lines.add((queue, priority))
            db.many(SQL["insert_ready"], rows)
        if self._scheduled:
            db.many(SQL["insert_scheduled"], self._scheduled)
        if self._blocked:
            db.many(SQL["insert_blocked"], self._blocked)


def block(
    db: Connection, job_id: bytes, gate: str, key: str | None, line: Row, attempt: int, crashes: int,
    run_at: int | None, now: int,
) -> None:  # fmt: skip
    db.run(SQL["insert_blocked"], (job_id, gate, key, *line, attempt, crashes, run_at, now))


def cancel_waiting(db: Connection, job_id: bytes, reason: str, now: int) -> bool:
    """Make a job that waits cancelled, with all that it held; False if it does not wait."""
    found = db.row(SQL["place_of"], {"id": job_id})
    if found is None or found[1] not in WAITING:
        return False
    place, _, attempt, crashes, _ = found
    db.run(SQL[f"leave_{place}"], (job_id,))
    errors = errors_json([{"type": "Cancelled", "message": reason}])
    db.run(
        SQL["insert_finished"],
        (job_id, None, State.CANCELLED.value, attempt, crashes, None, None, now, None, errors),
    )
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


def bury(db: Connection, job_id: bytes, errors: str | None, attempts: int, now: int) -> None:
    """Write the dead letter of a failed job; its snapshot outlives the job."""
    row = db.row(SQL["job_row"], (job_id,))
    assert row is not None
    db.run(SQL["insert_dead_letter"], (job_id, _snapshot(row), errors, attempts, now))


def _snapshot(row: Row) -> str:
    raw = msgspec.Raw
    (id_, kind, queue, payload, priority, max_attempts, run_at, tenant, correlation_id, parent_id, retry_of, subject,
     created_by, options, created_at) = row  # fmt: skip
    return to_json(
        {
            "id": uuid(id_),
            "kind": kind,
            "queue": queue,
            "payload": raw(payload.encode()),
            "priority": priority,
            "max_attempts": max_attempts,
            "run_at": maybe_moment(run_at),
            "tenant": tenant,
            "correlation_id": correlation_id,
            "parent_id": maybe_uuid(parent_id),
            "retry_of": maybe_uuid(retry_of),
            "subject": None if subject is None else raw(subject.encode()),
            "created_by": created_by,
            "options": None if options is None else raw(options.encode()),
            "created_at": maybe_moment(created_at),
        }
    )
