"""Deliveries in Postgres."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from dutiful.store.deliveries import Cursor, Delivered, WaitingJob
from dutiful.stores.postgres.engine.subject import Subject, arrays

_BEFORE_ALL: Cursor = ("", 0, 0, UUID(int=0))


class PostgresDeliveries(Subject):
    async def record(self, sent: Sequence[Delivered], *, now: datetime | None = None) -> None:
        if sent:
            await self._call("record_deliveries", *arrays(sent, *Delivered.__struct_fields__), now)

    async def take(self, taken: Sequence[tuple[UUID, str]]) -> None:
        if taken:
            await self._call("take_deliveries", [job_id for job_id, _ in taken], [name for _, name in taken])

    async def find(self, job_id: UUID) -> WaitingJob | None:
        rows = await self._db.fetch(self._sql["waiting_job"], job_id)
        return WaitingJob(*rows[0]) if rows else None

    async def waiting(self, after: Cursor | None, limit: int) -> list[WaitingJob]:
        columns = ", ".join(WaitingJob.__struct_fields__)
        return [WaitingJob(*row) for row in await self._rows("waiting_jobs", columns, *(after or _BEFORE_ALL), limit)]
