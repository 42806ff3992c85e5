"""A job that a program claims, runs and settles itself, without a worker of Dutiful.

Workers do all of this, renew leases meanwhile, and stop with care: use them where you can. This is for a loop of your
own.
"""

import random
from datetime import timedelta
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import msgspec

from dutiful import ClaimLost, Dutiful, ErrorClass, JobRecord
from dutiful.core.job import Claim
from dutiful.core.outcome import Failed, Outcome, Released
from dutiful.core.retry.error_info import make_error
from dutiful.core.settle import Policy, decide
from dutiful.store import Store
from dutiful.store.claims import ClaimRequest, Completion, QueueLevel
from examples.practice.record import QueueRecord

LEASE = timedelta(minutes=5)  # afterwards another worker takes the job, and this one's outcome is refused


class ClaimableJob:
    def __init__(self, app: Dutiful, job: JobRecord) -> None:
        self.id = job.id
        self.payload = job.payload
        self._app = app
        self._job = job
        self._claim: Claim | None = None

    async def record(self) -> QueueRecord:
        found = await self._app.find(self.id)
        assert found is not None, "retention keeps what has not ended"
        return QueueRecord.of(found)

    async def claim_for_processing(self, worker_id: str) -> bool:
        """Claims it, by SKIP LOCKED on Postgres; False if another worker was faster."""
        store, job = await self._store(), self._job
        request = ClaimRequest(
            worker_id=uuid5(NAMESPACE_DNS, worker_id),
            lane="by hand",
            levels=[QueueLevel(job.queue, job.priority)],
            kinds=[job.kind],
            limit=1,
            lease=LEASE,
            tenants=[] if job.tenant is None else [job.tenant],
        )
        for claim in await store.claims.claim(request):
            if claim.job_id == self.id:
                self._claim = claim
            else:  # this one is taken, so the next came: it goes back, and its attempt does not count
                await self._settle(store, claim, Released())
        return self._claim is not None

    async def mark_completed(self, result: Any = None) -> None:
        claim = self._held()
        text = None if result is None else msgspec.json.encode(result).decode()
        refused = await (await self._store()).claims.complete([Completion(claim.job_id, claim.claim_id, text)])
        self._ended(bool(refused))

    async def mark_failed(self, error_class: str, error_message: str, should_retry: bool) -> None:
        """Retries it later by its kind's policy; without a retry, or with no attempt left, it is a dead letter."""
        error = make_error("ProcessingError", error_message, ErrorClass(error_class))
        await self._settle(await self._store(), self._held(), Failed(error, final=not should_retry))

    async def _settle(self, store: Store, claim: Claim, outcome: Outcome) -> None:
        kind = self._app.kinds.get(claim.kind)
        policy = kind.policy if kind is not None else Policy()
        change = decide(claim, outcome, policy, claim.max_attempts, random.uniform)
        refused = await store.claims.settle([change])
        if claim is self._claim:
            self._ended(bool(refused))

    def _held(self) -> Claim:
        if self._claim is None:
            raise ClaimLost(f"job {self.id} is not claimed by this worker: call claim_for_processing first")
        return self._claim

    def _ended(self, refused: bool) -> None:
        self._claim = None
        if refused:
            raise ClaimLost(f"job {self.id}: the lease had ended, and its outcome is not recorded")

    async def _store(self) -> Store:
        return (await self._app.client()).store
