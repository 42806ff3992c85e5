"""The part of `operator.jobs` for jobs that run for too long: `stuck` and `release`."""

import random
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, assert_never
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.duration import brief
from dutiful.core.errors import IllegalTransition
from dutiful.core.job import HeldClaim, JobRecord
from dutiful.core.outcome import Released
from dutiful.core.settle import Policy, decide
from dutiful.core.states import State, Transition, check
from dutiful.delivery.base import EVERYWHERE
from dutiful.operator.actor import Actor, OperatorPart
from dutiful.store import Store
from dutiful.store.claims import RefusalReason
from dutiful.store.queries import JobFilter

if TYPE_CHECKING:
    from dutiful.operator.jobs import Jobs

STUCK = timedelta(hours=1)
PAGE = 1_000


class StuckJobs(OperatorPart):
    def __init__(self, actor: Actor, jobs: "Jobs") -> None:
        super().__init__(actor)
        self._jobs = jobs

    async def search(self, older_than: timedelta, kind: str | None) -> list[JobRecord]:
        wanted = JobFilter(state=State.RUNNING, kind=kind, tenant=self._actor.tenant, limit=PAGE)
        begun = await self._store.queries.clock() - older_than
        found = [job for job in await all_of(self._store, wanted) if _runs_since(job, begun)]
        return sorted(found, key=lambda job: (job.started_at or begun, job.id))

    async def release(self, job_id: UUID, reason: str | None, older_than: timedelta) -> JobRecord:
        # The claim first: if another worker has the job by then, the older claim is released, and that is refused.
        held = await self._store.claims.held(job_id)
        found = await self._jobs.find(job_id)
        begun = await self._store.queries.clock() - older_than
        async with self._jobs.audited(
            "job.release", job_id, found, reason, lambda job: _check_possible(job, begun, older_than)
        ) as action:
            record = await self._jobs.get(job_id)
            if held is None:
                raise _ended(job_id)
            change = decide(held, Released(), Policy(), record.max_attempts, random.uniform)
            # Without waiting, because the transaction that holds the lock may be that of the hanging handler.
            refused = await self._store.claims.settle([change], skip_locked=True)
            for refusal in refused:
                await self._check_applied(held, refusal.reason)
            if not refused:
                await self._jobs.count_attempt(held.kind, change)
            record = await self._jobs.get(job_id)
            action.after = {"state": record.state, "worker": str(held.worker_id)}
        self._client.delivery.hint(EVERYWHERE)
        self._client.delivery.notify_watchers()
        return record

    async def _check_applied(self, held: HeldClaim, reason: RefusalReason) -> None:
        match reason:
            case RefusalReason.CANCEL_REQUESTED:
                raise _stopping(held.job_id)
            case RefusalReason.LOCKED:
                raise IllegalTransition(
                    f"job {ids.public(held.job_id)} is about to end: its handler has completed it in a transaction "
                    "that is still open; wait for that, or end it"
                )
            case RefusalReason.LOST | RefusalReason.REPEATED:
                job = await self._jobs.get(held.job_id)
                unspent = job.state in (State.READY, State.BLOCKED) and job.attempt == held.attempt - 1
                if not unspent:  # otherwise it was released, and the answer was lost
                    raise _ended(held.job_id)
            case _:
                assert_never(reason)


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


def _check_possible(job: JobRecord, begun: datetime, older_than: timedelta) -> None:
    check(job.state, Transition.RELEASE, State.READY)
    if not _runs_since(job, begun):
        raise IllegalTransition(f"job {ids.public(job.id)} has not been running for {brief(older_than)}")
    if job.cancel_requested_at is not None:
        raise _stopping(job.id)


def _stopping(job_id: UUID) -> IllegalTransition:
    public = ids.public(job_id)
    return IllegalTransition(
        f"job {public} was asked to stop, so it is not run again; if it does not stop: dutiful jobs fail {public}; "
        "if its handler runs on: stop its worker"
    )


def _ended(job_id: UUID) -> IllegalTransition:
    return IllegalTransition(f"job {ids.public(job_id)} is not running any more: that attempt has ended")
