"""Phases and progress of running jobs in SQLite."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from dutiful.core.job import PhaseRecord, PhaseState
from dutiful.core.json import read, read_object
from dutiful.core.settle import Change
from dutiful.store.progress import PhaseMark, ProgressReport
from dutiful.stores.sqlite.engine import SQL, Connection, Subject, writes
from dutiful.stores.sqlite.engine.codec import clock, maybe_checked, moment, to_json
from dutiful.stores.sqlite.engine.columns import PHASE


class SqliteProgress(Subject):
    @writes
    def report(
        self,
        db: Connection,
        reports: Sequence[ProgressReport],
        marks: Sequence[PhaseMark] = (),
        *,
        now: datetime | None = None,
    ) -> frozenset[int]:
        at = clock(now)
        written: list[ProgressReport | PhaseMark] = [*reports, *marks]
        claims = {(one.job_id.bytes, one.claim_id) for one in written}
        # A phase that ends after a request to cancel its job is cancelled with it.
        marked = {(mark.job_id.bytes, mark.claim_id) for mark in marks}
        lost = set()
        for claim in claims:
            lease = db.row(SQL["is_held"], claim)
            if lease is None or (lease[0] is not None and claim in marked):
                lost.add(claim)
        for mark in marks:
            if (mark.job_id.bytes, mark.claim_id) not in lost:
                _mark(db, mark, at)
        rows = [
            (one.job_id.bytes, one.phase, one.percent, one.overall, one.message, maybe_checked(one.items), at)
            for one in reports
            if (one.job_id.bytes, one.claim_id) not in lost
        ]
        db.many(SQL["put_progress"], rows)
        return frozenset(claim_id for _, claim_id in lost)

    async def phases(self, job_id: UUID) -> list[PhaseRecord]:
        return await self._engine.read(lambda db: phases(db, job_id))


def _mark(db: Connection, mark: PhaseMark, now: int) -> None:
    job_id = mark.job_id.bytes
    if mark.anew:
        db.run(SQL["delete_phase"], (job_id,))
    phase = {"job_id": job_id, "name": mark.name, "position": mark.position, "now": now}
    if mark.state is PhaseState.RUNNING:
        db.run(SQL["begin_phase"], phase)
    else:
        result, error = maybe_checked(mark.result), maybe_checked(mark.error)
        ended = {"state": mark.state.value, "result": result, "error": error, "progress": _last(db, mark, now)}
        db.run(SQL["end_phase"], phase | ended)


def _last(db: Connection, mark: PhaseMark, now: int) -> str | None:
    """The last progress of a phase that ends, as the phase keeps it."""
    if mark.progress is not None:
        # A moment earlier, because it is older than the end of the phase.
        return to_json({**(read_object(mark.progress) or {}), "updated_at": moment(now - 1)})
    row = db.row(SQL["progress_of_phase"], (mark.job_id.bytes, mark.name))
    if row is None:
        return None
    percent, overall, message, items, at = row
    kept = {"percent": percent, "overall": overall, "message": message, "items": items and read_object(items)}
    return to_json({"phase": mark.name, **kept, "updated_at": moment(at)})


def phases(db: Connection, job_id: UUID, largest: int | None = None) -> list[PhaseRecord]:
    """The phases of a job, without results of more than `largest` bytes."""
    if largest is None:
        return [PHASE.decode(row) for row in db.rows(SQL["phases"], (job_id.bytes,))]
    return [PHASE.decode(row) for row in db.rows(SQL["small_phases"], {"job_id": job_id.bytes, "largest": largest})]


def any_phase(db: Connection) -> bool:
    """Whether any job has phases; checked once for many jobs, so that jobs without phases cost next to nothing."""
    return db.row(SQL["any_phase"]) is not None


def stop_phases(db: Connection, change: Change, known: bool, now: int) -> None:
    """Applies a change to the phases of the job that it settles; `known`: some job has phases."""
    job_id = change.job_id.bytes
    if known and change.phase_to is not None:
        failed = change.phase_to is PhaseState.FAILED and change.errors
        error = to_json(change.errors[0]) if failed else None
        db.run(SQL["stop_phase"], {"job_id": job_id, "state": change.phase_to.value, "error": error, "now": now})
    if change.phase_to is PhaseState.CANCELLED:
        cancel_phases(db, job_id, now)


def complete_phase(db: Connection, job_id: UUID, result: str | None, now: int) -> None:
    """Completes the running phase of a job that its handler completes in a transaction."""
    if any_phase(db):
        ended = {"job_id": job_id.bytes, "result": maybe_checked(result), "now": now}
        if db.change(SQL["complete_phase"], ended):
            db.run(SQL["complete_progress"], (job_id.bytes, now))


def cancel_phases(db: Connection, job_id: bytes, now: int) -> None:
    """Cancels every phase of the job that is not over, whether or not it had begun."""
    names = read(db.value(SQL["phases_of_job"], (job_id,))) or ()
    db.many(SQL["cancel_phase"], [(job_id, name, position, now) for position, name in enumerate(names)])


def delete(db: Connection, job_ids: Sequence[tuple[bytes]]) -> None:
    """Deletes the phases and the progress of jobs that are being deleted."""
    if any_phase(db):
        db.many(SQL["delete_phase"], job_ids)
    if db.value(SQL["any_progress"]):
        db.many(SQL["delete_progress"], job_ids)
