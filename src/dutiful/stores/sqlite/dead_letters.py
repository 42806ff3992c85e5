"""Dead letters in SQLite: searching, counting, reviews, bulk runs, and resolution."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from dutiful.core.ids import public
from dutiful.core.job import Insertion
from dutiful.core.json import read_object, read_objects
from dutiful.core.review.audit import AuditEvent
from dutiful.core.review.state import BY_HAND, TABLE, ReviewAct, ReviewState, resolution
from dutiful.core.states import State
from dutiful.store.dead_letters import (
    BulkRun,
    BulkStep,
    DeadLetter,
    DeadLetterCounts,
    DeadLetterFilter,
    DeadLetterGroup,
    LetterCursor,
    Review,
    Reviewed,
)
from dutiful.stores.counting import dead_letter_counts
from dutiful.stores.sqlite import audit, jobs
from dutiful.stores.sqlite.engine import SQL, Connection, Engine, Row, Subject, browses, reads, writes
from dutiful.stores.sqlite.engine.codec import clock, maybe_micros, maybe_uuid, micros, moment, uuid
from dutiful.stores.sqlite.engine.columns import BULK_RUN, DEAD_LETTER, ID, PLAIN, TIME, Columns
from dutiful.stores.sqlite.engine.driver import case_folded
from dutiful.stores.sqlite.engine.sql import Conditions

Applied = dict[UUID, tuple[Review, ReviewState]]

# The columns of group_dead_letters.
_GROUP = Columns(
    DeadLetterGroup, fingerprint=PLAIN, kind=PLAIN, error_class=PLAIN, error_type=PLAIN, message=PLAIN, count=PLAIN,
    first_at=TIME, last_at=TIME, newest_id=ID,
)  # fmt: skip
_STORED = (Insertion.MADE, Insertion.REPLACED)
_SEARCHED = 2_000
"""How many reprocessing ones a call reads, in about 10 ms."""


class SqliteDeadLetters(Subject):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._resolved_to = b""

    @reads
    def find(self, db: Connection, job_id: UUID) -> DeadLetter | None:
        return _find(db, job_id)

    @browses
    def find_all(self, db: Connection, job_ids: Sequence[UUID]) -> list[DeadLetter]:
        found = [letter for job_id in job_ids if (letter := _find(db, job_id)) is not None]
        return sorted(found, key=lambda one: (one.died_at, one.id), reverse=True)

    @browses
    def search(
        self,
        db: Connection,
        filter: DeadLetterFilter,
        *,
        after: LetterCursor | None = None,
        limit: int = 50,
        details: bool = True,
    ) -> list[DeadLetter]:
        wanted = _conditions(filter)
        wanted.bindings["limit"] = limit
        if after is not None:
            at, id_ = _cursor(after)
            wanted.add("(d.died_at, d.job_id) < (:after_at, :after_id)", after_at=at, after_id=id_)
        select = SQL["select_dead_letters" if details else "select_dead_letter_summaries"]
        statement = f"{select} {wanted.where} ORDER BY d.died_at DESC, d.job_id DESC LIMIT :limit"
        return [_letter(row) for row in db.rows(statement, wanted.bindings)]

    @reads
    def states(self, db: Connection, job_ids: Sequence[UUID]) -> dict[UUID, ReviewState]:
        found = {job_id: db.row(SQL["dead_letter_status"], (job_id.bytes,)) for job_id in job_ids}
        return {job_id: ReviewState(row[0]) for job_id, row in found.items() if row is not None}

    @browses
    def count(self, db: Connection, filter: DeadLetterFilter) -> int:
        wanted = _conditions(filter)
        counted: int = db.value(f"{SQL['count_dead_letters']} {wanted.where}", wanted.bindings)
        return counted

    @browses
    def counts(self, db: Connection, filter: DeadLetterFilter) -> DeadLetterCounts:
        wanted = _conditions(filter)
        rows = db.rows(SQL["count_dead_letters_by"].replace("{where}", wanted.where), wanted.bindings)
        return dead_letter_counts([(*counted, moment(first_at)) for *counted, first_at in rows])

    @browses
    def groups(self, db: Connection, filter: DeadLetterFilter, limit: int = 50) -> list[DeadLetterGroup]:
        wanted = _conditions(filter)
        statement = SQL["group_dead_letters"].replace("{where}", wanted.where)
        return [_GROUP.decode(row) for row in db.rows(statement, {**wanted.bindings, "limit": limit})]

    @writes
    def review(
        self, db: Connection, reviews: Sequence[Review], *, step: BulkStep | None = None, now: datetime | None = None
    ) -> list[Reviewed]:
        """Applies the reviews that are allowed; of several on one dead letter, only the first."""
        at = clock(now)
        if step is not None and not db.value(SQL["is_bulk_step_current"], (step.run_id.bytes, *_cursor(step.after))):
            return []
        standing = {one.id: db.row(SQL["dead_letter_status"], (one.id.bytes,)) for one in reviews}
        apply, holders = _with_their_jobs(db, _allowed(reviews, standing), at)
        db.many(SQL["review_dead_letter"], [_reviewed_row(one, to, at) for one, to in apply.values()])
        audit.append(db, [one.event for one, _ in apply.values() if one.event is not None])
        audit.append(
            db,
            [
                _refusal(one.refusal, standing[one.id], holders.get(one.id))
                for one in reviews
                if one.refusal and one.id not in apply
            ],
        )
        if step is not None:
            skipped = len(reviews) - len(apply) + step.skipped
            moved = (step.run_id.bytes, len(apply), skipped, *_cursor(step.to), int(step.last), at)
            db.run(SQL["take_bulk_step"], moved)
            audit.append(db, [*step.events, *([] if step.event is None else [step.event])])
        return [_answer(one, apply, standing[one.id], holders.get(one.id)) for one in reviews]

    async def resolve_reprocessed(
        self, limit: int, *, new_job_id: UUID | None = None, now: datetime | None = None
    ) -> int:
        if new_job_id is not None:
            rows = await self._engine.read(lambda db: _ended_as(db, new_job_id))
        else:
            # Read a bounded number at a time, outside the writer, because many new jobs may run for long.
            rows, self._resolved_to = await self._engine.read(lambda db: _ended(db, self._resolved_to, limit))
        if not rows:
            return 0
        return await self._engine.write(
            lambda db: db.many(SQL["resolve_dead_letter"], [(*row, clock(now)) for row in rows])
        )

    @writes
    def start_bulk(self, db: Connection, run: BulkRun, event: AuditEvent) -> None:
        db.run(SQL["insert_bulk_run"], (*BULK_RUN.encode(run), *_cursor(run.cursor)))
        audit.append(db, [event])

    @reads
    def bulk_run(self, db: Connection, run_id: UUID) -> BulkRun | None:
        row = db.row(f"{SQL['select_bulk_runs']} WHERE id = ?", (run_id.bytes,))
        return None if row is None else _run(row)

    @reads
    def bulk_runs(
        self, db: Connection, *, running: bool = False, tenant: str | None = None, limit: int = 50
    ) -> list[BulkRun]:
        wanted = Conditions(limit=limit)
        if running:
            wanted.add("state = 'running'")
        wanted.add("json_extract(filter, '$.tenant') = :tenant", tenant=tenant)
        order = "created_at, id" if running else "created_at DESC, id DESC"
        statement = f"{SQL['select_bulk_runs']} {wanted.where} ORDER BY {order} LIMIT :limit"
        return [_run(row) for row in db.rows(statement, wanted.bindings)]

    async def stop_bulk(self, run_id: UUID, *, now: datetime | None = None) -> bool:
        return await self._engine.write(lambda db: db.change(SQL["stop_bulk_run"], (run_id.bytes, clock(now))) > 0)


def _allowed(reviews: Sequence[Review], standing: dict[UUID, Row | None]) -> Applied:
    allowed: Applied = {}
    for one in reviews:
        stands = standing[one.id]
        to = None if stands is None else TABLE.get((ReviewState(stands[0]), one.act))
        if to is not None:
            allowed.setdefault(one.id, (one, to))
    return allowed


def _with_their_jobs(db: Connection, allowed: Applied, now: int) -> tuple[Applied, dict[UUID, UUID]]:
    """Stores the new jobs; leaves out reviews whose new job's unique key is taken, and names the jobs that hold it."""
    asked = {id_: one.job for id_, (one, _) in allowed.items() if one.job is not None}
    answers = jobs.insert(db, list(asked.values()), now) if asked else []
    holders = {
        id_: answer.job_id for id_, answer in zip(asked, answers, strict=True) if answer.insertion not in _STORED
    }
    return {id_: applied for id_, applied in allowed.items() if id_ not in holders}, holders


