"""What people and the client read."""

from collections.abc import Sequence
from uuid import UUID

from dutiful.acting import Pause, PauseScope
from dutiful.core.job import AttemptRecord, JobRecord, Progress
from dutiful.core.readable import read, read_object, read_objects
from dutiful.core.transitions import State
from dutiful.duties import ScheduleRecord, WorkerRecord
from dutiful.locking import LockMode
from dutiful.stores import liveness
from dutiful.stores.sqlite.codec import maybe_moment, maybe_uuid, moment, uuid
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL

_EVERYWHERE = "dutiful_job j"


def find(db: Connection, job_id: UUID) -> JobRecord | None:
    row = job_row(db, job_id)
    return None if row is None else record(row)


def job_row(db: Connection, job_id: UUID) -> Row | None:
    """All that is known of a job, for record(); the last two columns are stale.told_at and the claim's number."""
    return db.row(f"{_jobs(_EVERYWHERE)} WHERE j.id = ?", (job_id.bytes,))


def outcomes(db: Connection, job_ids: Sequence[UUID]) -> list[JobRecord]:
    statement = f"{_jobs(_from('dutiful_finished'))} WHERE p.job_id = ?"
    found = (db.row(statement, (job_id.bytes,)) for job_id in job_ids)
    return [record(row) for row in found if row is not None]


def attempts(db: Connection, job_id: UUID) -> list[AttemptRecord]:
    return [
        AttemptRecord(uuid(job), claim_id, attempt, outcome, maybe_uuid(worker_id), maybe_moment(claimed_at),
                      moment(ended_at), read_object(error))
        for job, claim_id, attempt, outcome, worker_id, claimed_at, ended_at, error in db.rows(
            SQL["attempts"], (job_id.bytes,)
        )
    ]  # fmt: skip


def dependencies(db: Connection, job_id: UUID) -> list[JobRecord]:
    found = (find(db, uuid(needed)) for (needed,) in db.rows(SQL["needs_of"], (job_id.bytes,)))
    return [job for job in found if job is not None]


def workers(db: Connection, now: int) -> list[WorkerRecord]:
    return [
        WorkerRecord(
            id=uuid(id_), name=name, host=host, pid=pid, started_at=moment(started_at), seen_at=moment(seen_at),
            alive=liveness.alive(process, expires_at, now), process=process, leading=bool(leading),
            lanes=read(lanes), kinds=read(kinds), locks=None if locks is None else LockMode(locks),
        )
        for (id_, name, host, pid, process_started, started_at, seen_at, expires_at, leading, lanes, kinds, locks)
        in db.rows(SQL["workers"])
        for process in (liveness.process_of(host, pid, process_started),)
    ]  # fmt: skip


def schedules(db: Connection) -> list[ScheduleRecord]:
    return [
        ScheduleRecord(
            name=name, kind=kind, expression=expression, timezone=timezone, catch_up=catch_up, job=read(job),
            next_at=moment(next_at), last_at=maybe_moment(last_at), last_job_id=maybe_uuid(last_job_id),
            enabled=bool(enabled),
        )
        for name, kind, expression, timezone, catch_up, job, next_at, last_at, last_job_id, enabled in db.rows(
            SQL["schedules"]
        )
    ]  # fmt: skip


def pauses(db: Connection) -> list[Pause]:
    return [
        Pause(PauseScope(scope), name, moment(since), by, reason)
        for scope, name, since, by, reason in db.rows(SQL["pauses"])
    ]


def lines(db: Connection) -> list[tuple[str, int]]:
    """Every (queue, priority) with a ready job, found by stepping from one to the next by the primary key."""
    found: list[tuple[str, int]] = []
    line = db.row(SQL["first_line"])
    while line is not None:
        found.append((line[0], line[1]))
        line = db.row(SQL["next_line_of_queue"], line) or db.row(SQL["next_line_beyond_queue"], line[:1])
    return found


def _jobs(source: str) -> str:
    return SQL["select_jobs"].replace("{source}", source)


def _from(place: str) -> str:
    # CROSS JOIN keeps the place as the outer loop, which is read backwards by its index on job_id.
    return f"{place} p CROSS JOIN dutiful_job j ON j.id = p.job_id"


def record(row: Row) -> JobRecord:
    (id_, kind, queue, payload, priority, max_attempts, created_at, run_at, tenant, correlation_id, parent_id, retry_of,
     subject, created_by, options, state, attempt, crashes, due_at, started_at, finished_at, expires_at,
     cancel_requested_at, worker_id, result, errors, gate, gate_key, *progress, stale_at, last_error, _, _,
     ) = row  # fmt: skip
    job_id = uuid(id_)
    return JobRecord(
        id=job_id,
        kind=kind,
        queue=queue,
        state=State(state),
        payload=read(payload),
        priority=priority,
        attempt=attempt,
        crashes=crashes,
        max_attempts=max_attempts,
        created_at=moment(created_at),
        run_at=maybe_moment(run_at if due_at is None else due_at),
        started_at=maybe_moment(started_at),
        finished_at=maybe_moment(finished_at),
        expires_at=maybe_moment(expires_at),
        cancel_requested_at=maybe_moment(cancel_requested_at),
        worker_id=maybe_uuid(worker_id),
        result=read(result),
        errors=read_objects(errors),
        gate=gate,
        gate_key=gate_key,
        tenant=tenant,
        correlation_id=correlation_id or str(job_id),
        parent_id=maybe_uuid(parent_id),
        retry_of=maybe_uuid(retry_of),
        subject=read_object(subject),
        created_by=created_by,
        options=read_object(options),
        progress=_progress(*progress),
        stale_at=maybe_moment(stale_at),
        last_error=read_object(last_error),
    )


def _progress(
    phase: str | None, percent: float | None, overall: int | None, message: str | None, items: str | None,
    updated_at: int | None,
) -> Progress | None:  # fmt: skip
    if updated_at is None:
        return None
    return Progress(
        phase=phase,
        percent=percent,
        overall=overall,
        message=message,
        items=read_object(items),
        updated_at=moment(updated_at),
    )
