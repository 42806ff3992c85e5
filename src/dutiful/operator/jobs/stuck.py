"""Which jobs run for too long, and which of them may be released."""

from datetime import datetime, timedelta
from typing import assert_never
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.duration import brief
from dutiful.core.errors import IllegalTransition
from dutiful.core.job import HeldClaim, JobRecord
from dutiful.core.states import State, Transition, check
from dutiful.store import Store
from dutiful.store.claims import RefusalReason
from dutiful.store.queries import JobFilter

STUCK = timedelta(hours=1)
PAGE = 1_000


async def stuck_jobs(store: Store, tenant: str | None, older_than: timedelta, kind: str | None) -> list[JobRecord]:
    begun = await store.queries.clock() - older_than
    running = await all_of(store, JobFilter(state=State.RUNNING, kind=kind, tenant=tenant, limit=PAGE, details=False))
    found = [job for job in running if _runs_since(job, begun)]
    return sorted(found, key=lambda job: (job.started_at or begun, job.id))


async def all_of(store: Store, wanted: JobFilter) -> list[JobRecord]:
    """All pages, of what cannot be many, such as running jobs."""
    page = await store.queries.jobs(wanted)
    found = list(page)
    while page.next is not None:
        page = await store.queries.jobs(msgspec.structs.replace(wanted, before=page.next))
        found += page
    return found


def _runs_since(job: JobRecord, begun: datetime) -> bool:
    return job.state is State.RUNNING and job.started_at is not None and job.started_at <= begun


def check_releasable(job: JobRecord, begun: datetime, older_than: timedelta) -> None:
    check(job.state, Transition.RELEASE, State.READY)
    if not _runs_since(job, begun):
        raise IllegalTransition(f"job {ids.public(job.id)} has not been running for {brief(older_than)}")
    if job.cancel_requested_at is not None:
        raise _stopping(job.id)


def check_released(reason: RefusalReason, held: HeldClaim, job: JobRecord) -> None:
    """Raises if the store has refused to release the claim, unless it was released before; `job` is as it is now."""
    match reason:
        case RefusalReason.CANCEL_REQUESTED:
            raise _stopping(job.id)
        case RefusalReason.LOCKED:
            raise IllegalTransition(
                f"job {ids.public(job.id)} is about to end: its handler has completed it in a transaction that is "
                "still open; wait for that, or end it"
            )
        case RefusalReason.LOST | RefusalReason.REPEATED:
            unspent = job.state in (State.READY, State.BLOCKED) and job.attempt == held.attempt - 1
            if not unspent:  # otherwise it was released, and the answer was lost
                raise ended(job.id)
        case _:
            assert_never(reason)


def _stopping(job_id: UUID) -> IllegalTransition:
    public = ids.public(job_id)
    return IllegalTransition(
        f"job {public} was asked to stop, so it is not run again; to end it now: dutiful jobs fail {public}; "
        "if its handler runs on: stop its worker"
    )


def ended(job_id: UUID) -> IllegalTransition:
    return IllegalTransition(f"job {ids.public(job_id)} is not running any more: that attempt has ended")
