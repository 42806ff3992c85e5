"""Steps, and events that jobs wait for, in SQLite. The file has one writer, so waits and deliveries never overlap."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from dutiful.core.steps import SentEvent, StepRecord, StepState, event_gate
from dutiful.store.steps import SHOWN_BYTES, StepMark, StepWait, Unstored, Wakened
from dutiful.stores.sqlite import placement
from dutiful.stores.sqlite.engine import SQL, Connection, Subject, reads, writes
from dutiful.stores.sqlite.engine.codec import clock, maybe_checked, moment, span
from dutiful.stores.sqlite.engine.columns import STEP, Carried


class SqliteSteps(Subject):
    @reads
    def all(self, db: Connection, job_id: UUID) -> list[StepRecord]:
        steps, shown = [], 0
        for *row, size in db.rows(SQL["steps_without_results"], (job_id.bytes,)):
            step, shown = STEP.decode((*row, None)), shown + (size or 0)
            steps.append(_step(db, job_id.bytes, step.name) if size and shown <= SHOWN_BYTES else step)
        return steps

    @reads
    def load(self, db: Connection, job_ids: Sequence[UUID]) -> Mapping[UUID, list[StepRecord]]:
        found = {job_id: _steps(db, job_id) for job_id in job_ids}
        return {job_id: steps for job_id, steps in found.items() if steps}

    @writes
    def put(self, db: Connection, marks: Sequence[StepMark], *, now: datetime | None = None) -> Unstored:
        at = clock(now)
        claims = {(mark.job_id.bytes, mark.claim_id) for mark in marks}
        lost = {claim for claim in claims if not _is_held(db, claim)}
        rows = [
            (mark.job_id.bytes, mark.name, mark.position, mark.code, mark.fingerprint, at - span(mark.took), at,
             maybe_checked(mark.result))
            for mark in marks
            if (mark.job_id.bytes, mark.claim_id) not in lost
        ]  # fmt: skip
        db.many(SQL["put_step"], rows)
        return Unstored(frozenset(claim_id for _, claim_id in lost))

    @writes
    def wait(
        self, db: Connection, wait: StepWait, *, now: datetime | None = None
    ) -> tuple[StepRecord, datetime] | None:
        at, job_id = clock(now), wait.job_id.bytes
        if not _is_held(db, (job_id, wait.claim_id)):
            return None
        due_at = None if wait.timeout is None else at + span(wait.timeout)
        begun = {"name": wait.name, "position": wait.position, "kind": wait.kind.value, "code": wait.code}
        of = {"fingerprint": wait.fingerprint, "due_at": due_at, "event": wait.event, "key": wait.key}
        db.run(SQL["begin_wait"], {"job_id": job_id, "now": at, **begun, **of})
        step = _step(db, job_id, wait.name)
        if step.state is StepState.WAITING and step.fingerprint == wait.fingerprint:
            ids = {"job_id": job_id, "name": wait.name, "now": at}
            seq = None if wait.event is None else db.value(SQL["event_for_step"], ids)
            if seq is not None:
                db.run(SQL["end_wait"], {**ids, "state": StepState.DONE.value, "seq": seq})
            elif step.due_at is not None and step.due_at <= moment(at):
                state = StepState.DONE if wait.event is None else StepState.TIMED_OUT
                db.run(SQL["end_wait"], {**ids, "state": state.value, "seq": None})
            step = _step(db, job_id, wait.name)
        return step, moment(at)

    @writes
    def send(self, db: Connection, event: SentEvent, keep: timedelta, *, now: datetime | None = None) -> bool:
        at = clock(now)
        row = (event.id.bytes, event.name, event.key, event.tenant, event.by, at, at + span(keep))
        return db.change(SQL["send_event"], (*row, maybe_checked(event.data))) > 0

    @writes
    def deliver(self, db: Connection, limit: int, *, now: datetime | None = None) -> Wakened:
        at = clock(now)
        placing = placement.Placing(db, placement.blocked_kinds(db), at)
        events, left = db.rows(SQL["undelivered_events"], (limit,)), limit
        seen = len(events)
        for seq, name, key, tenant in events:
            of = {"event": name, "key": key, "tenant": tenant or "", "seq": seq, "limit": left + 1}
            waiting = db.rows(SQL["steps_waiting_for"], of)
            done = {"state": StepState.DONE.value, "now": at, "seq": seq}
            for job_id, step in waiting[:left]:
                db.run(SQL["end_wait"], {"job_id": job_id, "name": step, **done})
            _wake(db, (job_id for job_id, _ in waiting[:left]), placing)
            if len(waiting) > left:
                seen = limit
                break  # the next call takes it up again, for those that still wait
            left -= len(waiting)
            db.run(SQL["mark_delivered"], (seq,))
        over = db.rows(SQL["waits_over"], (at, limit))
        _wake(db, (job_id for (job_id,) in over), placing)
        placing.write()
        return Wakened(max(seen, len(over)), frozenset(placing.levels))


def gate(db: Connection, job_id: bytes, names: Sequence[str], now: int) -> tuple[str, int | None] | None:
    """The gate of a job that waits in these steps, and the first end of a wait; None if one of them is over."""
    rows = [row for name in names if (row := db.row(SQL["waiting_step"], (job_id, name))) is not None]
    until = min((row[2] for row in rows if row[2] is not None), default=None)
    if len(rows) < len(names) or (until is not None and until <= now):
        return None
    event, key = next((row[0], row[1]) for row in rows if row[0] is not None)
    return event_gate(event, key), until


def delete(db: Connection, job_ids: Sequence[tuple[bytes]]) -> None:
    """Deletes the steps of jobs that are being deleted."""
    if db.value(SQL["any_step"]):
        db.many(SQL["delete_step"], job_ids)


def _is_held(db: Connection, claim: tuple[bytes, int]) -> bool:
    lease = db.row(SQL["is_held"], claim)
    return lease is not None and lease[0] is None


def _steps(db: Connection, job_id: UUID) -> list[StepRecord]:
    return [STEP.decode(row) for row in db.rows(SQL["steps"], (job_id.bytes,))]


def _step(db: Connection, job_id: bytes, name: str) -> StepRecord:
    row = db.row(SQL["step"], (job_id, name))
    assert row is not None
    return STEP.decode(row)


def _wake(db: Connection, job_ids: Iterable[bytes], placing: placement.Placing) -> None:
    for job_id in job_ids:
        row = db.row(SQL["blocked_row"], (job_id,))
        if row is not None and row[0] == placement.EVENT:
            _, _, _, _, *carried = row
            db.run(SQL["delete_blocked"], (job_id,))
            placing.add(job_id, Carried(*carried), None)
