"""A job that a program claims, runs and settles itself, without a worker."""

import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import NAMESPACE_DNS, UUID, uuid5

from dutiful.core import ids
from dutiful.core.errors import ClaimLost, JobCancelled, UsageError
from dutiful.core.job import Claim, JobRecord
from dutiful.core.json import encode
from dutiful.core.outcome import STOPPED, Cancelled, Failed, Outcome, Released
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.error_info import make_error
from dutiful.core.settle import Policy, decide
from dutiful.payload.key_ring import JobSeal
from dutiful.payload.sealing import seal_error
from dutiful.store import Store
from dutiful.store.claims import Completion, JobClaimRequest, Refusal, RefusalReason

LARGEST_RESULT = 16 * 1024 * 1024


class ClaimedJob:
    """Held until its lease ends; afterwards another worker takes the job, and what this one reports is refused.

    Each report raises ClaimLost then. If the job was asked to stop meanwhile, it ends as cancelled, whatever is
    reported, and JobCancelled is raised.
    """

    def __init__(self, store: Store, claim: Claim, policy: Policy, seal: JobSeal | None, message_limit: int) -> None:
        self._seal = seal
        self._message_limit = message_limit
        self.id: UUID = claim.job_id
        self.attempt = claim.attempt
        self._store = store
        self._claim = claim
        self._policy = policy
        self._first_report: str | None = None

    async def complete(self, result: Any = None) -> None:
        text = None if result is None else encode(result, what="result", limit=LARGEST_RESULT)
        text = text if self._seal is None else self._seal.seal_text("result", text)
        # Whether it names a webhook of its own, the store looks up.
        completion = Completion(self.id, self._claim.claim_id, text, webhook=True)
        await self._report("complete", lambda: self._store.claims.complete([completion]))

    async def fail(self, error_class: ErrorClass | str, message: str, *, retry: bool = True) -> None:
        """Retries it later, as its kind's policy says; without `retry`, or without attempts left, it is dead."""
        if error_class not in tuple(ErrorClass):
            raise UsageError(f"error_class: there is no {error_class!r}; there are: {', '.join(ErrorClass)}")
        if not isinstance(message, str):
            raise UsageError(f"message: {type(message).__name__} must be a text, as str(error)")
        error = make_error("FailedByProgram", message, ErrorClass(error_class), self._message_limit)
        error = error if self._seal is None else seal_error(self._seal, error)
        await self._report("fail", lambda: self._settle(Failed(error, final=not retry)))

    async def release(self) -> None:
        """Gives it back; the attempt does not count."""
        await self._report("release", lambda: self._settle(Released()))

    async def _settle(self, outcome: Outcome) -> Sequence[Refusal]:
        change = decide(self._claim, outcome, self._policy, self._claim.max_attempts, random.uniform)
        return await self._store.claims.settle([change])

    async def _report(self, name: str, store: Callable[[], Awaitable[Sequence[Refusal]]]) -> None:
        first = self._first_report = self._first_report or name
        reason = _reason(await store())
        if reason is RefusalReason.CANCEL_REQUESTED and _reason(await self._settle(Cancelled(STOPPED))) is None:
            self._first_report = "cancel"
            raise JobCancelled(f"job {ids.public(self.id)} was cancelled while it ran, so its outcome is not recorded")
        # One that is repeated because its answer was lost has been stored.
        if reason is not None and (reason is not RefusalReason.REPEATED or name != first):
            raise ClaimLost(f"job {ids.public(self.id)}: its claim is no longer held, so its outcome is not recorded")


def _reason(refused: Sequence[Refusal]) -> RefusalReason | None:
    return refused[0].reason if refused else None


async def claim_job(
    store: Store,
    job: JobRecord,
    worker: str,
    lease: timedelta,
    policy: Policy,
    seal: JobSeal | None,
    message_limit: int,
) -> ClaimedJob | None:
    """Claims this very job; None if it is not ready, is paused, or another worker was faster."""
    request = JobClaimRequest(
        worker_id=uuid5(NAMESPACE_DNS, worker),
        lane="by hand",
        job_ids=[job.id],
        kinds=[job.kind],
        lease=lease,
        suspects=1,  # it is run alone, as a job whose worker died has to be
    )
    claims = await store.claims.claim_jobs(request)
    return ClaimedJob(store, claims[0], policy, seal, message_limit) if claims else None
