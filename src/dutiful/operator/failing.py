"""Failing a job by hand, whether it runs or waits."""

import random
from typing import Any
from uuid import UUID

from dutiful.core import ids
from dutiful.core.error_class import ErrorClass
from dutiful.core.error_info import made
from dutiful.core.errors import IllegalTransition
from dutiful.core.job import JobRecord
from dutiful.core.outcome import Failed
from dutiful.core.settle import Policy, decide_surely
from dutiful.core.transitions import Act, State, check
from dutiful.operator.door import recordable
from dutiful.operator.jobs import Jobs

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
        return {**made("FailedByHand", f"failed by {self.principal.name}{why}", error_class), "act": str(act)}

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
        refused = await self._store.settle([change])
        if not refused and change.to is State.READY:
            self._client.delivery.hint(frozenset({(record.queue, record.priority)}))
        return None if refused else change.to


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
