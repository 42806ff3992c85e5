"""The queue as services see it, over Dutiful, which stores each job and has it delivered."""

from typing import Any

from dutiful import Dutiful, JobRecord, MalformedId

TENANT = "org"
REFERENCES = ("org_id", "project_id", "build_id")
OF_THE_RECORD = ("org", "org_id", "project_id")  # not passed to the handler


class DutifulQueueBackend:
    """Implements ports.QueueBackend; with a connection, jobs are stored in its transaction.

    What a payload refers to becomes the job's tenant and subject, by which operators find it.
    """

    def __init__(self, app: Dutiful, connection: Any = None) -> None:
        self._app = app
        self._connection = connection

    async def enqueue(self, job_type: str, payload: dict[str, Any], *, queue_name: str = "default") -> str | None:
        handle = await self._app.enqueue(
            job_type,
            {name: value for name, value in payload.items() if name not in OF_THE_RECORD},
            queue=queue_name,
            tenant=payload.get(TENANT),
            subject={name: payload[name] for name in REFERENCES if name in payload} or None,
            within=self._connection,
        )
        return str(handle.id)

    async def get_job_metadata(self, backend_job_id: str) -> dict[str, Any] | None:
        record = await self._find(backend_job_id)
        return None if record is None else {"kind": record.kind, "state": record.state.value, "queue": record.queue}

    async def get_job_result(self, backend_job_id: str) -> object | None:
        record = await self._find(backend_job_id)
        return None if record is None else record.result

    async def _find(self, backend_job_id: str) -> JobRecord | None:
        try:
            return await self._app.find(backend_job_id)
        except MalformedId:
            return None
