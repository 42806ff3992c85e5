"""The store's face to people who act on jobs, kinds, queues and schedules."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from dutiful.acting import CancelResult, Pause, PauseScope
from dutiful.core.transitions import State
from dutiful.stores.sqlite import acts
from dutiful.stores.sqlite.threads import Threaded


class SqliteActing(Threaded):
    async def cancel(self, job_id: UUID, reason: str, *, now: datetime | None = None) -> CancelResult | None:
        return await self._write(lambda db: acts.cancel(db, job_id, reason, self._clock(now)))

    async def bury(self, job_id: UUID, error: Mapping[str, Any], *, now: datetime | None = None) -> bool:
        return await self._write(lambda db: acts.bury(db, job_id, error, self._clock(now)))

    async def expedite(self, job_id: UUID, *, now: datetime | None = None) -> State | None:
        return await self._write(lambda db: acts.expedite(db, job_id, self._clock(now)))

    async def pause(self, pause: Pause, *, now: datetime | None = None) -> bool:
        return await self._write(lambda db: acts.pause(db, pause, self._clock(now)))

    async def resume(self, scope: PauseScope, name: str) -> bool:
        return await self._write(lambda db: acts.resume(db, scope, name))

    async def remove_schedule(self, name: str) -> bool:
        return await self._write(lambda db: acts.remove_schedule(db, name))

    async def enable_schedule(self, name: str, enabled: bool) -> bool:
        return await self._write(lambda db: acts.enable_schedule(db, name, enabled))
