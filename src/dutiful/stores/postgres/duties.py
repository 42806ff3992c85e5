"""What services see to in Postgres: due jobs, leases that are over, schedules, rules, and who is there."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.core.job import Lapsed
from dutiful.duties import Fired, Promotion, ScheduleRecord, Survey, WorkerRecord
from dutiful.payload_rule import PayloadRule
from dutiful.stores import liveness
from dutiful.stores.postgres import encode
from dutiful.stores.postgres.part import PostgresPart

LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)
LATE_COMMIT = timedelta(minutes=1)


class PostgresDuties(PostgresPart):
    _run_floor = LONG_AGO

    async def survey(self, worker_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> Survey:
        return Survey(*(await self._db.fetch(self._sql["survey"], worker_id, ttl, self._run_floor, now))[0])

    async def resign(self, worker_id: UUID) -> None:
        await self._db.fetch(self._sql["resign"], worker_id)

    async def promote(self, limit: int, *, now: datetime | None = None) -> Promotion:
        rows = await self._db.fetch(self._sql["promote"], limit, self._run_floor, now)
        lines, last = rows[:-1], rows[-1]
        moved = sum(r[2] for r in lines)
        # A full batch means a busy table: do not scan its dead entries again. Anything less: look from the start.
        self._run_floor = max(r[3] for r in lines) - LATE_COMMIT if moved >= limit else LONG_AGO
        return Promotion(moved, frozenset((r[0], r[1]) for r in lines), last[3])

    async def lapsed(self, limit: int, *, now: datetime | None = None) -> list[Lapsed]:
        return await self._lapsed(limit, None, now)

    async def held_by(self, worker_id: UUID) -> list[Lapsed]:
        return await self._lapsed(1_000_000, worker_id, None)

    async def _lapsed(self, limit: int, worker_id: UUID | None, now: datetime | None) -> list[Lapsed]:
        rows = await self._db.fetch(self._sql["lapsed"], limit, worker_id, now)
        return [Lapsed(*row) for row in rows]

    async def held(self, job_id: UUID) -> Lapsed | None:
        rows = await self._db.fetch(self._sql["held"], job_id)
        return Lapsed(*rows[0]) if rows else None

    async def orphans(self) -> list[Lapsed]:
        # A worker that is silent may live on another machine: nobody here can know, so its leases decide.
        return []

    async def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        for s in sorted(schedules, key=lambda s: s.name):
            job = msgspec.json.encode(s.job).decode()
            args = (s.name, s.kind, s.expression, s.timezone, s.catch_up, job, s.next_at)
            await self._db.fetch(self._sql["put_schedule"], *args)

    async def put_rules(self, rules: Mapping[str, PayloadRule | None]) -> None:
        given = [rule for rule in rules.values() if rule is not None]
        without = [kind for kind, rule in rules.items() if rule is None]
        await self._db.fetch(self._sql["put_rules"], msgspec.json.encode(given).decode(), without)

    async def fire(self, fired: Fired, *, now: datetime | None = None) -> bool:
        last = fired.jobs[-1].id if fired.jobs else None
        args = (fired.name, fired.expected, fired.next_at, fired.at, last, encode.as_json(fired.jobs), now)
        return bool(await self._db.fetch(self._sql["fire"], *args))

    async def beat(self, worker: WorkerRecord, ttl: timedelta, *, now: datetime | None = None) -> None:
        lanes, kinds = msgspec.json.encode(worker.lanes).decode(), msgspec.json.encode(worker.kinds).decode()
        args = (
            worker.id,
            worker.name,
            worker.host,
            worker.pid,
            liveness.mark_of(worker.host, worker.pid),
            worker.started_at,
            ttl,
            lanes,
            kinds,
            worker.locks,
            now,
        )
        await self._db.fetch(self._sql["beat"], *args)

    async def leave(self, worker_id: UUID) -> None:
        await self._db.fetch(self._sql["leave"], worker_id)
        await self.resign(worker_id)
