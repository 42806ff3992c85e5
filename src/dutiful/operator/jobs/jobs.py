"""Jobs: enqueueing, cancelling, retrying, failing, releasing and deleting them."""

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core import ids
from dutiful.core.duration import brief, duration
from dutiful.core.errors import JobNotFound, NotAllowed, UnknownKind
from dutiful.core.job import Insertion, JobRecord, NewJob
from dutiful.core.outcome import Released
from dutiful.core.principal import Role, check_tenant
from dutiful.core.review.state import OPEN
from dutiful.core.settle import Policy, decide
from dutiful.core.states import State
from dutiful.delivery.base import EVERYWHERE
from dutiful.kind import Kind
from dutiful.operator.actor import Actor, AuditedAction, recordable
from dutiful.operator.dead_letters import DeadLetters
from dutiful.operator.jobs.fail import JobFailures, check_failable
from dutiful.operator.jobs.reads import JobReads, required
from dutiful.operator.jobs.retry import JobRetries, Retried, check_undecided
from dutiful.operator.jobs.stuck import check_releasable, check_released, ended
from dutiful.operator.queues import Queues
from dutiful.options import Options, read_options
from dutiful.store.control import CancelResult

STEP = 1_000


class Enqueued(msgspec.Struct, frozen=True):
    """The new job, or the one that already holds its unique key (not `made`)."""

    job_id: UUID
    made: bool


