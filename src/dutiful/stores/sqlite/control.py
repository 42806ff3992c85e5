"""Operators' actions on jobs, queues, kinds and lanes in SQLite."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dutiful.core.states import State
from dutiful.store.control import CancelResult, Pause, PauseScope
from dutiful.stores.sqlite import placement
from dutiful.stores.sqlite.engine import SQL, Connection, Subject, writes
from dutiful.stores.sqlite.engine.codec import clock, moment, span
from dutiful.stores.sqlite.engine.columns import Carried


class SqliteControl(Subject):
    @writes
    def cancel(self, db: Connection, job_id: UUID, reason: str, *, now: datetime | None = None) -> CancelResult | None:
        state = placement.state_of(db, job_id.bytes)
        if state is None:
            return None
        if state.final:
            return CancelResult(state, changed=False)
        if state is State.RUNNING:
            changed = db.change(SQL["request_cancel"], (job_id.bytes, clock(now), reason))
            return CancelResult(state, changed=bool(changed), requested=True)
        changed = placement.cancel_waiting(db, job_id.bytes, reason, clock(now))
        return CancelResult(State.CANCELLED, changed=changed)

    @writes
    def fail(
        self,
        db: Connection,
        job_id: UUID,
        error: Mapping[str, Any],
        *,
        attempt: int | None = None,
        now: datetime | None = None,
    ) -> bool:
        return placement.end_waiting(db, job_id.bytes, State.FAILED, error, clock(now), attempt)

    @writes
    def retry(
        self,
        db: Connection,
        job_id: UUID,
        error: Mapping[str, Any],
        *,
        attempt: int,
        delay: timedelta,
        now: datetime | None = None,
    ) -> State | None:
        return placement.retry_waiting(db, job_id.bytes, error, attempt, span(delay), clock(now))

    @writes
    def run_now(self, db: Connection, job_id: UUID, *, now: datetime | None = None) -> State | None:
        raw, at = job_id.bytes, clock(now)
        taken = db.row(SQL["scheduled_job"], (raw,)) or db.row(SQL["rejected_job"], (raw,))
        if taken is None:
            return placement.state_of(db, raw)
        for place in ("scheduled", "blocked"):
            db.run(SQL[f"take_{place}_job"], (raw,))
        placing = placement.Placing(db, placement.blocked_kinds(db), at)
        state = placing.add(raw, Carried(*taken), at)
        placing.write()
        return state

    async def pause(self, pause: Pause, *, now: datetime | None = None) -> bool:
        values = (pause.scope.value, pause.name, pause.by, pause.reason)
        return await self._engine.write(lambda db: db.change(SQL["pause"], (*values, clock(now))) > 0)

    async def resume(self, scope: PauseScope, name: str) -> bool:
        return await self._engine.write(lambda db: db.change(SQL["resume"], (scope.value, name)) > 0)

    async def pauses(self) -> list[Pause]:
        return await self._engine.browse(pauses)


def pauses(db: Connection) -> list[Pause]:
    return [
        Pause(PauseScope(scope), name, moment(since), by, reason)
        for scope, name, since, by, reason in db.rows(SQL["pauses"])
    ]
