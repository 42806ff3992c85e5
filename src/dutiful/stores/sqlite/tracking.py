"""Keeps how far jobs have come: their phases, and what they last said of their progress."""

from collections.abc import Sequence
from uuid import UUID

from dutiful.core.job import PhaseRecord
from dutiful.core.pipeline import PhaseState
from dutiful.core.readable import read, read_object
from dutiful.core.settle import Change
from dutiful.stores.sqlite.codec import maybe_checked, maybe_moment, to_json
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.sql import SQL
from dutiful.tracking import PhaseMark, Report


def report(db: Connection, reports: Sequence[Report], marks: Sequence[PhaseMark], now: int) -> frozenset[int]:
    told: list[Report | PhaseMark] = [*reports, *marks]
    claims = {(one.job_id.bytes, one.claim_id) for one in told}
    lost = {claim for claim in claims if db.row(SQL["is_held"], claim) is None}
    for mark in marks:
        if (mark.job_id.bytes, mark.claim_id) not in lost:
            _mark(db, mark, now)
    db.many(
        SQL["put_progress"],
        [
            (one.job_id.bytes, one.phase, one.percent, one.overall, one.message, maybe_checked(one.items), now)
            for one in reports
            if (one.job_id.bytes, one.claim_id) not in lost
        ],
    )
    return frozenset(claim_id for _, claim_id in lost)


def _mark(db: Connection, mark: PhaseMark, now: int) -> None:
    job_id = mark.job_id.bytes
    if mark.anew:
        db.run(SQL["delete_phases"], (job_id,))
    phase = {"job_id": job_id, "name": mark.name, "position": mark.position, "now": now}
    if mark.state is PhaseState.RUNNING:
        db.run(SQL["begin_phase"], phase)
    else:
        result, error = maybe_checked(mark.result), maybe_checked(mark.error)
        db.run(SQL["end_phase"], phase | {"state": mark.state.value, "result": result, "error": error})


def phases(db: Connection, job_id: UUID) -> list[PhaseRecord]:
    return [
        PhaseRecord(
            name=name, position=position, state=PhaseState(state), attempt=attempt, started_at=maybe_moment(started_at),
            ended_at=maybe_moment(ended_at), result=read(result), error=read_object(error),
        )
        for name, position, state, attempt, started_at, ended_at, result, error in db.rows(
            SQL["phases"], (job_id.bytes,)
        )
    ]  # fmt: skip


def any_phase(db: Connection) -> bool:
    """Whether any job has phases: asked once for many, so that plain jobs pay nothing."""
    return db.row(SQL["any_phase"]) is not None


def stop_phases(db: Connection, change: Change, known: bool, now: int) -> None:
    """Do to the phases of a job that is settled what the change says; `known`: there are phases of some job."""
    job_id = change.job_id.bytes
    if known and change.phase_to is not None:
        failed = change.phase_to is PhaseState.FAILED and change.errors
        error = to_json(change.errors[0]) if failed else None
        db.run(SQL["stop_phase"], {"job_id": job_id, "state": change.phase_to.value, "error": error, "now": now})
    if change.phase_to is PhaseState.CANCELLED:
        cancel_phases(db, job_id, now)


def complete_phase(db: Connection, job_id: UUID, result: str | None, now: int) -> None:
    """The last phase of a job that its handler completes in a transaction: it ends with the job."""
    if any_phase(db):
        ended = {"job_id": job_id.bytes, "result": maybe_checked(result), "now": now}
        if db.change(SQL["complete_phase"], ended):
            db.run(SQL["complete_progress"], (job_id.bytes, now))


def cancel_phases(db: Connection, job_id: bytes, now: int) -> None:
    """Every phase that was asked for and is not over becomes cancelled, whether or not it had begun."""
    names = read(db.value(SQL["phases_asked_for"], (job_id,))) or ()
    db.many(SQL["cancel_phase"], [(job_id, name, position, now) for position, name in enumerate(names)])


def forget(db: Connection, job_ids: Sequence[tuple[bytes]]) -> None:
    """Delete what is kept of jobs that are being deleted."""
    if any_phase(db):
        db.many(SQL["delete_phases"], job_ids)
    if db.value(SQL["any_progress"]):
        db.many(SQL["delete_progress"], job_ids)
