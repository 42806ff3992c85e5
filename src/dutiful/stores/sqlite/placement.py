"""Stores a live job as ready, scheduled or blocked, and ends a waiting one."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any
from uuid import UUID

from msgspec.structs import astuple

from dutiful.core.job import NewJob
from dutiful.core.states import WAITING, State
from dutiful.stores.order import FIRST_SEQ, SEQ_STEP
from dutiful.stores.sqlite import dead_letters_writer, progress, webhooks
from dutiful.stores.sqlite.engine import SQL, Connection
from dutiful.stores.sqlite.engine.codec import errors_json, to_json
from dutiful.stores.sqlite.engine.columns import (
    BlockedRow,
    Carried,
    FinishedRow,
    ReadyRow,
    ScheduledRow,
    new_ready_encoder,
    row_maker,
)

PAUSED, DEPENDENCY, BREAKER, LIMIT, EVENT = "paused", "dependency", "breaker", "limit", "event"
_new_ready = new_ready_encoder()
_ready_row, _scheduled_row, _blocked_row = row_maker(ReadyRow), row_maker(ScheduledRow), row_maker(BlockedRow)


BlockedKinds = Mapping[str, bool]
"""Kinds whose jobs are blocked instead of ready, each with whether it is stopped. If not, its jobs wait for its limits,
and may be scheduled."""


def blocked_kinds(db: Connection) -> BlockedKinds:
    return {name: bool(stopped) for name, stopped in db.rows(SQL["blocked_kinds"])}


def state_of(db: Connection, job_id: bytes) -> State | None:
    found = db.row(SQL["place_of"], {"id": job_id})
    return None if found is None else State(found[0])


def append_ready(db: Connection, jobs: Sequence[NewJob], ids: Sequence[bytes], first: int) -> None:
    """Makes new jobs ready that are due now; `first` is the seq of the first one."""
    db.many(SQL["insert_ready"], list(map(_new_ready, jobs, ids, count(first, SEQ_STEP))))


class Placing:
    """Gives jobs that have no place one: blocked if their kind is paused, scheduled if not due, or ready."""

    def __init__(self, db: Connection, paused: BlockedKinds, now: int) -> None:
        self._db = db
        self._paused = paused
        self._now = now
        self._ready: list[ReadyRow] = []
        self._scheduled: list[ScheduledRow] = []
        self._blocked: list[BlockedRow] = []
        self.levels: set[tuple[str, int]] = set()  # the (queue, priority) that got ready jobs

    def add(
        self,
        job_id: bytes,
        carried: Carried,
        run_at: int | None,
        seq: int | None = None,
        rejected_by: str | None = None,
    ) -> State:
        """Returns the job's new state; `seq` is its old position.

        What is due gets a seq even if its kind is paused, and becomes ready at that position when the pause is over.
        """
        due = run_at is None or run_at <= self._now
        stopped = self._paused.get(carried.kind)
        if stopped or (stopped is not None and due and rejected_by is None):
            self._block(job_id, carried, PAUSED, carried.kind, run_at, (seq or self._seq(run_at)) if due else None)
            return State.BLOCKED
        if rejected_by is not None:
            self._block(job_id, carried, BREAKER, rejected_by, None, self._seq(None))
            return State.BLOCKED
        if not due:
            self._scheduled.append(_scheduled_row(carried, job_id=job_id, run_at=run_at))
            return State.SCHEDULED
        self._ready.append(_ready_row(carried, job_id=job_id, seq=seq or self._seq(run_at)))
        return State.READY

    def wait(self, job_id: bytes, carried: Carried, run_at: int | None, watched: UUID) -> None:
        """Blocks a new job until those that it depends on have ended; `watched` is the newest that has not."""
        self._block(job_id, carried, DEPENDENCY, watched.hex, run_at, None)

    def block_for_event(self, job_id: bytes, carried: Carried, event: str, until: int | None) -> None:
        """Blocks a job until its event comes, whether or not its kind is paused."""
        self._block(job_id, carried, EVENT, event, until, None)

    def _seq(self, run_at: int | None) -> int:
        """The seq of a job that became due at `run_at`, or now."""
        return self._now if run_at is None else max(run_at, FIRST_SEQ)

    def _block(self, job_id: bytes, carried: Carried, gate: str, key: str, run_at: int | None, seq: int | None) -> None:
        self._blocked.append(
            _blocked_row(carried, job_id=job_id, gate=gate, key=key, run_at=run_at, since=self._now, seq=seq)
        )

    def write(self) -> None:
        """Writes all jobs, those of one state in the order in which they were added."""
        db = self._db
        if self._ready:
            db.many(SQL["insert_ready"], map(astuple, self._ready))
            self.levels.update((row.queue, row.priority) for row in self._ready)
        if self._scheduled:
            db.many(SQL["insert_scheduled"], map(astuple, self._scheduled))
        if self._blocked:
            db.many(SQL["insert_blocked"], map(astuple, self._blocked))


def finish(db: Connection, row: FinishedRow) -> None:
    """Writes the end of a job whose place or lease was deleted before."""
    db.run(SQL["insert_finished"], astuple(row))


def cancel_waiting(db: Connection, job_id: bytes, reason: str, now: int) -> bool:
    return end_waiting(db, job_id, State.CANCELLED, {"type": "Cancelled", "message": reason}, now)


def end_waiting(
    db: Connection, job_id: bytes, to: State, error: Mapping[str, Any], now: int, had: int | None = None
) -> bool:
    """Ends a waiting job as cancelled or failed, and frees what it held; False if it does not wait.

    With `had`, only if it has had so many attempts, and one more is counted.
    """
    found = db.row(SQL["place_of"], {"id": job_id})
    if found is None or found[0] not in WAITING or had not in (None, found[1]):
        return False
    state, attempt, crashes = found
    attempt += had is not None
    db.run(SQL[f"delete_{state}"], (job_id,))
    errors = (dict(error),)
    finish(
        db,
        FinishedRow(
            job_id=job_id,
            claim_id=None,
            state=to.value,
            attempt=attempt,
            crashes=crashes,
            worker_id=None,
            claimed_at=None,
            finished_at=now,
            result=None,
            errors=errors_json(errors),
        ),
    )
    if to is State.FAILED:
        dead_letters_writer.write(db, job_id, errors, attempt, now)
    progress.cancel_phases(db, job_id, now)
    free(db, job_id)
    webhooks.write_posts(db, [job_id], [job_id], now)
    return True


def retry_waiting(
    db: Connection, job_id: bytes, error: Mapping[str, Any], had: int, delay: int, now: int
) -> State | None:
    """Records a failed attempt of a waiting job that has had so many, and lets it wait; its new state, if it waits."""
    found = db.row(SQL["place_of"], {"id": job_id})
    if found is None or found[0] not in WAITING or found[1] != had:
        return None
    state, _, crashes = found
    due: int | None = db.value(SQL["due_of_waiting"], (job_id,))
    next_at = max(now + delay, due or 0)  # never before the time that it was enqueued for
    run_at = next_at if next_at > now else None
    if db.change(SQL["count_dependent_attempt"], (job_id, had + 1)):
        to = State.BLOCKED  # until the jobs that it depends on have ended
    else:
        row = db.row(SQL["carried_by_job"], (job_id, had + 1, crashes))
        assert row is not None
        db.run(SQL[f"delete_{state}"], (job_id,))
        placing = Placing(db, blocked_kinds(db), now)
        to = placing.add(job_id, Carried(*row), run_at)
        placing.write()
    claim_id = db.value(SQL["next_claim"], (1,))
    attempt = (job_id, claim_id, had + 1, "failed", None, None, now, run_at, to_json(dict(error)))
    db.run(SQL["insert_attempt"], attempt)
    return to


def free(db: Connection, job_id: bytes) -> None:
    """Deletes what only a live job has: unique keys that end with it."""
    for any_held, delete in (("any_active_key", "free_active_key"), ("any_queued_key", "free_queued_key")):
        if db.value(SQL[any_held]):
            db.run(SQL[delete], (job_id,))