def _reviewed_row(one: Review, to: ReviewState, now: int) -> Row:
    new_job_id = None if one.job is None else one.job.id.bytes
    by_hand = BY_HAND if one.act is ReviewAct.RESOLVE else None
    return one.id.bytes, to.value, one.by, now, one.notes, new_job_id, by_hand


def _refusal(event: AuditEvent, stood: Row | None, holder: UUID | None) -> AuditEvent:
    held = {} if holder is None else {"held_by": public(holder)}
    return msgspec.structs.replace(event, after={**event.after, "status": None if stood is None else stood[0], **held})


def _answer(one: Review, apply: Applied, stood: Row | None, holder: UUID | None) -> Reviewed:
    first, to = apply.get(one.id, (None, None))
    if first is not None:
        new_job_id = None if first.job is None else first.job.id
        return Reviewed(id=one.id, status=to, applied=one is first, new_job_id=new_job_id)
    if stood is None:
        return Reviewed(id=one.id, status=None, applied=False)
    status, new_job_id = ReviewState(stood[0]), maybe_uuid(stood[1])
    return Reviewed(id=one.id, status=status, applied=False, new_job_id=new_job_id, holder=holder)


def _ended(db: Connection, after: bytes, limit: int) -> tuple[list[Row], bytes]:
    """Rows for resolve_dead_letter whose new jobs have ended, searched from `after` on; and where the search ended."""
    walked = db.rows(SQL["reprocessing_between"], (after, _SEARCHED))
    found: list[Row] = []
    for new_job_id, job_id, state in walked:
        if state is not None:
            found.append(_resolution(new_job_id, job_id, state))
            if len(found) == limit:
                return found, new_job_id
    return found, walked[-1][0] if len(walked) == _SEARCHED else b""