class Jobs(JobReads):
    def __init__(self, actor: Actor, dead_letters: DeadLetters, queues: Queues) -> None:
        super().__init__(actor, queues)
        self._dead_letters = dead_letters
        self._retries = JobRetries(actor, self, dead_letters)
        self._failures = JobFailures(actor, self)

    async def cancel(self, job_id: UUID, reason: str | None = None) -> CancelResult:
        """Cancels a waiting job, asks a running one to stop."""
        found = await self.find(job_id)
        async with self._audited("job.cancel", job_id, found, reason) as action:
            result = await self._client.cancel(
                job_id, recordable(reason or f"cancelled by {self._actor.principal.name}")
            )
            action.after = {"state": result.state, "changed": result.changed, "requested": result.requested}
            action.done = result.changed or result.requested
        return result

    async def retry(self, job_id: UUID, reason: str | None = None) -> Retried:
        """Runs a finished job again as a new one; makes a job due that is scheduled, or that a breaker rejected.

        Refuses any other. A dead letter is reprocessed, so that it refers to the new job.
        """
        letter = await self._retries.letter_by_now(job_id)
        if letter is not None and letter.status in OPEN:
            new = (await self._dead_letters.reprocess(job_id, reason)).new_job_id
            return Retried(new, (await self.get(new)).state, made=True)
        found = await self.find(job_id)
        async with self._audited("job.retry", job_id, found, reason, lambda _: check_undecided(letter)) as action:
            retried = await self._retries.run(required(found, job_id), letter)
            action.after = {"job": ids.public(retried.job_id), "state": retried.state, "made": retried.made}
        return retried

    def _audited(
        self,
        action: str,
        job_id: UUID,
        record: JobRecord | None,
        reason: str | None,
        check: Callable[[JobRecord], object] = lambda _: None,
    ) -> AbstractAsyncContextManager[AuditedAction]:
        """Audits an action on a job; `check` raises if its state does not allow the action."""

        def possible() -> None:
            check(required(record, job_id))

        return self._actor.audited(
            action,
            ids.public(job_id),
            reason,
            tenant=None if record is None else record.tenant,
            before=None if record is None else {"state": record.state},
            check=possible,
        )

    async def enqueue(
        self, kind: str, payload: Mapping[str, Any], reason: str | None = None, **options: Any
    ) -> Enqueued:
        """Enqueues a job of a kind that this process knows, for the principal's own tenant if there is one."""
        prepared: list[NewJob] = []

        async def prepare() -> None:
            prepared.append(await self._prepared(kind, payload, options))

        asked = options.get("tenant")
        async with self._actor.audited("job.enqueue", kind, reason, tenant=asked, check=prepare) as action:
            inserted = await self._client.submit(prepared[0])
            made = inserted.insertion in (Insertion.MADE, Insertion.REPLACED)
            action.after = {"job": ids.public(inserted.job_id), "made": made}
        return Enqueued(inserted.job_id, made)

    async def _prepared(self, name: str, payload: Mapping[str, Any], given: dict[str, Any]) -> NewJob:
        kind = self._known(name)
        options: Options = read_options(kind._defaults, {**given, "created_by": self._actor.principal.name})
        for needed in options.depends_on:
            if await self.find(needed) is None:
                raise JobNotFound(f"depends_on: there is no job {ids.public(needed)}")
        tenant = self._actor.scope(options.tenant)
        job = kind.prepare(replace(options, tenant=None if tenant is None else check_tenant(tenant)), payload)
        if not self._actor.owns(job.tenant):
            raise NotAllowed(
                f"{self._actor.principal.name} acts for the tenant {self._actor.tenant}: the payload names another one"
            )
        return job

    def _known(self, name: str) -> Kind[Any, Any]:
        if name not in self._actor.kinds:
            there = ", ".join(sorted(self._actor.kinds)) or "none"
            raise UnknownKind(f"there is no kind {name!r:.80} here; there are: {there:.1000}")
        return self._actor.kinds[name]

    async def fail(self, job_id: UUID, reason: str | None = None, *, retry: bool = False) -> State:
        """Makes it a dead letter; with `retry`, only one attempt fails, and its kind's policy decides the rest.

        A waiting job has spent the attempt without having run. The worker of a running one finds the claim gone, and
        stops it. Returns the job's new state; it is cancelled if it runs and was asked to stop before.
        """
        found = await self.find(job_id)
        async with self._audited("job.fail", job_id, found, reason, lambda job: check_failable(job, retry)) as action:
            state = await self._failures.fail(job_id, self._failures.error(action.asked.act, reason, retry), retry)
            action.after = {"state": state, "retry": retry}
        self._client.delivery.notify_watchers()
        return state

    async def release(
        self, job_id: UUID, reason: str | None = None, *, older_than: timedelta = timedelta(0)
    ) -> JobRecord:
        """Makes a running job ready again, its attempt not counted; IllegalTransition if it does not run, or not for
        so long.

        Its worker loses the claim, so its outcome is refused. The handler may run on for a while, so the job may run
        twice at a time, but only one outcome counts.
        """
        # The claim first: if another worker has the job by then, the older claim is released, and that is refused.
        held = await self._store.claims.held(job_id)
        found = await self.find(job_id)
        begun = await self._store.queries.clock() - older_than
        async with self._audited(
            "job.release", job_id, found, reason, lambda job: check_releasable(job, begun, older_than)
        ) as action:
            if held is None:
                raise ended(job_id)
            change = decide(held, Released(), Policy(), (await self.get(job_id)).max_attempts, random.uniform)
            # Without waiting, because the transaction that holds the lock may be that of the hanging handler.
            refused = await self._store.claims.settle([change], skip_locked=True)
            record = await self.get(job_id)
            for refusal in refused:
                check_released(refusal.reason, held, record)
            if not refused:
                await self._failures.count_attempt(held.kind, change)
            action.after = {"state": record.state, "worker": str(held.worker_id)}
        self._client.delivery.hint(EVERYWHERE)
        self._client.delivery.notify_watchers()
        return record

    async def delete_finished(self, older_than: timedelta, reason: str | None = None) -> int:
        """Deletes jobs that ended longer ago than this, in small steps, as retention does; returns how many.

        Keeps open dead letters, webhook posts that wait, and jobs that others depend on; closed dead letters, ended
        posts and bulk runs of the same age go with them. The next worker calls `on_delete` and sends the events.
        """
        async with self._actor.audited(
            "job.delete_finished",
            brief(older_than),
            reason,
            role=Role.ADMIN,
            fleetwide=True,
            check=lambda: duration(older_than, "older_than"),
        ) as action:
            deleted, cursor, more = 0, None, True
            while more:
                # The notices stay unsent: only a worker has the callbacks.
                step = await self._store.retention.delete(older_than, STEP, cursor, tombstones=True)
                deleted, cursor = deleted + step.count, step.cursor
                more = cursor is not None
            while await self._store.retention.delete_leftovers(older_than, STEP):
                pass
            action.after = {"deleted": deleted}
        return deleted
