"""Failing a job by hand, whether it runs or waits."""

import random
from typing import Any
from uuid import UUID

import uuid_utils.compat

from dutiful.core import ids
from dutiful.core.error_class import ErrorClass
from dutiful.core.error_info import made
from dutiful.core.errors import DutifulError, IllegalTransition
from dutiful.core.job import JobRecord
from dutiful.core.outcome import Failed
from dutiful.core.settle import Change, Policy, decide_surely
from dutiful.core.transitions import Act, State, check
from dutiful.measuring import Tally, outcome_of
from dutiful.operator.door import log, recordable
from dutiful.operator.jobs import Jobs

BY_HAND = "FailedByHand"  # the type of the error
LOOKS = 20  # at a job that is somewhere else each time


class Failing(Jobs):
    async def fail(self, job_id: UUID, reason: str | None = None, *, retry: bool = False) -> State:
        """Make it a dead letter; with `retry`, only end the attempt that runs, and its kind's policy says what follows.

        Whoever runs it finds its claim gone, and stops. Returns where the job goes.
        """
        found = await self._found(job_id)
        async with self._acting("job.fail", job_id, found, reason, lambda job: _check_possible(job, retry)) as act:
            state = await self._fail(job_id, self._error(act.asked.act, reason, retry), retry)
            act.after = {"state": state, "retry": retry}
        self._client.delivery.news()
        return state

    def _error(self, act: UUID, reason: str | None, retry: bool) -> dict[str, Any]:
        """With the id of the act in the trail: by that it is told from another for the same reason."""
        why = f": {recordable(reason)}" if reason else ", who gave no reason"
        error_class = ErrorClass.RETRYABLE if retry else ErrorClass.NON_RETRYABLE
        return {**made(BY_HAND, f"failed by {self.principal.name}{why}", error_class), "act": str(act)}

    async def _fail(self, job_id: UUID, error: dict[str, Any], retry: bool) -> State:
        for look in range(LOOKS):
            record = await self.job(job_id)
            if look and await self._has(record, error):
                return record.state  # it was done, and the answer was lost
            _check_possible(record, retry)
            if record.state is State.RUNNING:
                if state := await self._end_attempt(record, error, retry):
                    return state
            elif await self._store.bury(job_id, error):
                return State.FAILED
            # It is not where it stood: it moved meanwhile.
        raise IllegalTransition(f"job {ids.public(job_id)} moves faster than it can be failed; try again")

    async def _has(self, record: JobRecord, error: dict[str, Any]) -> bool:
        before = [attempt.error for attempt in await self._store.attempts(record.id)]
        return error in [*before, *(record.errors or ())]

    async def _end_attempt(self, record: JobRecord, error: dict[str, Any], retry: bool) -> State | None:
        """Where the job goes; None if the attempt has ended otherwise."""
        held = await self._store.held(record.id)
        if held is None:
            return None
        kind = self._kinds.get(record.kind)
        policy = kind.policy if kind else Policy()
        outcome = Failed(error, final=not retry)
        change = decide_surely(held, outcome, policy, record.max_attempts, random.uniform)
        if await self._store.settle([change]):
            return None
        await self._count(record.kind, change)
        if change.to is State.READY:
            self._client.delivery.hint(frozenset({(record.queue, record.priority)}))
        return change.to

    async def _count(self, kind: str, change: Change) -> None:
        """An attempt that a person has ended, which its worker will not count; how long it ran, that one knows."""
        one = Tally(kind=kind, outcome=outcome_of(change), count=1)
        try:
            # Not by the store of a tenant: what is counted is the fleet's.
            await self._client.store.tally(uuid_utils.compat.uuid7(), 1, [one])
        except DutifulError as error:
            log.warning("an attempt at a job of kind %s was ended by hand, but could not be counted: %s", kind, error)


def _check_possible(job: JobRecord, retry: bool) -> None:
    check(job.state, Act.FAIL, State.FAILED)
    if retry and job.state is not State.RUNNING:
        raise IllegalTransition(
            f"job {ids.public(job.id)} is {job.state}, so there is no attempt to fail: leave it to its next one, or "
            "fail it without a retry"
        )
    if retry and job.cancel_requested_at is not None:
        raise IllegalTransition(
            f"job {ids.public(job.id)} was asked to stop and is not to be tried again; fail it without a retry"
        )
