"""Deliveries in SQLite."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from dutiful.store.deliveries import Cursor, Delivered, WaitingJob
from dutiful.stores.sqlite.engine import SQL, Connection, Row, Subject, reads, writes
from dutiful.stores.sqlite.engine.codec import clock, maybe_moment, uuid


class SqliteDeliveries(Subject):
    @writes
    def record(self, db: Connection, sent: Sequence[Delivered], *, now: datetime | None = None) -> None:
        at = clock(now)
        db.many(
            SQL["record_delivery"],
            [(one.job_id.bytes, one.backend_job_id, one.number, one.attempt, at) for one in sent],
        )

    @writes
    def take(self, db: Connection, taken: Sequence[tuple[UUID, str]]) -> None:
        db.many(SQL["take_delivery"], [(job_id.bytes, name) for job_id, name in taken])

    @reads
    def find(self, db: Connection, job_id: UUID) -> WaitingJob | None:
        row = db.row(SQL["waiting_job"], (job_id.bytes,))
        return None if row is None else _waiting(row)

    @reads
    def waiting(self, db: Connection, after: Cursor | None, limit: int) -> list[WaitingJob]:
        queue, priority, seq, job_id = after or ("", 0, 0, UUID(int=0))
        return [_waiting(row) for row in db.rows(SQL["waiting_jobs"], (queue, priority, seq, job_id.bytes, limit))]


def _waiting(row: Row) -> WaitingJob:
    job_id, kind, queue, priority, seq, attempt, name, number, at, outstanding = row
    return WaitingJob(
        uuid(job_id), kind, queue, priority, seq, attempt, name, number, maybe_moment(at), bool(outstanding)
    )
