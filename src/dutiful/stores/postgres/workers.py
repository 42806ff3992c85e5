"""The list of workers in Postgres."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from dutiful.store.workers import Process, WorkerRecord
from dutiful.stores import liveness
from dutiful.stores.postgres.engine.subject import Session, Subject, decoded, text
from dutiful.stores.postgres.leadership import PostgresLeadership


class PostgresWorkers(Subject):
    def __init__(self, session: Session, leadership: PostgresLeadership) -> None:
        super().__init__(session)
        self._leadership = leadership

    async def heartbeat(self, worker: WorkerRecord, ttl: timedelta, *, now: datetime | None = None) -> None:
        mark = liveness.mark_of(worker.host, worker.pid)
        await self._db.fetch(
            self._sql["heartbeat"], worker.id, worker.name, worker.host, worker.pid, mark, worker.started_at, ttl,
            text(worker.lanes), text(worker.kinds), worker.locks, now,
        )  # fmt: skip

    async def remove(self, worker_id: UUID) -> None:
        await self._db.fetch(self._sql["delete_worker"], worker_id)
        await self._leadership.resign(worker_id)

    async def all(self) -> list[WorkerRecord]:
        return [_worker(**decoded(row)) for row in await self._db.fetch(self._sql["workers"])]


def _worker(
    host: str, pid: int, process_started: str | None, locks: str | None, alive: bool, **fields: Any
) -> WorkerRecord:
    process = liveness.process_of(host, pid, process_started)
    return WorkerRecord(
        **fields,
        host=host,
        pid=pid,
        alive=alive and process is not Process.ENDED,
        process=process,
        locks=locks,
    )
