"""Dead letters, as people find them and decide about them."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.audit import AuditEvent
from dutiful.core.job import Insertion
from dutiful.core.readable import read_object, read_objects
from dutiful.core.review import BY_HAND, OPEN, TABLE, ReviewAct, ReviewState, resolution
from dutiful.core.transitions import State
from dutiful.reviewing import (
    BulkStep,
    DeadLetter,
    DeadLetterCounts,
    DeadLetterFilter,
    DeadLetterGroup,
    Place,
    Review,
    Reviewed,
)
from dutiful.stores.sqlite import auditing, bulk, intake
from dutiful.stores.sqlite.codec import (
    maybe_moment,
    maybe_uuid,
    micros,
    moment,
    uuid,
)
from dutiful.stores.sqlite.driver import Connection, Row, folded
from dutiful.stores.sqlite.sql import SQL

_STORED = (Insertion.MADE, Insertion.REPLACED)
_LOOKED_THROUGH = 2_000
"""As many that are reprocessing are looked at in one go: some 10 ms."""


def dead_letter(db: Connection, job_id: UUID) -> DeadLetter | None:
    row = db.row(f"{SQL['select_dead_letters']} WHERE d.job_id = ?", (job_id.bytes,))
    return None if row is None else _letter(row)


def dead_letters(db: Connection, wanted: DeadLetterFilter, after: Place | None, limit: int) -> list[DeadLetter]:
    tests, bindings = _tests(wanted)
    if after is not None:
        tests.append("(d.died_at, d.job_id) < (:after_at, :after_id)")
        bindings |= {"after_at": micros(after.died_at), "after_id": after.id.bytes}
    order = "ORDER BY d.died_at DESC, d.job_id DESC LIMIT :limit"
    rows = db.rows(f"{SQL['select_dead_letters']} {_where(tests)} {order}", {**bindings, "limit": limit})
    return [_letter(row) for row in rows]


def count(db: Connection, wanted: DeadLetterFilter) -> int:
    tests, bindings = _tests(wanted)
    counted: int = db.value(f"{SQL['count_dead_letters']} {_where(tests)}", bindings)
    return counted


def counts(db: Connection, wanted: DeadLetterFilter) -> DeadLetterCounts:
    tests, bindings = _tests(wanted)
    by_status: dict[str, int] = {}
    by_kind: dict[str, int] = {}
    by_class: dict[str, int] = {}
    oldest: int | None = None
    for status, kind, error_class, times, first_at in db.rows(_filled("tally_dead_letters", tests), bindings):
        for tally, name in ((by_status, status), (by_kind, kind), (by_class, error_class)):
            tally[name] = tally.get(name, 0) + times
        if status in OPEN:
            oldest = first_at if oldest is None else min(oldest, first_at)
    return DeadLetterCounts(
        total=sum(by_status.values()),
        by_status=by_status,
        by_kind=by_kind,
        by_class=by_class,
        oldest_open_at=maybe_moment(oldest),
    )


def groups(db: Connection, wanted: DeadLetterFilter, limit: int) -> list[DeadLetterGroup]:
    tests, bindings = _tests(wanted)
    return [
        DeadLetterGroup(
            fingerprint=fingerprint, kind=kind, error_class=error_class, error_type=error_type, message=message,
            count=times, first_at=moment(first_at), last_at=moment(last_at), newest_id=uuid(newest),
        )
        for fingerprint, kind, error_class, error_type, message, times, first_at, last_at, newest in db.rows(
            _filled("group_dead_letters", tests), {**bindings, "limit": limit}
        )
    ]  # fmt: skip


def review(db: Connection, reviews: Sequence[Review], step: BulkStep | None, now: int) -> list[Reviewed]:
    """Apply what may be applied, inside the transaction that is open; of several acts on one, the first."""
    if step is not None and not bulk.step_counts(db, step):
        return []
    standing = {one.id: db.row(SQL["standing_of_dead_letter"], (one.id.bytes,)) for one in reviews}
    apply = _with_their_jobs(db, _allowed(reviews, standing), now)
    db.many(SQL["review_dead_letter"], [_reviewed_row(one, to, now) for one, to in apply.values()])
    auditing.append(db, [one.event for one, _ in apply.values() if one.event is not None])
    auditing.append(
        db, [_refusal(one.refusal, standing[one.id]) for one in reviews if one.refusal and one.id not in apply]
    )
    if step is not None:
        bulk.take_step(db, step, len(apply), len(reviews) - len(apply), now)
    return [_answer(one, apply, standing[one.id]) for one in reviews]


Applied = dict[UUID, tuple[Review, ReviewState]]


def _allowed(reviews: Sequence[Review], standing: dict[UUID, Row | None]) -> Applied:
    allowed: Applied = {}
    for one in reviews:
        stands = standing[one.id]
        to = None if stands is None else TABLE.get((ReviewState(stands[0]), one.act))
        if to is not None:
            allowed.setdefault(one.id, (one, to))
    return allowed


def _with_their_jobs(db: Connection, allowed: Applied, now: int) -> Applied:
    """Store the new jobs; those whose unique keys are taken are left out."""
    asked = {id_: one.job for id_, (one, _) in allowed.items() if one.job is not None}
    answers = intake.insert(db, list(asked.values()), now) if asked else []
    refused = {id_ for id_, answer in zip(asked, answers, strict=True) if answer.insertion not in _STORED}
    return {id_: applied for id_, applied in allowed.items() if id_ not in refused}


def _reviewed_row(one: Review, to: ReviewState, now: int) -> Row:
    new_job_id = None if one.job is None else one.job.id.bytes
    by_hand = BY_HAND if one.act is ReviewAct.RESOLVE else None
    return one.id.bytes, to.value, one.by, now, one.notes, new_job_id, by_hand


def _refusal(event: AuditEvent, stood: Row | None) -> AuditEvent:
    return msgspec.structs.replace(event, after={**event.after, "status": None if stood is None else stood[0]})


def _answer(one: Review, apply: Applied, stood: Row | None) -> Reviewed:
    first, to = apply.get(one.id, (None, None))
    if first is not None:
        new_job_id = None if first.job is None else first.job.id
        return Reviewed(id=one.id, status=to, applied=one is first, new_job_id=new_job_id)
    if stood is None:
        return Reviewed(id=one.id, status=None, applied=False)
    return Reviewed(id=one.id, status=ReviewState(stood[0]), applied=False, new_job_id=maybe_uuid(stood[1]))


def ended(db: Connection, after: bytes, limit: int) -> tuple[list[Row], bytes]:
    """Rows for `resolve`: those whose new jobs have ended, of a bounded number beyond `after`; and how far it came."""
    walked = db.rows(SQL["reprocessing_between"], (after, _LOOKED_THROUGH))
    found: list[Row] = []
    for new_job_id, job_id, state in walked:
        if state is not None:
            found.append(_ended(new_job_id, job_id, state))
            if len(found) == limit:
                return found, new_job_id
    return found, walked[-1][0] if len(walked) == _LOOKED_THROUGH else b""


def ended_as(db: Connection, wanted: UUID) -> list[Row]:
    """The row for `resolve` of the one that this new job stands for, if that has ended."""
    walked = db.rows(SQL["reprocessing_between"], (UUID(int=wanted.int - 1).bytes, 1))
    return [_ended(*row) for row in walked if row[0] == wanted.bytes and row[2] is not None]


def _ended(new_job_id: bytes, job_id: bytes, state: str) -> Row:
    to, why = resolution(uuid(new_job_id), State(state) if state else None)
    return job_id, new_job_id, to.value, why


def resolve(db: Connection, rows: Sequence[Row], now: int) -> int:
    return db.many(SQL["resolve_dead_letter"], [(*row, now) for row in rows])


def _tests(wanted: DeadLetterFilter) -> tuple[list[str], dict[str, Any]]:
    tests: list[str] = []
    bindings: dict[str, Any] = {}
    for column, values in (("status", wanted.status), ("kind", wanted.kinds)):
        names = {f"{column}{n}": str(value) for n, value in enumerate(values)}
        if len(names) == 1:
            tests.append(f"d.{column} = :{column}0")
        elif names:
            # With a plus, so that it is looked up in the order of time rather than for each value and then sorted.
            tests.append(f"+d.{column} IN ({', '.join(f':{name}' for name in names)})")
        bindings |= names
    for column in ("queue", "tenant", "correlation_id", "error_class", "error_type", "fingerprint"):
        if (value := getattr(wanted, column)) is not None:
            tests.append(f"d.{column} = :{column}")
            bindings[column] = value
    if wanted.text is not None:
        tests.append("instr(dutiful_folded(d.message), :text) > 0")
        bindings["text"] = folded(wanted.text)
    if wanted.since is not None:
        tests.append("d.died_at >= :since")
        bindings["since"] = micros(wanted.since)
    if wanted.until is not None:
        tests.append("d.died_at < :until")
        bindings["until"] = micros(wanted.until)
    return tests, bindings


def _where(tests: Iterable[str]) -> str:
    joined = " AND ".join(tests)
    return f"WHERE {joined}" if joined else ""


def _filled(name: str, tests: Iterable[str]) -> str:
    return SQL[name].replace("{where}", _where(tests))


def _letter(row: Row) -> DeadLetter:
    (job_id, status, died_at, kind, queue, tenant, correlation_id, unique_key, created_at, attempt, max_attempts,
     error_class, error_type, fingerprint, message, reviewed_by, reviewed_at, acknowledged_by, acknowledged_at,
     new_job_id, resolution, notes, job, errors, history) = row  # fmt: skip
    asked = read_object(job) or {}
    return DeadLetter(
        id=uuid(job_id),
        status=ReviewState(status),
        died_at=moment(died_at),
        kind=kind,
        queue=queue,
        tenant=tenant,
        correlation_id=correlation_id,
        unique_key=unique_key,
        created_at=moment(created_at),
        attempt=attempt,
        max_attempts=max_attempts,
        error_class=error_class,
        error_type=error_type,
        message=message,
        fingerprint=fingerprint,
        payload=asked.get("payload"),
        job=asked,
        errors=read_objects(errors) or [],
        history=read_objects(history) or [],
        reviewed_by=reviewed_by,
        reviewed_at=maybe_moment(reviewed_at),
        acknowledged_by=acknowledged_by,
        acknowledged_at=maybe_moment(acknowledged_at),
        notes=notes,
        new_job_id=maybe_uuid(new_job_id),
        resolution=resolution,
    )
