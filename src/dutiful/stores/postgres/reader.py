"""What people and the client read from Postgres."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.job import AttemptRecord, JobRecord
from dutiful.core.transitions import State
from dutiful.store import (
    JobFilter,
    Pause,
    PauseScope,
    QueueRecord,
    ScheduleRecord,
    Stats,
    WorkerRecord,
)
from dutiful.stores.postgres.connection import Connections

_JSON = ("payload", "result", "errors", "subject", "options", "lanes", "kinds", "job", "error")


class PostgresReader:
    def __init__(self, db: Connections, schema: str) -> None:
        self._db = db
        self._schema = schema

    async def find(self, job_id: UUID) -> JobRecord | None:
        rows = await self._db.fetch(f"select * from {self._schema}.jobs where id = $1", job_id)
        return _record(rows[0]) if rows else None

    async def outcomes(self, job_ids: Sequence[UUID]) -> list[JobRecord]:
        statement = f"""
            select * from {self._schema}.jobs
            where id = any (array(select job_id from {self._schema}.finished where job_id = any ($1)))"""
        return [_record(row) for row in await self._db.fetch(statement, job_ids)]

    async def jobs(self, filter: JobFilter) -> list[JobRecord]:
        conditions, args = ["true"], list[Any]()
        for column in ("state", "kind", "queue", "tenant", "correlation_id"):
            value = getattr(filter, column)
            if value is not None:
                args.append(str(value))
                conditions.append(f"{column} = ${len(args)}")
        if filter.before is not None:
            args.append(filter.before)
            conditions.append(f"id < ${len(args)}")
        args.append(filter.limit)
        statement = (
            f"select * from {self._schema}.jobs where {' and '.join(conditions)} order by id desc limit ${len(args)}"
        )
        return [_record(row) for row in await self._db.fetch(statement, *args)]

    async def attempts(self, job_id: UUID) -> list[AttemptRecord]:
        statement = f"""
            select job_id, claim_id, attempt, outcome, worker_id, claimed_at, ended_at, error
            from {self._schema}.attempt where job_id = $1 order by id"""
        return [AttemptRecord(**_decoded(row)) for row in await self._db.fetch(statement, job_id)]

    async def dependencies(self, job_id: UUID) -> list[JobRecord]:
        statement = f"""
            select * from {self._schema}.jobs
            where id in (select needs_id from {self._schema}.dependency where job_id = $1) order by id"""
        return [_record(row) for row in await self._db.fetch(statement, job_id)]

    async def queues(self) -> list[QueueRecord]:
        statement = f"""
            select h.queue, h.scheduled, h.ready, h.blocked, h.running,
                   (select min(j.created_at) from (
                        select r.job_id from {self._schema}.ready r where r.queue = h.queue
                        order by r.priority, r.seq limit 1) f
                    join {self._schema}.job j on j.id = f.job_id) as oldest_ready_at,
                   exists (select 1 from {self._schema}.pause p where p.scope = 'queue' and p.name = h.queue) as paused
            from {self._schema}.queue_health h
            union all
            select p.name, 0, 0, 0, 0, null, true from {self._schema}.pause p
            where p.scope = 'queue' and not exists (
                select 1 from {self._schema}.queue_health h where h.queue = p.name)
            order by 1"""
        return [QueueRecord(**dict(row)) for row in await self._db.fetch(statement)]

    async def stats(self, since: timedelta, *, now: datetime | None = None) -> Stats:
        start = (now or await self._clock()) - since
        live = await self._db.fetch(f"""
            select 'scheduled' as state, count(*) from {self._schema}.scheduled
            union all select 'ready', count(*) from {self._schema}.ready
            union all select 'blocked', count(*) from {self._schema}.blocked
            union all select 'running', count(*) from {self._schema}.lease""")
        ended = await self._db.fetch(
            f"select state, count(*) from {self._schema}.finished where finished_at >= $1 group by state", start
        )
        rest = await self._db.fetch(
            f"""
            select (select min(j.created_at) from (
                        select job_id from {self._schema}.ready order by seq limit 1) f
                    join {self._schema}.job j on j.id = f.job_id),
                   (select count(*) from {self._schema}.dead_letter where status = 'pending_review'),
                   (select count(*) from {self._schema}.worker
                    where expires_at > coalesce($1::timestamptz, clock_timestamp()))""",
            now,
        )
        return Stats(
            live={r[0]: r[1] for r in live},
            finished={r[0]: r[1] for r in ended},
            since=start,
            oldest_ready_at=rest[0][0],
            dead_letters=rest[0][1],
            workers=rest[0][2],
        )

    async def workers(self) -> list[WorkerRecord]:
        statement = f"""
            select w.id, w.name, w.host, w.pid, w.started_at, w.seen_at, w.lanes, w.kinds,
                   w.expires_at > clock_timestamp() as alive,
                   exists (select 1 from {self._schema}.leader l
                           where l.holder = w.id and l.expires_at > clock_timestamp()) as "leading"
            from {self._schema}.worker w order by w.started_at"""
        return [WorkerRecord(**_decoded(row)) for row in await self._db.fetch(statement)]

    async def schedules(self) -> list[ScheduleRecord]:
        statement = f"""
            select name, kind, expression, timezone, catch_up, job, next_at, last_at, last_job_id, enabled
            from {self._schema}.schedule order by name"""
        return [ScheduleRecord(**_decoded(row)) for row in await self._db.fetch(statement)]

    async def pauses(self) -> list[Pause]:
        statement = f"select scope, name, since, by, reason from {self._schema}.pause order by scope, name"
        rows = await self._db.fetch(statement)
        return [Pause(PauseScope(r[0]), r[1], r[2], r[3], r[4]) for r in rows]

    async def check_places(self) -> list[str]:
        return [row[0] for row in await self._db.fetch(f"select breach from {self._schema}.misplaced limit 1000")]

    async def health(self) -> dict[str, Any]:
        rows = await self._db.fetch(
            f"""
            select current_setting('server_version') as server_version,
                   (select value from {self._schema}.meta where key = 'schema_version') as schema_version,
                   pg_size_pretty(pg_database_size(current_database())) as database_size,
                   current_setting('fsync') as fsync,
                   current_setting('synchronous_commit') as synchronous_commit,
                   (select max(clock_timestamp() - xact_start) from pg_stat_activity
                    where state <> 'idle' and backend_type = 'client backend') as oldest_transaction,
                   (select coalesce(sum(n_dead_tup), 0) from pg_stat_user_tables
                    where schemaname = $1 and relname in ('ready', 'lease')) as dead_rows,
                   current_user as role""",
            self._schema,
        )
        return {**dict(rows[0]), "store": "postgres", "pooled": self._db.pooled}

    async def _clock(self) -> datetime:
        now: datetime = (await self._db.fetch("select clock_timestamp()"))[0][0]
        return now


def _decoded(row: Any) -> dict[str, Any]:
    """A row with its JSON columns read."""
    values = dict(row)
    for name in _JSON:
        if isinstance(values.get(name), str):
            values[name] = msgspec.json.decode(values[name])
    return values


def _record(row: Any) -> JobRecord:
    values = _decoded(row)
    values["state"] = State(values["state"])
    return JobRecord(**values)
