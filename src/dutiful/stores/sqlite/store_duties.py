"""The store's face to services: what they do for jobs that wait, and that lost their worker."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.core.job import Lapsed
from dutiful.core.serving import Turns
from dutiful.duties import Fired, Promotion, ScheduleRecord, Survey, WorkerRecord
from dutiful.payload_rule import PayloadRule
from dutiful.stores.sqlite import duties, gates, survey, workers
from dutiful.stores.sqlite.codec import maybe_moment, micros
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.threads import Threaded

Look = Callable[[Connection, int, gates.Kinds, Turns, int], gates.Found]


class SqliteDuties(Threaded):
    def __init__(self, path: str) -> None:
        self._leadership = survey.Leadership(path)
        self._workers = workers.Workers()
        self._swept: gates.Kinds = frozenset()
        self._turns = Turns()
        self._led_at = 0

    async def survey(self, worker_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> Survey:
        self._leadership.take()
        found = await self._read(
            lambda db: survey.survey(db, self._leadership, self._led_at, self._swept, self._clock(now))
        )
        if found.leading:
            self._led_at = micros(found.now)
        return found

    async def resign(self, worker_id: UUID) -> None:
        self._leadership.resign()

    async def promote(self, limit: int, *, now: datetime | None = None) -> Promotion:
        return await self._write(lambda db: duties.promote(db, limit, self._clock(now)))

    async def lapsed(self, limit: int, *, now: datetime | None = None) -> list[Lapsed]:
        return await self._read(lambda db: duties.lapsed(db, limit, self._clock(now)))

    async def held_by(self, worker_id: UUID) -> list[Lapsed]:
        return await self._read(lambda db: duties.held_by(db, worker_id))

    async def held(self, job_id: UUID) -> Lapsed | None:
        return await self._read(lambda db: duties.held(db, job_id))

    async def sweep(self, limit: int, *, now: datetime | None = None) -> Promotion:
        return await self._move(gates.look, limit, now)

    async def let_out(self, limit: int, *, now: datetime | None = None) -> Promotion:
        return await self._move(gates.look_outward, limit, now)

    async def _move(self, look: Look, limit: int, now: datetime | None) -> Promotion:
        found = await self._browse(lambda db: look(db, limit, self._swept, self._turns, self._clock(now)))
        self._turns.had(who for turn in found.turns for who, _ in turn.jobs)
        if found.nothing:
            self._swept = found.swept
            return Promotion(0, next_run_at=maybe_moment(found.next_run_at))
        promotion = await self._write(lambda db: gates.move(db, found, self._clock(now)))
        self._swept = found.swept
        return promotion

    async def orphans(self) -> list[Lapsed]:
        return await self._read(duties.orphans)

    async def put_schedules(self, schedules: Sequence[ScheduleRecord]) -> None:
        await self._write(lambda db: duties.put_schedules(db, schedules))

    async def put_rules(self, rules: Mapping[str, PayloadRule | None]) -> None:
        """Every job is stored by this code, which has checked it; those of other code are looked at before they run."""

    async def fire(self, fired: Fired, *, now: datetime | None = None) -> bool:
        return await self._write(lambda db: duties.fire(db, fired, self._clock(now)))

    async def beat(self, worker: WorkerRecord, ttl: timedelta, *, now: datetime | None = None) -> None:
        worker = msgspec.structs.replace(worker, leading=self._leadership.held)
        at = self._clock(now)
        if self._workers.is_news(worker, at):
            await self._write(lambda db: workers.put(db, worker, ttl, at))
            self._workers.remember(worker, at)

    async def leave(self, worker_id: UUID) -> None:
        self._workers.forget(worker_id)
        self._leadership.resign()
        await self._write(lambda db: workers.delete(db, worker_id))
