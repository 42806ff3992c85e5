"""What people and the client read from Postgres."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dutiful.core.job import AttemptRecord, JobRecord
from dutiful.locking import LockMode
from dutiful.store import (
    JobFilter,
    JobPage,
    Pause,
    PauseScope,
    QueueRecord,
    ScheduleRecord,
    Stats,
    WorkerRecord,
)
from dutiful.stores.postgres.part import PostgresPart, decoded, record


class PostgresReader(PostgresPart):
    async def find(self, job_id: UUID) -> JobRecord | None:
        rows = await self._db.fetch(self._sql["find"], job_id)
        return record(rows[0]) if rows else None

    async def outcomes(self, job_ids: Sequence[UUID]) -> list[JobRecord]:
        return [record(row) for row in await self._db.fetch(self._sql["outcomes"], job_ids)]

    async def jobs(self, filter: JobFilter) -> JobPage:
        args: list[Any] = [filter.limit]
        conditions = ["true"]
        for column in ("state", "kind", "queue", "tenant", "correlation_id"):
            value = getattr(filter, column)
            if value is not None:
                args.append(str(value))
                conditions.append(f"{column} = ${len(args)}")
        if filter.before is not None:
            args.append(filter.before)
            conditions.append(f"id < ${len(args)}")
        statement = self._sql["jobs"].replace("{where}", " and ".join(conditions))
        async with self._db.transaction() as connection:
            # Statistics taken while the tables were empty would make it compare every job with every place.
            await connection.execute("set local enable_seqscan = off; set local enable_hashjoin = off")
            found = [record(row) for row in await connection.fetch(statement, *args)]
        return JobPage(found, found[-1].id if len(found) == filter.limit else None)

    async def attempts(self, job_id: UUID) -> list[AttemptRecord]:
        return [AttemptRecord(**decoded(row)) for row in await self._db.fetch(self._sql["attempts"], job_id)]

    async def dependencies(self, job_id: UUID) -> list[JobRecord]:
        return [record(row) for row in await self._db.fetch(self._sql["dependencies"], job_id)]

    async def queues(self) -> list[QueueRecord]:
        return [QueueRecord(**dict(row)) for row in await self._db.fetch(self._sql["queues"])]

    async def stats(self, since: timedelta, *, now: datetime | None = None) -> Stats:
        start = (now or await self._clock()) - since
        live = await self._db.fetch(self._sql["live_counts"])
        ended = await self._db.fetch(self._sql["finished_counts"], start)
        oldest, dead_letters, workers = (await self._db.fetch(self._sql["other_counts"], now))[0]
        return Stats(
            live={r[0]: r[1] for r in live},
            finished={r[0]: r[1] for r in ended},
            since=start,
            oldest_ready_at=oldest,
            dead_letters=dead_letters,
            workers=workers,
        )

    async def workers(self) -> list[WorkerRecord]:
        return [_worker(**decoded(row)) for row in await self._db.fetch(self._sql["workers"])]

    async def schedules(self) -> list[ScheduleRecord]:
        return [ScheduleRecord(**decoded(row)) for row in await self._db.fetch(self._sql["schedules"])]

    async def pauses(self) -> list[Pause]:
        rows = await self._db.fetch(self._sql["pauses"])
        return [Pause(PauseScope(r[0]), r[1], r[2], r[3], r[4]) for r in rows]

    async def check_places(self) -> list[str]:
        return [row[0] for row in await self._db.fetch(self._sql["misplaced"])]

    async def health(self) -> dict[str, Any]:
        rows = await self._db.fetch(self._sql["health"], self._schema)
        return {**dict(rows[0]), "store": "postgres", "pooled": self._db.pooled}


def _worker(locks: str | None, **fields: Any) -> WorkerRecord:
    return WorkerRecord(**fields, locks=None if locks is None else LockMode(locks))
