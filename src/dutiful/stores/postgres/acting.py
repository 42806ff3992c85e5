"""What people do to jobs, kinds, queues and schedules in Postgres."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from dutiful.acting import CancelResult, Pause, PauseScope
from dutiful.core.transitions import State
from dutiful.stores.postgres.part import PostgresPart


class PostgresActing(PostgresPart):
    """Not repeated where the second answer would be another than the first."""

    async def cancel(self, job_id: UUID, reason: str, *, now: datetime | None = None) -> CancelResult | None:
        rows = await self._db.fetch(self._sql["cancel"], job_id, reason, now, repeat=False)
        return CancelResult(State(rows[0][0]), rows[0][1], rows[0][2]) if rows else None

    async def bury(self, job_id: UUID, error: Mapping[str, Any], *, now: datetime | None = None) -> bool:
        rows = await self._db.fetch(self._sql["bury"], job_id, msgspec.json.encode(error).decode(), now)
        return bool(rows[0][0])

    async def expedite(self, job_id: UUID, *, now: datetime | None = None) -> State | None:
        rows = await self._db.fetch(self._sql["expedite"], job_id, now)
        return State(rows[0][0]) if rows[0][0] else None

    async def pause(self, pause: Pause, *, now: datetime | None = None) -> bool:
        args = (pause.scope.value, pause.name, now, pause.by, pause.reason)
        return bool(await self._db.fetch(self._sql["pause"], *args, repeat=False))

    async def resume(self, scope: PauseScope, name: str) -> bool:
        return bool(await self._db.fetch(self._sql["resume"], scope.value, name, repeat=False))

    async def enable_schedule(self, name: str, enabled: bool) -> bool:
        return bool(await self._db.fetch(self._sql["enable_schedule"], name, enabled))

    async def remove_schedule(self, name: str) -> bool:
        return bool(await self._db.fetch(self._sql["remove_schedule"], name, repeat=False))
