"""Schedules in Postgres."""

from collections.abc import Sequence
from datetime import datetime

from dutiful.store.schedules import Fired, ScheduleRecord
from dutiful.stores.postgres.engine import columns
from dutiful.stores.postgres.engine.subject import Subject, as_struct, text


class PostgresSchedules(Subject):
    async def put(self, schedules: Sequence[ScheduleRecord]) -> None:
        for s in sorted(schedules, key=lambda s: s.name):
            args = (s.name, s.kind, s.expression, s.timezone, s.catch_up, text(s.job), s.next_at)
            await self._db.fetch(self._sql["put_schedule"], *args)

    async def fire(self, fired: Fired, *, now: datetime | None = None) -> bool:
        last = fired.jobs[-1].id if fired.jobs else None
        args = (fired.name, fired.expected, fired.next_at, fired.at, last, columns.as_json(fired.jobs), now)
        return bool(await self._db.fetch(self._sql["fire"], *args))

    async def all(self) -> list[ScheduleRecord]:
        return [as_struct(ScheduleRecord, row) for row in await self._db.fetch(self._sql["schedules"])]

    async def enable(self, name: str, enabled: bool) -> bool:
        return bool(await self._db.fetch(self._sql["enable_schedule"], name, enabled))

    async def remove(self, name: str) -> bool:
        return bool(await self._db.fetch(self._sql["remove_schedule"], name, repeat=False))
