"""One step of a bulk run, for whoever takes it: a service, or a person who does not want to wait for one."""

from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

import uuid_utils.compat

from dutiful.core import ids
from dutiful.core.audit import AuditEvent, AuditOutcome
from dutiful.core.errors import UsageError
from dutiful.core.principal import Origin, Role
from dutiful.core.review import TABLE, ReviewAct
from dutiful.delivery import EVERYWHERE, Lines
from dutiful.reprocessing import Kinds, new_job
from dutiful.reviewing import BulkRun, BulkState, BulkStep, DeadLetter, Review, Reviewing

PAGE = 500


async def step(
    store: Reviewing, run: BulkRun, kinds: Kinds, new_id: Callable[[], UUID] = uuid_utils.compat.uuid7
) -> tuple[BulkRun | None, Lines]:
    """Take the run one page further; returns how it stands then, and the lines that got jobs.

    Two may take the same step at once, and one who died may have taken it unnoticed: the store lets it count only from
    the cursor where it began, all of it in one transaction, and a dead letter only from a state that is open. So the
    ids of the new jobs need not be the same at a second try: those of the first are stored, or were never heard of.
    """
    if run.state is not BulkState.RUNNING:
        return run, EVERYWHERE
    page = await store.dead_letters(run.filter, after=run.cursor, limit=PAGE)
    now = datetime.now(UTC)
    reviews: list[Review] = []
    taken: set[str] = set()
    for letter in page:
        try:
            review = _review(run, letter, now, kinds, taken, new_id)
        except UsageError:  # it cannot be made a job again; the trail of a run is what it did
            continue
        if review.job is not None and review.job.unique is not None:
            taken.add(review.job.unique.key)
        reviews.append(review)
    last = len(page) < PAGE
    taken_step = BulkStep(
        run_id=run.id,
        after=run.cursor,
        to=page[-1].place if page else run.cursor,
        skipped=len(page) - len(reviews),
        last=last,
        event=_ended(run, now) if last else None,
    )
    reviewed = await store.review(reviews, step=taken_step)
    applied = {one.id for one in reviewed if one.applied}
    lines = frozenset((r.job.queue, r.job.priority) for r in reviews if r.job is not None and r.id in applied)
    return await store.bulk_run(run.id), lines


def _review(
    run: BulkRun, letter: DeadLetter, now: datetime, kinds: Kinds, taken: set[str], new_id: Callable[[], UUID]
) -> Review:
    job = None
    if run.act is ReviewAct.REPROCESS:
        job = new_job(letter, id=new_id(), by=run.by, at=now, kinds=kinds, taken=taken)
    after: dict[str, object] = {"status": TABLE.get((letter.status, run.act), letter.status)}
    if job is not None:
        after["new_job"] = ids.public(job.id)
    event = AuditEvent(
        id=uuid_utils.compat.uuid7(),
        act=run.id,
        at=now,
        principal=run.by,
        role=None if run.role is None else Role(run.role),
        origin=Origin(run.origin),
        action=f"dead_letter.{run.act}",
        outcome=AuditOutcome.SUCCEEDED,
        target=ids.public(letter.id),
        tenant=letter.tenant,
        reason=run.reason,
        before={"status": letter.status},
        after=after,
    )
    return Review(id=letter.id, act=run.act, by=run.by, notes=run.reason, job=job, event=event)


def _ended(run: BulkRun, now: datetime) -> AuditEvent:
    return AuditEvent(
        id=uuid_utils.compat.uuid7(),
        act=run.id,
        at=now,
        principal=run.by,
        role=None if run.role is None else Role(run.role),
        origin=Origin(run.origin),
        action="dead_letter.bulk_done",
        outcome=AuditOutcome.SUCCEEDED,
        target=ids.public(run.id),
        tenant=run.filter.tenant,
        reason=run.reason,
        after={"act": run.act, "state": BulkState.DONE},
    )
