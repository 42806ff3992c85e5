"""Jobs that run for too long: to find them, and to take them from whoever holds them."""

import random
from datetime import datetime, timedelta
from typing import assert_never
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.duration import brief
from dutiful.core.errors import IllegalTransition
from dutiful.core.job import JobRecord, Lapsed
from dutiful.core.outcome import Released
from dutiful.core.settle import Policy, decide
from dutiful.core.transitions import Act, State, check
from dutiful.delivery import EVERYWHERE
from dutiful.operator.failing import Failing
from dutiful.reading import JobFilter
from dutiful.store import Store
from dutiful.working import Verdict

STUCK = timedelta(hours=1)
PAGE = 1_000


class Releasing(Failing):
    async def stuck(self, older_than: timedelta = STUCK, *, kind: str | None = None) -> list[JobRecord]:
        """Jobs whose attempt has been running for longer than this, the longest first."""
        wanted = JobFilter(state=State.RUNNING, kind=kind, tenant=self.tenant, limit=PAGE)
        begun = await self._store.clock() - older_than
        found = [job for job in await all_of(self._store, wanted) if _runs_since(job, begun)]
        return sorted(found, key=lambda job: (job.started_at or begun, job.id))

    async def release(
        self, job_id: UUID, reason: str | None = None, *, older_than: timedelta = timedelta(0)
    ) -> JobRecord:
        """Put a running job back in its place in line, its attempt unspent; IllegalTransition if it does not run, or
        not for so long.

        Whoever runs it finds its claim gone, and what they say of it is refused. They may run on for a while, so it
        may run twice at a time; only one end of it counts.
        """
        # The claim first: if the job is somebody else's by now, it is the older claim that is asked for, and refused.
        held = await self._store.held(job_id)
        found = await self._found(job_id)
        begun = await self._store.clock() - older_than
        async with self._acting(
            "job.release", job_id, found, reason, lambda job: _check_possible(job, begun, older_than)
        ) as act:
            record = await self.job(job_id)
            if held is None:
                raise _ended(job_id)
            change = decide(held, Released(), Policy(), record.max_attempts, random.uniform)
            # Without waiting, for it may be the transaction of the handler itself that hangs.
            refused = await self._store.settle([change], skip_locked=True)
            for refusal in refused:
                await self._check_applied(held, refusal.verdict)
            if not refused:
                await self._count(held.kind, change)
            record = await self.job(job_id)
            act.after = {"state": record.state, "worker": str(held.worker_id)}
        self._client.delivery.hint(EVERYWHERE)
        self._client.delivery.news()
        return record

    async def _check_applied(self, held: Lapsed, verdict: Verdict) -> None:
        match verdict:
            case Verdict.CANCEL_REQUESTED:
                raise _stopping(held.job_id)
            case Verdict.LOCKED:
                raise IllegalTransition(
                    f"job {ids.public(held.job_id)} is about to end: its handler has completed it in a transaction "
                    "that is still open; wait for that, or end it"
                )
            case Verdict.LOST | Verdict.REPEATED:
                job = await self.job(held.job_id)
                unspent = job.state in (State.READY, State.BLOCKED) and job.attempt == held.attempt - 1
                if not unspent:  # or else it was done, and the answer was lost
                    raise _ended(held.job_id)
            case _:
                assert_never(verdict)


async def all_of(store: Store, wanted: JobFilter) -> list[JobRecord]:
    """Page by page; for what cannot be many, such as the jobs that run."""
    page = await store.jobs(wanted)
    found = list(page)
    while page.next is not None:
        page = await store.jobs(msgspec.structs.replace(wanted, before=page.next))
        found += page
    return found


def _runs_since(job: JobRecord, begun: datetime) -> bool:
    return job.state is State.RUNNING and job.started_at is not None and job.started_at <= begun


def _check_possible(job: JobRecord, begun: datetime, older_than: timedelta) -> None:
    check(job.state, Act.RELEASE, State.READY)
    if not _runs_since(job, begun):
        raise IllegalTransition(f"job {ids.public(job.id)} has not been running for {brief(older_than)}")
    if job.cancel_requested_at is not None:
        raise _stopping(job.id)


def _stopping(job_id: UUID) -> IllegalTransition:
    public = ids.public(job_id)
    return IllegalTransition(
        f"job {public} was asked to stop and is not to be run again; if it does not heed that: dutiful jobs fail "
        f"{public}; if its handler runs on: stop its worker"
    )


def _ended(job_id: UUID) -> IllegalTransition:
    return IllegalTransition(f"job {ids.public(job_id)} is not running as it was seen: that attempt has ended")
