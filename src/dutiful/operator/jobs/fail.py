"""Attempts that a person ends: which jobs can be failed, and what becomes of them."""

import random
from datetime import timedelta
from typing import Any
from uuid import UUID

import uuid_utils.compat

from dutiful.core import ids
from dutiful.core.errors import DutifulError, IllegalTransition
from dutiful.core.job import HeldClaim, JobRecord
from dutiful.core.outcome import Cancelled, Failed
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.error_info import make_error
from dutiful.core.settle import Change, Policy, decide_or_fail
from dutiful.core.states import State, Transition, check
from dutiful.operator.actor import Actor, OperatorPart, log, recordable
from dutiful.operator.jobs.reads import JobReads
from dutiful.store.metrics import AttemptStats, outcome_of

FAILED_BY_HAND = "FailedByHand"  # the type of the error
TRIES = 20  # to fail a job that changes its state meanwhile


class JobFailures(OperatorPart):
    """Fails jobs, or one attempt of them, whether they run or wait."""

    def __init__(self, actor: Actor, jobs: JobReads) -> None:
        super().__init__(actor)
        self._jobs = jobs

    def error(self, act: UUID, reason: str | None, retry: bool) -> dict[str, Any]:
        """The error to store; the id of the audited act distinguishes it from other failures for the same reason."""
        why = f": {recordable(reason)}" if reason else ", who gave no reason"
        error_class = ErrorClass.RETRYABLE if retry else ErrorClass.NON_RETRYABLE
        return {
            **make_error(FAILED_BY_HAND, f"failed by {self._actor.principal.name}{why}", error_class),
            "act": str(act),
        }

    async def fail(self, job_id: UUID, error: dict[str, Any], retry: bool) -> State:
        for attempt in range(TRIES):
            record = await self._jobs.get(job_id)
            if attempt and await self._has(record, error):
                return record.state  # an earlier try succeeded, and its answer was lost
            check_failable(record, retry)
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
        await self.count_attempt(record.kind, change)
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
            await self.count_attempt(record.kind, change)
        if state is State.READY:
            self._client.delivery.hint(frozenset({(record.queue, record.priority)}))
        return state

    def _policy(self, name: str) -> Policy:
        kind = self._actor.kinds.get(name)
        return kind.policy if kind else Policy()

    async def count_attempt(self, kind: str, change: Change) -> None:
        """Counts an attempt that a person has ended, without its duration; its worker does not count it."""
        one = AttemptStats(kind=kind, outcome=outcome_of(change), count=1)
        try:
            # Not through the store of a tenant, because metrics are of the whole fleet.
            await self._client.store.metrics.add(uuid_utils.compat.uuid7(), 1, [one])
        except DutifulError as error:
            log.warning("an attempt at a job of kind %s was ended by hand, but could not be counted: %s", kind, error)


def check_failable(job: JobRecord, retry: bool) -> None:
    check(job.state, Transition.FAIL, State.FAILED)
    if retry and job.cancel_requested_at is not None:
        raise IllegalTransition(
            f"job {ids.public(job.id)} was asked to stop, so it is not retried; fail it without a retry"
        )
