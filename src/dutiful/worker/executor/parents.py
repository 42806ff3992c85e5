"""What a job learns of the jobs that it depends on when it starts."""

import asyncio
import logging
from collections.abc import Collection
from typing import Any
from uuid import UUID

import msgspec

from dutiful.context import Parents
from dutiful.core import ids
from dutiful.core.errors import PayloadInvalid, StoreUnavailable
from dutiful.core.job import Claim, JobRecord
from dutiful.core.states import State
from dutiful.observe.logs import job_fields
from dutiful.observe.outage import level_of
from dutiful.payload.key_ring import KeyRing
from dutiful.payload.sealing import open_outcome
from dutiful.payload.signature import Schema
from dutiful.store.dependents import DependentStore
from dutiful.store.queries import QueryStore
from dutiful.worker.executor.outcomes import NotStarted

log = logging.getLogger("dutiful.worker")
RESULTS = '"results"'  # in the options of a job that gets results of others
PAUSE = 0.5  # seconds before a job whose parents cannot be read is released: it may be claimed at once
MET = (State.COMPLETED, State.COMPLETED_WITH_ERRORS)


class ParentReader:
    def __init__(self, queries: QueryStore, dependents: DependentStore, key_ring: KeyRing | None = None) -> None:
        self._key_ring = key_ring
        self._queries = queries
        self._dependents = dependents

    async def of(self, job_id: UUID) -> Parents:
        """The jobs that it depends on, as they ended, the oldest first."""
        edges = await self._dependents.edges([job_id])
        found = await self._queries.outcomes([edge.needs_id for edge in edges])
        return Parents(sorted(map(self._opened, found), key=lambda job: job.id))

    async def payload(self, claim: Claim, schema: Schema) -> str:
        """The job's payload with the results of other jobs; all are read in one statement."""
        references = msgspec.json.decode(claim.options or "{}").get("results") or {}
        wanted = {UUID(one) for found in references.values() for one in (found if isinstance(found, list) else [found])}
        ended = {job.id: job for job in await self._ended(claim, wanted)}
        payload: dict[str, Any] = msgspec.json.decode(claim.payload)
        optional = {field.name for field in schema.fields() if not field.required}
        for name, found in references.items():
            if isinstance(found, list):
                payload[name] = [_result(ended, UUID(one), name) for one in found]
            elif (result := _result(ended, UUID(found), name)) is not None or name not in optional:
                payload[name] = result
        return msgspec.json.encode(payload).decode()

    async def _ended(self, claim: Claim, wanted: Collection[UUID]) -> list[JobRecord]:
        """Those of the job's own tenant: its options may have been written by SQL, and name any job.

        Its edges do not say more, because a job that is sent again gets the same results without edges.
        """
        try:
            found = await self._queries.outcomes(list(wanted))
        except StoreUnavailable as error:
            job = ids.public(claim.job_id)
            log.log(level_of(error), "job %s is released: %s", job, error, extra=job_fields(claim))
            await asyncio.sleep(PAUSE)
            raise NotStarted(str(error)) from error
        return [self._opened(job) for job in found if job.tenant == claim.tenant]

    def _opened(self, job: JobRecord) -> JobRecord:
        return job if self._key_ring is None else open_outcome(self._key_ring, job)


def _result(ended: dict[UUID, JobRecord], job_id: UUID, name: str) -> Any:
    """None if the job has not completed: then its edge allows that."""
    job = ended.get(job_id)
    if job is None:
        raise PayloadInvalid(
            f"{name} is to be the result of job {ids.public(job_id)}, which is gone, or of another tenant", name
        )
    return job.result if job.state in MET else None
