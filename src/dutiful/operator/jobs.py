"""Jobs: searching, explaining, enqueueing, cancelling, retrying, failing and deleting them."""

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never
from uuid import UUID

import msgspec
import uuid_utils.compat

from dutiful.core import ids
from dutiful.core.duration import brief, duration
from dutiful.core.errors import DutifulError, IllegalTransition, JobNotFound, NotAllowed, UniqueConflict, UnknownKind
from dutiful.core.job import AttemptRecord, HeldClaim, Insertion, JobRecord, NewJob, PhaseRecord, job_not_found
from dutiful.core.outcome import Cancelled, Failed, Released
from dutiful.core.principal import Role, check_tenant
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.error_info import make_error
from dutiful.core.review.state import BY_HAND, OPEN, ReviewState
from dutiful.core.sealed import shown_record
from dutiful.core.settle import Change, Policy, decide, decide_or_fail
from dutiful.core.states import State, Transition, check
from dutiful.core.steps import StepRecord
from dutiful.core.webhooks.endpoint import origin
from dutiful.delivery.backend import place_of
from dutiful.delivery.base import EVERYWHERE
from dutiful.kind import Kind
from dutiful.maintenance.requeue import key_of, run_again
from dutiful.operator.actor import Actor, AuditedAction, OperatorPart, log, recordable
from dutiful.operator.dead_letters import DeadLetters
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
from dutiful.operator.jobs_stuck import STUCK, check_releasable, check_released, ended, stuck_jobs
from dutiful.operator.queues import Queues
from dutiful.options import Options, read_options
from dutiful.store.control import CancelResult
from dutiful.store.dead_letters import DeadLetter
from dutiful.store.metrics import AttemptStats, outcome_of
from dutiful.store.queries import JobFilter, JobPage
from dutiful.store.webhooks import WebhookPost

COUNTED = 200  # in a queue with more ready jobs, those ahead are estimated
FAILED_BY_HAND = "FailedByHand"  # the type of the error
TRIES = 20  # to fail a job that changes its state meanwhile
STEP = 1_000


class Retried(msgspec.Struct, frozen=True):
    """The job that will run now: a new one (`made`), or the same one, due now."""

    job_id: UUID
    state: State
    made: bool


class Enqueued(msgspec.Struct, frozen=True):
    """The new job, or the one that already holds its unique key (not `made`)."""

    job_id: UUID
    made: bool


