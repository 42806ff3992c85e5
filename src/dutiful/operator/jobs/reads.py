"""Jobs: what can be read of them, and why one is in its state."""

from datetime import UTC, datetime, timedelta
from typing import assert_never
from uuid import UUID

import msgspec

from dutiful.core.job import AttemptRecord, JobRecord, PhaseRecord, job_not_found
from dutiful.core.sealed import shown_record
from dutiful.core.states import State
from dutiful.core.steps import StepRecord
from dutiful.core.webhooks.endpoint import origin
from dutiful.delivery.backend import place_of
from dutiful.operator.actor import Actor, OperatorPart
from dutiful.operator.explain import (
    Explanation,
    FleetState,
    finished,
    gate,
    later,
    running,
    sleeping,
    unblocked,
    undelivered,
    unserved,
    waiting,
    with_delivery,
)
from dutiful.operator.jobs.stuck import STUCK, stuck_jobs
from dutiful.operator.queues import Queues
from dutiful.store.queries import JobFilter, JobPage
from dutiful.store.webhooks import WebhookPost

COUNTED = 200  # in a queue with more ready jobs, those ahead are estimated


class JobReads(OperatorPart):
    def __init__(self, actor: Actor, queues: Queues) -> None:
        super().__init__(actor)
        self._queues = queues

    async def get(self, job_id: UUID) -> JobRecord:
        """The job; what is sealed of it is shown as sealed, here and in all reads."""
        return shown_record(required(await self.find(job_id), job_id))

    async def find(self, job_id: UUID) -> JobRecord | None:
        record = await self._store.queries.job(job_id)
        return record if record is not None and self._actor.owns(record.tenant) else None

    async def search(self, filter: JobFilter) -> JobPage:
        wanted = msgspec.structs.replace(filter, tenant=self._actor.scope(filter.tenant))
        page = await self._store.queries.jobs(wanted)
        return msgspec.structs.replace(page, jobs=list(map(shown_record, page)))

    async def stuck(self, older_than: timedelta = STUCK, *, kind: str | None = None) -> list[JobRecord]:
        """Jobs whose attempt has been running for longer than this, the longest first."""
        return await stuck_jobs(self._store, self._actor.tenant, older_than, kind)

    async def attempts(self, job_id: UUID) -> list[AttemptRecord]:
        await self.get(job_id)
        return [shown_record(one) for one in await self._store.queries.attempts(job_id)]

    async def phases(self, job_id: UUID) -> list[PhaseRecord]:
        await self.get(job_id)
        return [shown_record(one) for one in await self._store.progress.phases(job_id)]

    async def steps(self, job_id: UUID) -> list[StepRecord]:
        await self.get(job_id)
        return [shown_record(one) for one in await self._store.steps.all(job_id)]

    async def dependencies(self, job_id: UUID) -> list[JobRecord]:
        """The jobs that it depends on."""
        await self.get(job_id)
        needs = await self._store.queries.dependencies(job_id)
        return [shown_record(need) for need in needs if self._actor.owns(need.tenant)]

    async def posts(self, job_id: UUID) -> list[WebhookPost]:
        """The messages to webhooks about it."""
        await self.get(job_id)
        posts = await self._store.webhooks.posts(job_id=job_id)
        return posts if self._actor.tenant is None else [_without_address(post) for post in posts]

    async def explain(self, job_id: UUID) -> Explanation:
        """Why the job is in its state, and what a person can do about it."""
        record, now = await self.get(job_id), datetime.now(UTC)
        match record.state:
            case State.RUNNING:
                return running(record, now, await self._store.workers.all())
            case State.SCHEDULED if record.run_at is not None and record.run_at > now:
                if sleep := sleeping(record, await self._store.steps.all(job_id), now):
                    return sleep
                return later(record, record.run_at, await self._store.queries.attempts(job_id), now)
            case State.SCHEDULED | State.READY | State.BLOCKED:
                fleet = FleetState.of(
                    await self._store.workers.all(),
                    await self._store.control.pauses(),
                    fleetwide=self._actor.tenant is None,
                    # Not through the store of a tenant, which hides them; a tenant learns only that its job waits.
                    breakers=await self._client.store.breakers.all(),
                    limits=await self._client.store.limits.all(keys=None) if record.state is State.BLOCKED else (),
                    shares=await self._client.store.shares.all() if record.state is State.READY else (),
                )
                if record.gate == "event":
                    return waiting(record, await self._store.steps.all(job_id), now)
                needs = await self.dependencies(job_id) if record.gate == "dependency" else []
                if record.state is State.BLOCKED and (held := gate(record, needs, fleet, now)):
                    return held
                if found := unserved(record, fleet, now):
                    return found
                waits = None
                if (dispatcher := self._client.dispatcher) is not None and record.state is State.READY:
                    waits = await self._store.deliveries.find(job_id)
                    if waits is not None and not waits.outstanding:
                        return undelivered(waits, now)
                ahead, exact = await self._ahead(record, of_tenant=fleet.shared(record))
                found = unblocked(record, fleet, now, ahead, exact=exact)
                if dispatcher is None or waits is None:
                    return found
                return with_delivery(found, waits, place_of(dispatcher.backend, record.queue), now)
            case State.COMPLETED | State.COMPLETED_WITH_ERRORS | State.FAILED | State.CANCELLED:
                return finished(record, now)
            case _:
                assert_never(record.state)

    async def _ahead(self, record: JobRecord, *, of_tenant: bool) -> tuple[int, bool]:
        """How many jobs start before it, by priority and age; with False, how many others its queue has.

        `of_tenant` counts only those of its tenant, as is done for a principal with a tenant.
        """
        if of_tenant:
            mine = JobFilter(state=State.READY, queue=record.queue, tenant=record.tenant, limit=COUNTED, details=False)
            own = [job for job in await self.search(mine) if job.tenant == record.tenant]
            if len(own) >= COUNTED:
                return COUNTED, False
            return sum((job.priority, job.id) < (record.priority, record.id) for job in own), True
        ready = next((q.ready for q in await self._queues.all(named=[record.queue]) if q.queue == record.queue), 0)
        if ready > COUNTED:
            return ready - 1, False
        waiting = await self.search(JobFilter(state=State.READY, queue=record.queue, limit=COUNTED, details=False))
        return sum((job.priority, job.id) < (record.priority, record.id) for job in waiting), True


def _without_address(post: WebhookPost) -> WebhookPost:
    """Removes the URL for a tenant: that of a fleet-wide webhook may contain a secret, and errors may repeat it."""
    if post.webhook is None:
        return post
    where = origin(post.url)
    return msgspec.structs.replace(post, url=where, error=post.error and post.error.replace(post.url, where))


def required(record: JobRecord | None, job_id: UUID) -> JobRecord:
    """Returns the job; raises the same error for another tenant's job as for none, so that it stays hidden."""
    if record is None:
        raise job_not_found(job_id)
    return record
