"""Operators' actions on jobs, queues, kinds and lanes in Postgres."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dutiful.core.states import State
from dutiful.store.control import CancelResult, Pause, PauseScope
from dutiful.stores.postgres.engine.subject import Subject, as_struct, text


class PostgresControl(Subject):
    """Calls are not retried where a repeated call would return a different result."""

    async def cancel(self, job_id: UUID, reason: str, *, now: datetime | None = None) -> CancelResult | None:
        rows = await self._rows("cancel", "state, changed, requested", job_id, reason, now, repeat=False)
        return CancelResult(State(rows[0][0]), rows[0][1], rows[0][2]) if rows else None

    async def fail(
        self, job_id: UUID, error: Mapping[str, Any], *, attempt: int | None = None, now: datetime | None = None
    ) -> bool:
        return bool(await self._call("end_waiting", job_id, State.FAILED, text(error), now, attempt))

    async def retry(
        self, job_id: UUID, error: Mapping[str, Any], *, attempt: int, delay: timedelta, now: datetime | None = None
    ) -> State | None:
        state = await self._call("retry_waiting", job_id, text(error), attempt, delay, now)
        return None if state is None else State(state)

    async def run_now(self, job_id: UUID, *, now: datetime | None = None) -> State | None:
        state = await self._call("run_now", job_id, now)
        return None if state is None else State(state)

    async def pause(self, pause: Pause, *, now: datetime | None = None) -> bool:
        args = (pause.scope.value, pause.name, now, pause.by, pause.reason)
        return bool(await self._db.fetch(self._sql["pause"], *args, repeat=False))

    async def resume(self, scope: PauseScope, name: str) -> bool:
        return bool(await self._db.fetch(self._sql["resume"], scope.value, name, repeat=False))

    async def pauses(self) -> list[Pause]:
        return [as_struct(Pause, row) for row in await self._db.fetch(self._sql["pauses"])]
