"""Schedules in SQLite."""

from collections.abc import Sequence
from datetime import datetime

from dutiful.store.schedules import Fired, ScheduleRecord
from dutiful.stores.sqlite import jobs
from dutiful.stores.sqlite.engine import SQL, Connection, Subject, writes
from dutiful.stores.sqlite.engine.codec import clock, micros
from dutiful.stores.sqlite.engine.columns import SCHEDULE


class SqliteSchedules(Subject):
    async def put(self, schedules: Sequence[ScheduleRecord]) -> None:
        await self._engine.write(lambda db: db.many(SQL["put_schedule"], map(SCHEDULE.encode, schedules)))

    @writes
    def fire(self, db: Connection, fired: Fired, *, now: datetime | None = None) -> bool:
        last_job_id = fired.jobs[-1].id.bytes if fired.jobs else None
        times = map(micros, (fired.expected, fired.next_at, fired.at))
        if not db.change(SQL["move_schedule"], (fired.name, *times, last_job_id)):
            return False
        jobs.insert(db, fired.jobs, clock(now))
        return True

    async def all(self) -> list[ScheduleRecord]:
        return [SCHEDULE.decode(row) for row in await self._engine.browse(lambda db: db.rows(SQL["schedules"]))]

    async def enable(self, name: str, enabled: bool) -> bool:
        return await self._engine.write(lambda db: db.change(SQL["enable_schedule"], (name, int(enabled))) > 0)

    async def remove(self, name: str) -> bool:
        return await self._engine.write(lambda db: db.change(SQL["remove_schedule"], (name,)) > 0)
