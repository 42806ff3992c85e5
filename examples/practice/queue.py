"""JobQueue: the jobs of one firm, without access to those of others."""

from datetime import datetime
from typing import Any
from uuid import UUID

from dutiful import Dutiful, JobRecord, State, UniqueConflict
from examples.practice.by_hand import ClaimableJob
from examples.practice.payload_validator import PayloadValidator
from examples.practice.record import QueueRecord

PAGE = 500


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
        """The firm's next job that is due, by priority, then by time; also a retry, if no worker has promoted it.

        It reads all that are due, page by page, because lists begin with the newest. Workers need not.
        """
        promotion = (await self._app.client()).store.promotion
        while (await promotion.promote(1_000)).moved == 1_000:
            continue
        firsts: list[JobRecord] = []
        before: UUID | None = None
        while True:
            page = await self._tenant.jobs(state=State.READY, limit=PAGE, before=before)
            firsts = sorted([*firsts, *page], key=_turn)[:1]
            if page.next is None:
                return ClaimableJob(self._app, firsts[0]) if firsts else None
            before = page.next

    async def result(self, job_id: UUID | str, timeout: str) -> Any:
        """Waits until it has ended; raises JobFailed if it failed permanently."""
        return await self._tenant.result(job_id, timeout)


def _turn(job: JobRecord) -> tuple[int, datetime, UUID]:
    """Its place in the order of claims."""
    return job.priority, job.run_at or job.created_at, job.id
