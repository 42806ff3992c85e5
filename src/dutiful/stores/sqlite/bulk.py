"""Runs over many dead letters: where each has come to, and whether a step still counts."""

from uuid import UUID

import msgspec

from dutiful.core.audit import AuditEvent
from dutiful.core.review import ReviewAct
from dutiful.reviewing import BulkRun, BulkState, BulkStep, DeadLetterFilter, Place
from dutiful.stores.sqlite import auditing
from dutiful.stores.sqlite.codec import maybe_micros, maybe_moment, micros, moment, to_json, uuid
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL


def start(db: Connection, run: BulkRun, event: AuditEvent) -> None:
    db.run(
        SQL["insert_bulk_run"],
        (run.id.bytes, run.act.value, to_json(run.filter), run.by, run.role, run.origin, run.reason,
         micros(run.created_at), run.total, run.done, run.skipped, run.state.value, *_place(run.cursor),
         maybe_micros(run.ended_at)),
    )  # fmt: skip
    auditing.append(db, [event])


def find(db: Connection, run_id: UUID) -> BulkRun | None:
    row = db.row(f"{SQL['select_bulk_runs']} WHERE id = ?", (run_id.bytes,))
    return None if row is None else _run(row)


def runs(db: Connection, running: bool, tenant: str | None, limit: int) -> list[BulkRun]:
    tests = ["state = 'running'"] if running else []
    if tenant is not None:
        tests.append("json_extract(filter, '$.tenant') = :tenant")
    where = f"WHERE {' AND '.join(tests)}" if tests else ""
    order = "ORDER BY created_at, id" if running else "ORDER BY created_at DESC, id DESC"
    bindings = {"tenant": tenant, "limit": limit} if tenant is not None else {"limit": limit}
    return [_run(row) for row in db.rows(f"{SQL['select_bulk_runs']} {where} {order} LIMIT :limit", bindings)]


def stop(db: Connection, run_id: UUID, now: int) -> bool:
    return bool(db.change(SQL["stop_bulk_run"], (run_id.bytes, now)))


def forget(db: Connection, cutoff: int, limit: int) -> int:
    """Delete runs that ended long ago; says how many."""
    return db.change(SQL["delete_ended_bulk_runs"], (cutoff, limit))


def step_counts(db: Connection, step: BulkStep) -> bool:
    """Whether the run still stands where the step begins."""
    return db.value(SQL["bulk_step_counts"], (step.run_id.bytes, *_place(step.after))) is not None


def take_step(db: Connection, step: BulkStep, done: int, skipped: int, now: int) -> None:
    cursor_at, cursor_id = _place(step.to)
    db.run(
        SQL["take_bulk_step"],
        {
            "id": step.run_id.bytes,
            "done": done,
            "skipped": skipped + step.skipped,
            "cursor_at": cursor_at,
            "cursor_id": cursor_id,
            "last": int(step.last),
            "now": now,
        },
    )
    auditing.append(db, [*step.events, *([] if step.event is None else [step.event])])


def _place(place: Place | None) -> tuple[int | None, bytes | None]:
    return (None, None) if place is None else (micros(place.died_at), place.id.bytes)


def _run(row: Row) -> BulkRun:
    (id_, act, wanted, by, role, origin, reason, created_at, total, done, skipped, state, cursor_at, cursor_id,
     ended_at) = row  # fmt: skip
    return BulkRun(
        id=uuid(id_),
        act=ReviewAct(act),
        filter=msgspec.json.decode(wanted, type=DeadLetterFilter),
        by=by,
        role=role,
        origin=origin,
        reason=reason,
        created_at=moment(created_at),
        total=total,
        done=done,
        skipped=skipped,
        state=BulkState(state),
        cursor=None if cursor_at is None else Place(moment(cursor_at), uuid(cursor_id)),
        ended_at=maybe_moment(ended_at),
    )