def _ended_as(db: Connection, wanted: UUID) -> list[Row]:
    """The row for resolve_dead_letter of the dead letter that this new job replaces, if the job has ended."""
    walked = db.rows(SQL["reprocessing_between"], (UUID(int=wanted.int - 1).bytes, 1))
    return [_resolution(*row) for row in walked if row[0] == wanted.bytes and row[2] is not None]


def _resolution(new_job_id: bytes, job_id: bytes, state: str) -> Row:
    to, why = resolution(uuid(new_job_id), State(state) if state else None)
    return job_id, new_job_id, to.value, why


def _conditions(filter: DeadLetterFilter) -> Conditions:
    wanted = Conditions()
    for column, values in (("status", filter.status), ("kind", filter.kinds)):
        names = {f"{column}{n}": str(value) for n, value in enumerate(values)}
        if len(names) == 1:
            wanted.add(f"d.{column} = :{column}0", **names)
        elif names:
            # The plus makes SQLite read in order of time, instead of by each value and then sorting.
            wanted.add(f"+d.{column} IN ({', '.join(f':{name}' for name in names)})", **names)
    wanted.equal(filter, "queue", "tenant", "correlation_id", "error_class", "error_type", "fingerprint", table="d.")
    wanted.add("instr(dutiful_case_folded(CAST(d.message AS BLOB)), :text) > 0", text=case_folded(filter.text))
    wanted.add("d.died_at >= :since", since=maybe_micros(filter.since))
    wanted.add("d.died_at < :until", until=maybe_micros(filter.until))
    return wanted


def _find(db: Connection, job_id: UUID) -> DeadLetter | None:
    row = db.row(f"{SQL['select_dead_letters']} WHERE d.job_id = ?", (job_id.bytes,))
    return None if row is None else _letter(row)


def _letter(row: Row) -> DeadLetter:
    *_, job_id, job, errors, history = row
    asked = read_object(job) or {}
    return DEAD_LETTER.decode(
        row,
        id=uuid(job_id),
        payload=asked.get("payload"),
        job=asked,
        errors=read_objects(errors) or [],
        history=read_objects(history) or [],
    )


def _cursor(cursor: LetterCursor | None) -> tuple[int | None, bytes | None]:
    return (None, None) if cursor is None else (micros(cursor.died_at), cursor.id.bytes)


def _run(row: Row) -> BulkRun:
    *_, cursor_died_at, cursor_id = row
    return BULK_RUN.decode(
        row, cursor=None if cursor_died_at is None else LetterCursor(moment(cursor_died_at), uuid(cursor_id))
    )