class Jobs(OperatorPart):
    def __init__(self, actor: Actor, dead_letters: DeadLetters, queues: Queues) -> None:
        super().__init__(actor)
        self._dead_letters = dead_letters
        self._queues = queues

    # --- reads

    async def get(self, job_id: UUID) -> JobRecord:
        """The job; what is sealed of it is shown as sealed, here and in all reads."""
        return shown_record(_there(await self.find(job_id), job_id))

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
                    limits=await self._client.store.limits.all(keys=1_000) if record.state is State.BLOCKED else (),
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
                found = unblocked(record, fleet, ahead, exact=exact)
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
        ready = next((q.ready for q in await self._queues.all() if q.queue == record.queue), 0)
        if ready > COUNTED:
            return ready - 1, False
        waiting = await self.search(JobFilter(state=State.READY, queue=record.queue, limit=COUNTED, details=False))
        return sum((job.priority, job.id) < (record.priority, record.id) for job in waiting), True

    # --- actions

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
        letter = await self._letter_by_now(job_id)
        if letter is not None and letter.status in OPEN:
            new = (await self._dead_letters.reprocess(job_id, reason)).new_job_id
            return Retried(new, (await self.get(new)).state, made=True)
        found = await self.find(job_id)
        async with self._audited("job.retry", job_id, found, reason, lambda _: _check_undecided(letter)) as action:
            retried = await self._standing_for(letter) or await self._retry(_there(found, job_id))
            action.after = {"job": ids.public(retried.job_id), "state": retried.state, "made": retried.made}
        return retried

    async def _letter_by_now(self, job_id: UUID) -> DeadLetter | None:
        """The dead letter, reopened if its new job has failed and the services have not noticed yet."""
        letter = await self._dead_letters.by_job(job_id)
        if letter is None or letter.status is not ReviewState.REPROCESSING:
            return letter
        resolved = await self._store.dead_letters.resolve_reprocessed(1, new_job_id=letter.new_job_id)
        return await self._dead_letters.by_job(job_id) if resolved else letter

    async def _standing_for(self, letter: DeadLetter | None) -> Retried | None:
        """The job that was already made from this dead letter; there must be no second one."""
        if letter is None or letter.status is not ReviewState.REPROCESSING or letter.new_job_id is None:
            return None
        new = await self.find(letter.new_job_id)
        if new is None or new.state.final:
            raise IllegalTransition(
                f"job {ids.public(letter.new_job_id)}, made from {ids.public(letter.id)}, has just ended; look at it, "
                "and try again"
            )
        return Retried(new.id, new.state, made=False)

    async def find(self, job_id: UUID) -> JobRecord | None:
        record = await self._store.queries.job(job_id)
        return record if record is not None and self._actor.owns(record.tenant) else None

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
            check(_there(record, job_id))

        return self._actor.audited(
            action,
            ids.public(job_id),
            reason,
            tenant=None if record is None else record.tenant,
            before=None if record is None else {"state": record.state},
            check=possible,
        )

    async def _retry(self, record: JobRecord) -> Retried:
        match record.state:
            case State.SCHEDULED:
                return await self._run_now(record)
            case State.BLOCKED if record.gate == "breaker":
                return await self._run_now(record)
            case State.COMPLETED | State.COMPLETED_WITH_ERRORS | State.FAILED | State.CANCELLED:
                return await self._again(record)
            case State.READY | State.BLOCKED | State.RUNNING:
                why = await self.explain(record.id)
                raise IllegalTransition(f"job {ids.public(record.id)} is {record.state} already: it {why.sentence}")
            case _:
                assert_never(record.state)

    async def _run_now(self, record: JobRecord) -> Retried:
        state = await self._store.control.run_now(record.id)
        if state is None:
            raise JobNotFound(f"there is no job {ids.public(record.id)} any more")
        self._client.delivery.hint(frozenset({(record.queue, record.priority)}))
        return Retried(record.id, state, made=False)

    async def _again(self, record: JobRecord) -> Retried:
        job = run_again(record, id=uuid_utils.compat.uuid7(), by=self._actor.principal.name, kinds=self._actor.kinds)
        try:
            inserted = await self._client.submit(job)
        except UniqueConflict as error:
            return await self._run_already(record, error.existing)
        return Retried(inserted.job_id, (await self.get(inserted.job_id)).state, made=True)

    async def _run_already(self, record: JobRecord, holder: UUID) -> Retried:
        """The copy that a double click finds; raises if another job holds the key."""
        name, key = ids.public(holder), key_of(record.options)
        held = await self.find(holder)
        if held is not None and held.retry_of == record.id and (key is None or not held.state.final):
            return Retried(held.id, held.state, made=False)
        raise UniqueConflict(
            f"job {ids.public(record.id)} is not run again: job {name} has its unique key {key!r} and has not ended; "
            "wait for it, or cancel it",
            holder,
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
        async with self._audited("job.fail", job_id, found, reason, lambda job: _check_failable(job, retry)) as action:
            state = await self._fail(job_id, self._error(action.asked.act, reason, retry), retry)
            action.after = {"state": state, "retry": retry}
        self._client.delivery.notify_watchers()
        return state

    def _error(self, act: UUID, reason: str | None, retry: bool) -> dict[str, Any]:
        """The error to store; the id of the audited act distinguishes it from other failures for the same reason."""
        why = f": {recordable(reason)}" if reason else ", who gave no reason"
        error_class = ErrorClass.RETRYABLE if retry else ErrorClass.NON_RETRYABLE
        return {
            **make_error(FAILED_BY_HAND, f"failed by {self._actor.principal.name}{why}", error_class),
            "act": str(act),
        }

    async def _fail(self, job_id: UUID, error: dict[str, Any], retry: bool) -> State:
        for attempt in range(TRIES):
            record = await self.get(job_id)
            if attempt and await self._has(record, error):
                return record.state  # an earlier try succeeded, and its answer was lost
            _check_failable(record, retry)
            if record.state is State.RUNNING:
                if state := await self._end_attempt(record, error, retry):
                    return state
            elif retry:
                if state := await self._spend_attempt(record, error):
                    return state
            elif await self._store.control.fail(job_id, error):
                return State.FAILED
        raise IllegalTransition(f"job {ids.public(job_id)} changes its state faster than it can be failed; try again")

    async def _has(self, record: JobRecord, error: dict[str, Any]) -> bool:
        before = [attempt.error for attempt in await self._store.queries.attempts(record.id)]
        return error in [*before, *(record.errors or ())]

    async def _end_attempt(self, record: JobRecord, error: dict[str, Any], retry: bool) -> State | None:
        """The job's new state; None if the attempt has ended meanwhile."""
        held = await self._store.claims.held(record.id)
        if held is None:
            return None
        # A job that was asked to stop can only be cancelled; then that is done here, without its handler.
        outcome = Cancelled("cancelled") if held.cancel_requested else Failed(error, final=not retry)
        change = decide_or_fail(held, outcome, self._policy(record.kind), record.max_attempts, random.uniform)
        if await self._store.claims.settle([change]):
            return None
        await self._count_attempt(record.kind, change)
        if change.to is State.READY:
            self._client.delivery.hint(frozenset({(record.queue, record.priority)}))
        return change.to

    async def _spend_attempt(self, record: JobRecord, error: dict[str, Any]) -> State | None:
        """The new state of a waiting job, for which one more attempt counts as failed; None if it has moved on."""
        claim = HeldClaim(record.id, 0, record.attempt + 1, 0, record.kind, record.id, cancel_requested=False)
        change = decide_or_fail(claim, Failed(error), self._policy(record.kind), record.max_attempts, random.uniform)
        control, had = self._store.control, record.attempt
        if change.to is State.FAILED:
            state = State.FAILED if await control.fail(record.id, change.errors[0], attempt=had) else None
        else:
            state = await control.retry(record.id, error, attempt=had, delay=change.delay or timedelta(0))
        if state is not None:
            await self._count_attempt(record.kind, change)
        if state is State.READY:
            self._client.delivery.hint(frozenset({(record.queue, record.priority)}))
        return state

    def _policy(self, name: str) -> Policy:
        kind = self._actor.kinds.get(name)
        return kind.policy if kind else Policy()

    async def _count_attempt(self, kind: str, change: Change) -> None:
        """Counts an attempt that a person has ended, without its duration; its worker does not count it."""
        one = AttemptStats(kind=kind, outcome=outcome_of(change), count=1)
        try:
            # Not through the store of a tenant, because metrics are of the whole fleet.
            await self._client.store.metrics.add(uuid_utils.compat.uuid7(), 1, [one])
        except DutifulError as error:
            log.warning("an attempt at a job of kind %s was ended by hand, but could not be counted: %s", kind, error)

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
                await self._count_attempt(held.kind, change)
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


def _without_address(post: WebhookPost) -> WebhookPost:
    """Removes the URL for a tenant: that of a fleet-wide webhook may contain a secret, and errors may repeat it."""
    if post.webhook is None:
        return post
    where = origin(post.url)
    return msgspec.structs.replace(post, url=where, error=post.error and post.error.replace(post.url, where))


def _there(record: JobRecord | None, job_id: UUID) -> JobRecord:
    """Returns the job; raises the same error for another tenant's job as for none, so that it stays hidden."""
    if record is None:
        raise job_not_found(job_id)
    return record


def _check_undecided(letter: DeadLetter | None) -> None:
    """Refuses a retry that would override a decision made in review."""
    if letter is None:
        return
    by_hand = letter.status is ReviewState.RESOLVED and letter.resolution == BY_HAND
    if letter.status is ReviewState.DISCARDED or by_hand:
        why = f": {letter.notes}" if letter.notes else ""
        raise IllegalTransition(
            f"the dead letter of job {ids.public(letter.id)} was {letter.status}{' by hand' if by_hand else ''} by "
            f"{letter.reviewed_by}{why}; so it is not run again; if it has to be, enqueue a new job"
        )


def _check_failable(job: JobRecord, retry: bool) -> None:
    check(job.state, Transition.FAIL, State.FAILED)
    if retry and job.cancel_requested_at is not None:
        raise IllegalTransition(
            f"job {ids.public(job.id)} was asked to stop, so it is not retried; fail it without a retry"
        )
