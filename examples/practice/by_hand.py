"""A job that a program claims, runs and settles itself, without a worker of Dutiful.

Workers do all of this, renew leases meanwhile, and stop with care: use them where you can. This is for a loop of your
own.
"""

from typing import Any

from dutiful import ClaimLost, Dutiful, JobRecord
from examples.practice.record import QueueRecord


class ClaimableJob:
    def __init__(self, app: Dutiful, job: JobRecord) -> None:
        self.id = job.id
        self.payload = job.payload
        self._app = app
        self._job = job
        self._claim: Any = None

    async def record(self) -> QueueRecord:
        found = await self._app.find(self.id)
        assert found is not None, "retention keeps what has not ended"
        return QueueRecord.of(found)

    async def claim_for_processing(self, worker_id: str) -> bool:
        """Claims it for five minutes, by SKIP LOCKED on Postgres; False if it is claimed, by another worker or here."""
        claim = await self._app.claim(self._job, worker_id)
        self._claim = claim or self._claim
        return claim is not None

    async def mark_completed(self, result: Any = None) -> None:
        await self._held().complete(result)

    async def mark_failed(self, error_class: str, error_message: str, should_retry: bool) -> None:
        """Retries it later by its kind's policy; without a retry, or with no attempt left, it is a dead letter."""
        await self._held().fail(error_class, error_message, retry=should_retry)

    def _held(self) -> Any:
        if self._claim is None:
            raise ClaimLost(f"job {self.id} is not claimed by this worker: call claim_for_processing first")
        return self._claim
