"""One step of a bulk run, taken by the reviewer service or by an operator who does not want to wait for it."""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from uuid import UUID

import msgspec
import uuid_utils.compat

from dutiful.core import ids
from dutiful.core.errors import DataRefused, UsageError
from dutiful.core.json import clean
from dutiful.core.principal import Origin, Role
from dutiful.core.redaction.redact import redact
from dutiful.core.review.audit import AuditEvent, AuditOutcome
from dutiful.core.review.state import TABLE, ReviewAct
from dutiful.delivery.base import EVERYWHERE, QueueLevels
from dutiful.maintenance.requeue import Kinds, new_job
from dutiful.observe.producer import Producer, producing
from dutiful.store.dead_letters import BulkRun, BulkState, BulkStep, DeadLetter, DeadLetterStore, Review, Reviewed

log = logging.getLogger("dutiful.bulk")
PAGE = 500
# Payloads may be large, so a step that needs them reads a few dead letters at a time, until it has this many bytes.
PART, PART_BYTES = 16, 4 * 1024 * 1024
REASON_LIMIT = 500
NOT_APPLIED = (
    "another caller was faster, another job holds the unique key of its new one, or the database's rules forbid its "
    "payload"
)


async def step(
    store: DeadLetterStore,
    run: BulkRun,
    kinds: Kinds,
    new_id: Callable[[], UUID] = uuid_utils.compat.uuid7,
    *,
    producer: Producer | None = None,
) -> tuple[BulkRun | None, QueueLevels]:
    """Takes the run one page further; returns the run after that, and the queue levels that got jobs.

    Two processes may take the same step at once, and one that died may have stored it: a step is stored in one
    transaction, only if the run's cursor is still where the step began, and for each dead letter only if that is still
    open. So a second try may give new jobs other ids: those of the first are either all stored or not at all.
    """
    if run.state is not BulkState.RUNNING:
        return run, EVERYWHERE
    limit, refused = PAGE, None
    while True:
        try:
            return await _step(store, run, kinds, new_id, producer, limit, refused)
        except DataRefused as error:
            # The database stores all of a step or nothing: smaller ones get the others past the one that it refuses.
            if refused is not None:
                raise
            if limit == 1:
                refused = str(error)
            limit = max(1, limit // 2)


async def _step(
    store: DeadLetterStore,
    run: BulkRun,
    kinds: Kinds,
    new_id: Callable[[], UUID],
    producer: Producer | None,
    limit: int,
    refused: str | None,
) -> tuple[BulkRun | None, QueueLevels]:
    page, last = await _page(store, run, limit)
    now = datetime.now(UTC)
    reviews: list[Review] = []
    skipped: dict[UUID, str] = {}
    taken: set[str] = set()
    for letter in page:
        try:
            review = _review(run, letter, now, kinds, taken, new_id)
        except Exception as error:  # one bad dead letter must not stop the others
            skipped[letter.id] = _skip_reason(run, letter, error)
            continue
        if refused is not None:
            skipped[letter.id] = refused
            continue
        if review.job is not None and review.job.unique is not None:
            taken.add(review.job.unique.key)
        reviews.append(review)
    bulk_step = BulkStep(
        run_id=run.id,
        after=run.cursor,
        to=page[-1].cursor if page else run.cursor,
        skipped=len(skipped),
        last=last,
        event=_ended(run, now) if last else None,
        events=[_skipped(run, letter, now, skipped[letter.id]) for letter in page if letter.id in skipped],
    )
    reviewed = await _store(store, reviews, bulk_step, producer)
    applied = {one.id for one in reviewed if one.applied}
    levels = frozenset((r.job.queue, r.job.priority) for r in reviews if r.job is not None and r.id in applied)
    return await store.bulk_run(run.id), levels


async def _page(store: DeadLetterStore, run: BulkRun, limit: int) -> tuple[list[DeadLetter], bool]:
    """The next dead letters of the run, and whether they are the last; fewer than `limit` if they are large."""
    details = run.act is ReviewAct.REPROCESS
    page: list[DeadLetter] = []
    after, size = run.cursor, 0
    while len(page) < limit and size < PART_BYTES:
        few = min(PART, limit - len(page)) if details else limit
        part = await store.search(run.filter, after=after, limit=few, details=details)
        page += part
        if len(part) < few:
            return page, True
        after = part[-1].cursor
        size += sum(len(msgspec.json.encode(letter.job)) for letter in part) if details else 0
    return page, False


async def _store(
    store: DeadLetterStore, reviews: list[Review], step: BulkStep, producer: Producer | None
) -> list[Reviewed]:
    """Starts a new trace for each step, because steps of one run are taken by several processes."""
    with producing(producer, [one.job for one in reviews if one.job is not None], new_trace=True) as span:
        jobs = iter(span.jobs)
        traced = [one if one.job is None else msgspec.structs.replace(one, job=next(jobs)) for one in reviews]
        reviewed = await store.review(traced, step=step)
        span.void = not any(one.applied for one in reviewed)
    return reviewed


def _review(
    run: BulkRun, letter: DeadLetter, now: datetime, kinds: Kinds, taken: set[str], new_id: Callable[[], UUID]
) -> Review:
    job = None
    if run.act is ReviewAct.REPROCESS:
        job = new_job(letter, id=new_id(), by=run.by, at=now, kinds=kinds, taken=taken)
    after: dict[str, object] = {"status": TABLE.get((letter.status, run.act), letter.status)}
    if job is not None:
        after["new_job"] = ids.public(job.id)
    event = _event(run, letter.id, letter.tenant, now, AuditOutcome.SUCCEEDED, after, {"status": letter.status})
    notes = letter.notes_for(run.by, run.reason)
    refusal = _skipped(run, letter, now, NOT_APPLIED)
    return Review(id=letter.id, act=run.act, by=run.by, notes=notes, job=job, event=event, refusal=refusal)


def _skip_reason(run: BulkRun, letter: DeadLetter, error: Exception) -> str:
    """Why it cannot become a job again. Foreign error messages are logged only, because they may quote secrets."""
    if isinstance(error, UsageError):
        return str(error)
    log.warning("bulk run %s skips %s", ids.public(run.id), ids.public(letter.id), exc_info=error)
    return f"it could not be made a job: {type(error).__name__}"


def _skipped(run: BulkRun, letter: DeadLetter, now: datetime, reason: str) -> AuditEvent:
    after = {"error": clean(redact(reason), REASON_LIMIT)}
    return _event(run, letter.id, letter.tenant, now, AuditOutcome.REFUSED, after, {"status": letter.status})


def _ended(run: BulkRun, now: datetime) -> AuditEvent:
    state = {"act": run.act, "state": BulkState.DONE}
    return _event(run, run.id, run.filter.tenant, now, AuditOutcome.SUCCEEDED, state)


def _event(
    run: BulkRun,
    target: UUID,
    tenant: str | None,
    now: datetime,
    outcome: AuditOutcome,
    after: Mapping[str, object],
    before: Mapping[str, object] | None = None,
) -> AuditEvent:
    """The audit event of the run's act on one dead letter, or of the end of the run."""
    return AuditEvent(
        id=uuid_utils.compat.uuid7(),
        act=run.id,
        at=now,
        principal=run.by,
        role=None if run.role is None else Role(run.role),
        origin=Origin(run.origin),
        action="dead_letter.bulk_done" if target == run.id else f"dead_letter.{run.act}",
        outcome=outcome,
        target=ids.public(target),
        tenant=tenant,
        reason=run.reason,
        before=before,
        after=after,
    )
