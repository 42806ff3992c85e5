"""What people do to jobs."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from dutiful.acting import CancelResult, Pause, PauseScope
from dutiful.core.transitions import State
from dutiful.stores.sqlite import places
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.sql import SQL


def cancel(db: Connection, job_id: UUID, reason: str, now: int) -> CancelResult | None:
    raw = job_id.bytes
    found = db.row(SQL["place_of"], {"id": raw})
    if found is None:
        return None
    state = State(found[1])
    if state.final:
        return CancelResult(state, changed=False)
    if state is State.RUNNING:
        changed = db.change(SQL["request_cancel"], (raw, now, reason))
        return CancelResult(state, changed=bool(changed), requested=True)
    return CancelResult(State.CANCELLED, changed=places.cancel_waiting(db, raw, reason, now))


def bury(db: Connection, job_id: UUID, error: Mapping[str, Any], now: int) -> bool:
    return places.end_waiting(db, job_id.bytes, State.FAILED, error, now)


def expedite(db: Connection, job_id: UUID, now: int) -> State | None:
    raw = job_id.bytes
    taken = db.row(SQL["take_scheduled_job"], (raw,)) or db.row(SQL["take_barred_job"], (raw,))
    if taken is None:
        found = db.row(SQL["place_of"], {"id": raw})
        return None if found is None else State(found[1])
    placing = places.Placing(db, places.paused_kinds(db), now)
    *line, attempt, crashes = taken
    state = placing.add(raw, tuple(line), attempt, crashes, None)
    placing.write()
    return state


def pause(db: Connection, pause: Pause, now: int) -> bool:
    return bool(db.change(SQL["pause"], (pause.scope.value, pause.name, now, pause.by, pause.reason)))


def resume(db: Connection, scope: PauseScope, name: str) -> bool:
    return bool(db.change(SQL["resume"], (scope.value, name)))


def remove_schedule(db: Connection, name: str) -> bool:
    return bool(db.change(SQL["remove_schedule"], (name,)))


def enable_schedule(db: Connection, name: str, enabled: bool) -> bool:
    return bool(db.change(SQL["enable_schedule"], (name, int(enabled))))
