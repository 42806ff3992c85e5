"""One step of a bulk run, for whoever takes it: a service, or a person who does not want to wait for one."""

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from uuid import UUID

import msgspec
import uuid_utils.compat

from dutiful.core import ids
from dutiful.core.audit import AuditEvent, AuditOutcome
from dutiful.core.errors import DataRefused, UsageError
from dutiful.core.payload import clean
from dutiful.core.principal import Origin, Role
from dutiful.core.review import TABLE, ReviewAct
from dutiful.delivery import EVERYWHERE, Lines
from dutiful.production import Producer, producing
from dutiful.reprocessing import Kinds, new_job
from dutiful.reviewing import BulkRun, BulkState, BulkStep, DeadLetter, Review, Reviewed, Reviewing

log = logging.getLogger("dutiful.bulk")
PAGE = 500
REASON_LIMIT = 500
NOT_APPLIED = (
    "somebody else was faster, another job holds the unique key of its new one, or the database's rules forbid its "
    "payload"
)


async def step(
    store: Reviewing,
    run: BulkRun,
    kinds: Kinds,
    new_id: Callable[[], UUID] = uuid_utils.compat.uuid7,
    *,
    producer: Producer | None = None,
) -> tuple[BulkRun | None, Lines]:
    """Take the run one page further; returns how it stands then, and the lines that got jobs.

    Two may take the same step at once, and one who died may have taken it unnoticed: the store lets it count only from
    the cursor where it began, all of it in one transaction, and a dead letter only from a state that is open. So the
    ids of the new jobs need not be the same at a second try: those of the first are stored, or were never heard of.
    """
    if run.state is not BulkState.RUNNING:
        return run, EVERYWHERE
    limit, refused = PAGE, None
    while True:
        try:
            return await _step(store, run, kinds, new_id, producer, limit, refused)
        except DataRefused as error:
            # The database takes all of a step or nothing: by smaller ones, the others get past the one it refuses.
            if refused is not None:
                raise
            if limit == 1:
                refused = str(error)
            limit = max(1, limit // 2)


async def _step(
    store: Reviewing,
    run: BulkRun,
    kinds: Kinds,
    new_id: Callable[[], UUID],
    producer: Producer | None,
    limit: int,
    refused: str | None,
) -> tuple[BulkRun | None, Lines]:
    page = await store.dead_letters(run.filter, after=run.cursor, limit=limit)
    now = datetime.now(UTC)
    reviews: list[Review] = []
    skipped: dict[UUID, str] = {}
    taken: set[str] = set()
    for letter in page:
        try:
            review = _review(run, letter, now, kinds, taken, new_id)
        except Exception as error:  # this one's trouble, not that of those behind it
            skipped[letter.id] = _trouble(run, letter, error)
            continue
        if refused is not None:
            skipped[letter.id] = refused
            continue
        if review.job is not None and review.job.unique is not None:
            taken.add(review.job.unique.key)
        reviews.append(review)
    last = len(page) < limit
    taken_step = BulkStep(
        run_id=run.id,
        after=run.cursor,
        to=page[-1].place if page else run.cursor,
        skipped=len(skipped),
        last=last,
        event=_ended(run, now) if last else None,
        events=[_passed_over(run, letter, now, skipped[letter.id]) for letter in page if letter.id in skipped],
    )
    reviewed = await _stored(store, reviews, taken_step, producer)
    applied = {one.id for one in reviewed if one.applied}
    lines = frozenset((r.job.queue, r.job.priority) for r in reviews if r.job is not None and r.id in applied)
    return await store.bulk_run(run.id), lines


async def _stored(store: Reviewing, reviews: list[Review], step: BulkStep, producer: Producer | None) -> list[Reviewed]:
    """The run goes on wherever there is time for it, so its jobs' traces begin here, one a step."""
    with producing(producer, [one.job for one in reviews if one.job is not None], apart=True) as production:
        jobs = iter(production.jobs)
        traced = [one if one.job is None else msgspec.structs.replace(one, job=next(jobs)) for one in reviews]
        reviewed = await store.review(traced, step=step)
        production.void = not any(one.applied for one in reviewed)
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
    refusal = _passed_over(run, letter, now, NOT_APPLIED)
    return Review(id=letter.id, act=run.act, by=run.by, notes=notes, job=job, event=event, refusal=refusal)


def _trouble(run: BulkRun, letter: DeadLetter, error: Exception) -> str:
    """Why it cannot be made a job again; what we did not write ourselves may hold anything, so it is logged only."""
    if isinstance(error, UsageError):
        return str(error)
    log.warning("bulk run %s passes over %s", ids.public(run.id), ids.public(letter.id), exc_info=error)
    return f"it could not be made a job: {type(error).__name__}"


def _passed_over(run: BulkRun, letter: DeadLetter, now: datetime, why: str) -> AuditEvent:
    told = {"error": clean(why, REASON_LIMIT)}
    return _event(run, letter.id, letter.tenant, now, AuditOutcome.REFUSED, told, {"status": letter.status})


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
    """What it did to one dead letter, or that the run itself has come to its end."""
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
