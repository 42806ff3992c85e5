"""The list of worker processes; a worker that rests and has nothing new to say writes next to nothing."""

from datetime import timedelta
from uuid import UUID

import msgspec

from dutiful.duties import WorkerRecord
from dutiful.stores import liveness
from dutiful.stores.sqlite.codec import EPOCH, micros, span, to_json
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.sql import SQL

_FORGOTTEN_AFTER = span(timedelta(days=1))
_RESTS = span(timedelta(minutes=1))
"""For how long a worker that does nothing need not say so again."""


class Workers:
    """What this process last wrote of its workers."""

    def __init__(self) -> None:
        self._written: dict[UUID, tuple[WorkerRecord, int]] = {}

    def is_news(self, worker: WorkerRecord, now: int) -> bool:
        written, at = self._written.get(worker.id, (None, 0))
        if written != _timeless(worker) or now - at >= _RESTS:
            return True
        # That a job still runs is news each time: only so do others know that it has not ended since.
        if any(lane.get("jobs") for lane in worker.lanes.values()):
            return True
        # Others see by its process whether a worker of this host lives; one that they cannot see has to say so.
        return not liveness.visible(worker.host, worker.pid)

    def remember(self, worker: WorkerRecord, now: int) -> None:
        self._written[worker.id] = _timeless(worker), now

    def forget(self, worker_id: UUID) -> None:
        self._written.pop(worker_id, None)


def put(db: Connection, worker: WorkerRecord, ttl: timedelta, now: int) -> None:
    started = liveness.mark_of(worker.host, worker.pid)
    db.run(
        SQL["put_worker"],
        (worker.id.bytes, worker.name, worker.host, worker.pid, started, micros(worker.started_at), now,
         now + span(ttl), int(worker.leading), to_json(worker.lanes), to_json(worker.kinds),
         worker.locks and worker.locks.value),
    )  # fmt: skip
    for id_, host, pid, its_start, expires_at in db.rows(SQL["old_workers"], (now - _FORGOTTEN_AFTER,)):
        if not liveness.alive(liveness.process_of(host, pid, its_start), expires_at, now):
            db.run(SQL["delete_worker"], (id_,))


def delete(db: Connection, worker_id: UUID) -> None:
    db.run(SQL["delete_worker"], (worker_id.bytes,))


def _timeless(worker: WorkerRecord) -> WorkerRecord:
    return msgspec.structs.replace(worker, seen_at=EPOCH)
