"""Worker records in SQLite; an idle worker writes its own once a minute."""

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.store.workers import WorkerRecord
from dutiful.stores import liveness
from dutiful.stores.sqlite.engine import SQL, Connection, Engine
from dutiful.stores.sqlite.engine.codec import EPOCH, clock, moment, span
from dutiful.stores.sqlite.engine.columns import WORKER
from dutiful.stores.sqlite.engine.file_lock import LeaderLock

_FORGOTTEN_AFTER = span(timedelta(days=1))
_IDLE_INTERVAL = span(timedelta(minutes=1))
"""How often the record of an idle worker is written."""


class SqliteWorkers:
    def __init__(self, engine: Engine, leader: LeaderLock) -> None:
        self._engine = engine
        self._leader = leader
        self._written: dict[UUID, tuple[WorkerRecord, int]] = {}  # what this process last wrote, and when

    async def heartbeat(self, worker: WorkerRecord, ttl: timedelta, *, now: datetime | None = None) -> None:
        worker = msgspec.structs.replace(worker, leading=self._leader.held)
        at = clock(now)
        if self._is_news(worker, at):
            await self._engine.write(lambda db: _put(db, worker, ttl, at))
            self._written[worker.id] = _timeless(worker), at

    async def remove(self, worker_id: UUID) -> None:
        self._written.pop(worker_id, None)
        self._leader.resign()
        await self._engine.write(lambda db: db.run(SQL["delete_worker"], (worker_id.bytes,)))

    async def all(self) -> list[WorkerRecord]:
        return await self._engine.browse(lambda db: workers(db, clock(None)))

    def _is_news(self, worker: WorkerRecord, now: int) -> bool:
        written, at = self._written.get(worker.id, (None, 0))
        if written != _timeless(worker) or now - at >= _IDLE_INTERVAL:
            return True
        # Running jobs are reported with every heartbeat, so that readers know that they have not ended since.
        if any(lane.jobs for lane in worker.lanes.values()):
            return True
        # A worker whose process is visible is known to be alive by its pid; any other has to write its heartbeat.
        return not liveness.visible(worker.host, worker.pid)


def workers(db: Connection, now: int) -> list[WorkerRecord]:
    found = []
    for row in db.rows(SQL["workers"]):
        *_, host, pid, process_started, expires_at = row
        process = liveness.process_of(host, pid, process_started)
        found.append(WORKER.decode(row, process=process, alive=liveness.alive(process, expires_at, now)))
    return found


def _put(db: Connection, worker: WorkerRecord, ttl: timedelta, now: int) -> None:
    seen = msgspec.structs.replace(worker, seen_at=moment(now))
    db.run(SQL["put_worker"], (*WORKER.encode(seen), liveness.mark_of(worker.host, worker.pid), now + span(ttl)))
    for id_, host, pid, its_start, expires_at in db.rows(SQL["old_workers"], (now - _FORGOTTEN_AFTER,)):
        if not liveness.alive(liveness.process_of(host, pid, its_start), expires_at, now):
            db.run(SQL["delete_worker"], (id_,))


def _timeless(worker: WorkerRecord) -> WorkerRecord:
    return msgspec.structs.replace(worker, seen_at=EPOCH)
