"""JobQueue: the jobs of one firm, without access to those of others."""

from datetime import datetime
from typing import Any
from uuid import UUID

from dutiful import Dutiful, State, UniqueConflict
from examples.practice.by_hand import ClaimableJob
from examples.practice.payload_validator import PayloadValidator
from examples.practice.record import QueueRecord


class JobQueue:
    def __init__(self, app: Dutiful, firm_id: int) -> None:
        self.firm_id = firm_id
        self._app = app
        self._tenant = app.tenant(str(firm_id))

    async def create(
        self,
        job_type: str,
        payload: dict[str, Any],
        *,
        priority: int | None = None,
        scheduled_at: datetime | None = None,
        max_attempts: int | None = None,
    ) -> QueueRecord:
        """Raises PayloadInvalid with all errors, or UniqueConflict if the firm has used the key before."""
        job = await self._tenant.enqueue(
            job_type, payload, priority=priority, run_at=scheduled_at, max_attempts=max_attempts
        )
        return QueueRecord.of(await job.record())

    async def follow_up(self, job_type: str, correlation_id: UUID | str, idempotency_key: str, **refs: Any) -> bool:
        """Enqueues the next job of a chain; False if an earlier attempt has done so."""
        payload = PayloadValidator.create_payload(self.firm_id, correlation_id, idempotency_key, **refs)
        try:
            await self._tenant.enqueue(job_type, payload)
        except UniqueConflict:
            return False
        return True

    async def get(self, job_id: UUID | str) -> QueueRecord | None:
        job = await self._tenant.find(job_id)
        return None if job is None else QueueRecord.of(job)

    async def list(self, **filters: Any) -> list[QueueRecord]:
        """The newest first; by the filters of `Tenant.jobs`."""
        return [QueueRecord.of(job) for job in await self._tenant.jobs(**filters)]

    async def next_pending(self) -> "ClaimableJob | None":
        """The firm's next job that is due, by priority, then by time; also a retry, if no worker has promoted it."""
        await (await self._app.client()).store.promotion.promote(1_000)
        due = await self._tenant.jobs(state=State.READY, limit=500)
        first = min(due, key=lambda job: (job.priority, job.run_at or job.created_at, job.id), default=None)
        return None if first is None else ClaimableJob(self._app, first)

    async def result(self, job_id: UUID | str, timeout: str) -> Any:
        """Waits until it has ended; raises JobFailed if it failed permanently."""
        return await self._tenant.result(job_id, timeout)
