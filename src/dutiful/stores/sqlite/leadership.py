"""Leadership in SQLite: a file lock, and the survey of what is due."""

from datetime import datetime, timedelta
from uuid import UUID

from dutiful.store.leadership import DEFAULT_PATIENCE, Patience, Survey
from dutiful.stores.sqlite.engine import SQL, Connection, Engine
from dutiful.stores.sqlite.engine.codec import clock, maybe_moment, micros, moment, span
from dutiful.stores.sqlite.engine.file_lock import LeaderLock
from dutiful.stores.sqlite.promotion import SqlitePromotion, stopped_kinds

_STALLED = 5_000_000
"""How long a service may be overdue, in microseconds, before others than the leader run it."""


class SqliteLeadership:
    def __init__(self, engine: Engine, leader: LeaderLock, promotion: SqlitePromotion) -> None:
        self._engine = engine
        self._leader = leader
        self._promotion = promotion
        self._led_at = 0  # when this process was last found to lead

    async def survey(
        self, worker_id: UUID, ttl: timedelta, patience: Patience = DEFAULT_PATIENCE, *, now: datetime | None = None
    ) -> Survey:
        self._leader.take()
        if await self._engine.read(lambda db: self._is_note_due(db, patience, clock(now))):
            await self._engine.write(lambda db: _note(db, patience, clock(now)))
        found = await self._engine.read(lambda db: self._survey(db, clock(now)))
        if found.leading:
            self._led_at = micros(found.now)
        return found

    async def resign(self, worker_id: UUID) -> bool:
        held = self._leader.held
        self._leader.resign()
        if held:
            # Other processes notice commits only, and a lock that is released is none.
            await self._engine.write(lambda db: db.run(SQL["tell_resigned"], (clock(None), worker_id.bytes)))
        return held

    async def is_vacant(self) -> bool:
        return self._leader.take()

    def _is_note_due(self, db: Connection, patience: Patience, now: int) -> bool:
        """In half the time that would count as a gap; never while no job runs, because an idle leader writes nothing.

        A file that is locked or full can still be read, so only a write shows that leases could be renewed.
        """
        if not self._leader.leads(now) or not db.value(SQL["any_lease"]):
            return False
        last = db.row(SQL["last_survey"])
        return last is None or last[0] - now <= span(patience.gap) // 2

    def _survey(self, db: Connection, now: int) -> Survey:
        """Also lets a process lead without the lock while the leader is stopped or stuck."""
        *due, any_blocked, reviewing, unsealed, limited, waits = db.rows(SQL["survey"], {"now": now})[0]
        next_run_at, next_fire_at, next_expiry, next_post_at = due
        stopped = stopped_kinds(db)
        blocked = bool(any_blocked) or not stopped <= self._promotion.swept
        blocked = blocked or (bool(stopped) and bool(db.value(SQL["any_breaker_due"], (now,))))
        if any(at is not None and at < now - _STALLED for at in due):
            self._leader.stand_in(now)
        # The survey does not show whether a gate should have opened, so every process checks the gates now and then.
        unseen = blocked and self._led_at < now - _STALLED
        return Survey(
            leading=self._leader.leads(now) or unseen,
            now=moment(now),
            next_run_at=maybe_moment(next_run_at),
            next_fire_at=maybe_moment(next_fire_at),
            expired=next_expiry is not None and next_expiry <= now and may_rescue(db, now),
            blocked=blocked,
            next_post_at=maybe_moment(next_post_at),
            reviewing=bool(reviewing),
            unsealed=bool(unsealed),
            limited=bool(limited),
            waits=bool(waits),
        )


def may_rescue(db: Connection, now: int) -> bool:
    """Whether leases that are over may be taken from their workers, which have had time to renew since an outage.

    Where nothing has ever led, there is nothing to go by.
    """
    last = db.row(SQL["last_survey"])
    return last is None or (last[1] <= now <= last[0])


def _note(db: Connection, patience: Patience, now: int) -> None:
    db.run(SQL["note_survey"], {"now": now, "gap": span(patience.gap), "hold": span(patience.hold)})
