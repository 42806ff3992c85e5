"""What services do for jobs that wait and for those that lost their worker, and when schedules fire."""

from collections.abc import Sequence
from uuid import UUID

from dutiful.core.job import Lapsed
from dutiful.duties import Fired, Promotion, ScheduleRecord
from dutiful.stores import liveness
from dutiful.stores.sqlite import intake, places
from dutiful.stores.sqlite.codec import maybe_bytes, maybe_micros, maybe_moment, micros, to_json, uuid
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL


def promote(db: Connection, limit: int, now: int) -> Promotion:
    due = db.rows(SQL["due"], (now, limit))
    placing = places.Placing(db, places.paused_kinds(db), now)
    for _, job_id, *line, attempt, crashes in due:
        placing.add(job_id, tuple(line), attempt, crashes, None)
    if due:
        db.many(SQL["take_scheduled"], [row[:2] for row in due])
        placing.write()
    return Promotion(len(due), frozenset(placing.lines), maybe_moment(db.value(SQL["next_run_at"])))


def lapsed(db: Connection, limit: int, now: int) -> list[Lapsed]:
    return [_lapsed(row) for row in db.rows(SQL["lapsed"], (now, limit))]


def held_by(db: Connection, worker_id: UUID) -> list[Lapsed]:
    return [_lapsed(row) for row in db.rows(SQL["held_by"], (worker_id.bytes,))]


def held(db: Connection, job_id: UUID) -> Lapsed | None:
    row = db.row(SQL["claim_of_job"], (job_id.bytes,))
    return None if row is None else _lapsed(row)


def orphans(db: Connection) -> list[Lapsed]:
    """The claims of workers whose processes have ended.

    A worker that is not on the list proves nothing: it may have left while a handler that would not stop went on.
    """
    dead = (id_ for id_, host, pid, started in db.rows(SQL["claiming_workers"]) if liveness.dead(host, pid, started))
    return [lapsed for id_ in dead for lapsed in held_by(db, uuid(id_))]


def _lapsed(row: Row) -> Lapsed:
    job_id, claim_id, attempt, crashes, kind, worker_id, cancel_requested, *whose = row
    return Lapsed(uuid(job_id), claim_id, attempt, crashes, kind, uuid(worker_id), bool(cancel_requested), *whose)


def put_schedules(db: Connection, schedules: Sequence[ScheduleRecord]) -> None:
    db.many(
        SQL["put_schedule"],
        [
            {
                "name": one.name,
                "kind": one.kind,
                "expression": one.expression,
                "timezone": one.timezone,
                "catch_up": one.catch_up,
                "job": to_json(one.job),
                "next_at": micros(one.next_at),
                "last_at": maybe_micros(one.last_at),
                "last_job_id": maybe_bytes(one.last_job_id),
                "enabled": int(one.enabled),
            }
            for one in schedules
        ],
    )


def fire(db: Connection, fired: Fired, now: int) -> bool:
    moved = db.change(
        SQL["move_schedule"],
        {
            "name": fired.name,
            "expected": micros(fired.expected),
            "next_at": micros(fired.next_at),
            "at": micros(fired.at),
            "last_job_id": fired.jobs[-1].id.bytes if fired.jobs else None,
        },
    )
    if moved:
        intake.insert(db, fired.jobs, now)
    return bool(moved)
