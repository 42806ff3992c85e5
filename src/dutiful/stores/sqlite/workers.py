"""The list of worker processes; a worker that has nothing new to say writes nothing."""

from datetime import timedelta
from uuid import UUID

import msgspec

from dutiful.duties import WorkerRecord
from dutiful.stores.sqlite import liveness
from dutiful.stores.sqlite.codec import EPOCH, micros, span, to_json
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.sql import SQL

_FORGOTTEN_AFTER = span(timedelta(days=1))


class Workers:
    """What this process last wrote of its workers."""

    def __init__(self) -> None:
        self._written: dict[UUID, WorkerRecord] = {}

    def is_news(self, worker: WorkerRecord) -> bool:
        # Others see by its process whether a worker of this host lives; one that they cannot see has to say so.
        return self._written.get(worker.id) != _timeless(worker) or not liveness.visible(worker.host, worker.pid)

    def remember(self, worker: WorkerRecord) -> None:
        self._written[worker.id] = _timeless(worker)

    def forget(self, worker_id: UUID) -> None:
        self._written.pop(worker_id, None)


def put(db: Connection, worker: WorkerRecord, ttl: timedelta, now: int) -> None:
    started = liveness.process_started(worker.pid) if worker.host == liveness.HOST else None
    db.run(
        SQL["put_worker"],
        (worker.id.bytes, worker.name, worker.host, worker.pid, started, micros(worker.started_at), now,
         now + span(ttl), int(worker.leading), to_json(worker.lanes), to_json(worker.kinds),
         worker.locks and worker.locks.value),
    )  # fmt: skip
    for id_, host, pid, its_start, expires_at in db.rows(SQL["old_workers"], (now - _FORGOTTEN_AFTER,)):
        if not liveness.alive(host, pid, its_start, expires_at, now):
            db.run(SQL["delete_worker"], (id_,))


def delete(db: Connection, worker_id: UUID) -> None:
    db.run(SQL["delete_worker"], (worker_id.bytes,))


def _timeless(worker: WorkerRecord) -> WorkerRecord:
    return msgspec.structs.replace(worker, seen_at=EPOCH)
