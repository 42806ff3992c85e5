"""Retention in SQLite: marks finished jobs stale, deletes them, and records which notices are unsent."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.core.ids import floor_at
from dutiful.core.job import JobRecord
from dutiful.core.json import read_as
from dutiful.store.retention import KEEP_UNUSED, RetentionNotice, RetentionStep
from dutiful.stores.sqlite import breakers, locks, progress, queries, steps
from dutiful.stores.sqlite.engine import SQL, Connection, Subject, browses, writes
from dutiful.stores.sqlite.engine.codec import clock, moment, span, to_json, uuid

_TOMBSTONES_KEPT = span(timedelta(hours=1))
_METRICS_KEPT = span(timedelta(days=365))
_SLICE = 200  # so many jobs are marked or deleted in one write, so that other writes do not wait long
_record = msgspec.json.Decoder(JobRecord)

Step = Callable[[Connection, Sequence[JobRecord], bool, int], list[JobRecord]]


class SqliteRetention(Subject):
    async def delete(
        self, older_than: timedelta, limit: int, cursor: UUID | None, *, stale_only: bool = False,
        tombstones: bool = False, sent: bool = False, now: datetime | None = None,
    ) -> RetentionStep:  # fmt: skip
        cutoff = clock(now) - span(older_than)
        if not tombstones:
            return await self._engine.write(lambda db: _delete(db, _walk(db, cutoff, limit, cursor, stale_only)))
        found = await self._engine.browse(lambda db: _found(db, _walk(db, cutoff, limit, cursor, stale_only)))
        return await self._in_slices(found, _delete_with_tombstones, sent, now)

    @writes
    def delete_leftovers(
        self, db: Connection, older_than: timedelta, limit: int, *, now: datetime | None = None
    ) -> bool:
        at = clock(now)
        unused = breakers.delete_unused(db, at - span(max(older_than, KEEP_UNUSED)), limit, at)
        return _delete_leftovers(db, at - span(older_than), limit, at) or unused >= limit

    async def mark_stale(
        self, older_than: timedelta, limit: int, cursor: UUID | None, *, sent: bool, now: datetime | None = None
    ) -> RetentionStep:
        cutoff = clock(now) - span(older_than)
        found = await self._engine.browse(lambda db: _found(db, _walk(db, cutoff, limit, cursor, marking=True)))
        return await self._in_slices(found, _mark_stale, sent, now)

    async def _in_slices(self, found: RetentionStep, step: Step, sent: bool, now: datetime | None) -> RetentionStep:
        """Writes in small transactions what was read before, so that other writes do not wait long."""
        done: list[JobRecord] = []
        for start in range(0, len(found.jobs), _SLICE):
            jobs = found.jobs[start : start + _SLICE]
            done += await self._engine.write(lambda db: step(db, jobs, sent, clock(now)))  # noqa: B023
        return RetentionStep(len(done), done, found.cursor)

    @browses
    def unsent(self, db: Connection, limit: int) -> list[RetentionNotice]:
        stale = _records(db, [job_id for (job_id,) in db.rows(SQL["unsent_stale"], (limit,))])
        rest = db.rows(SQL["unsent_tombstones"], (limit - len(stale),))
        return [
            *(RetentionNotice(job, deleted=False) for job in stale),
            *(RetentionNotice(read_as(_record, text), deleted=True) for (text,) in rest),
        ]

    @writes
    def mark_sent(
        self, db: Connection, stale: Sequence[UUID], deleted: Sequence[UUID], *, now: datetime | None = None
    ) -> None:
        at = clock(now)
        db.many(SQL["mark_stale_sent"], [(job_id.bytes, at) for job_id in stale])
        db.many(SQL["mark_tombstone_sent"], [(job_id.bytes, at) for job_id in deleted])


def _walk(
    db: Connection, cutoff: int, limit: int, cursor: UUID | None, stale_only: bool = False, *, marking: bool = False
) -> tuple[list[bytes], UUID | None]:
    """The jobs that one step along the finished ones finds, and where the next step begins.

    Walks by id, whose time is never after the job's end. `marking` finds jobs that are not stale; `stale_only`
    skips jobs whose notice of the stale mark is unsent, because that comes first.
    """
    if cutoff < 0:
        return [], None
    window = {
        "cutoff": cutoff,
        "after": b"" if cursor is None else cursor.bytes,
        "bound": floor_at(moment(cutoff) + timedelta(milliseconds=1)).bytes,
        "limit": limit,
    }
    walked = db.rows(SQL["finished_between"], window)
    found = [
        job_id
        for job_id, old, needed, stale in walked
        if old and not needed and (stale is None if marking else stale or not stale_only)
    ]
    return found, uuid(walked[-1][0]) if len(walked) == limit else None


def _found(db: Connection, walked: tuple[list[bytes], UUID | None]) -> RetentionStep:
    return RetentionStep(len(walked[0]), _records(db, walked[0]), walked[1])


def _delete(db: Connection, walked: tuple[list[bytes], UUID | None]) -> RetentionStep:
    old = [(job_id,) for job_id in walked[0]]
    if old:
        db.many(SQL["keep_metrics"], old)
        db.many(SQL["delete_finished"], old)
        _delete_jobs(db, old)
    return RetentionStep(len(old), [], walked[1])


def _delete_leftovers(db: Connection, cutoff: int, limit: int, now: int) -> bool:
    """Deletes what is old and belongs to no job; returns whether there may be more."""
    keys = db.change(SQL["delete_expired_keys"], (now, limit))
    posts = db.change(SQL["delete_ended_posts"], (cutoff, limit))
    tombstones = db.change(SQL["delete_old_tombstones"], (now - _TOMBSTONES_KEPT, limit))
    runs = db.change(SQL["delete_ended_bulk_runs"], (cutoff, limit))
    sent = db.change(SQL["delete_expired_events"], (now, limit))
    locks.delete_dead(db)
    db.run(SQL["delete_old_metrics"], (now - _METRICS_KEPT,))
    letters = db.rows(SQL["closed_dead_letters"], (cutoff, limit))
    for statement in ("delete_dead_letter", "delete_dead_letter_body"):
        db.many(SQL[statement], letters)
    return max(keys, posts, tombstones, runs, sent, len(letters)) >= limit


def _records(db: Connection, job_ids: Sequence[bytes]) -> list[JobRecord]:
    return queries.find_all(db, [uuid(job_id) for job_id in job_ids])


def _mark_stale(db: Connection, jobs: Sequence[JobRecord], sent: bool, now: int) -> list[JobRecord]:
    """Returns those that were not marked before."""
    return [
        msgspec.structs.replace(job, stale_at=moment(now))
        for job in jobs
        if db.change(SQL["mark_stale"], (job.id.bytes, now, now if sent else None))
    ]


def _delete_with_tombstones(db: Connection, jobs: Sequence[JobRecord], sent: bool, now: int) -> list[JobRecord]:
    """Deletes jobs that still exist and that no job depends on; each leaves a tombstone."""
    db.many(SQL["keep_metrics"], [(job.id.bytes,) for job in jobs])
    gone = [job for job in jobs if db.change(SQL["delete_finished_unneeded"], (job.id.bytes,))]
    sent_at = now if sent else None
    db.many(SQL["put_tombstone"], [(job.id.bytes, to_json(job), now, sent_at) for job in gone])
    _delete_jobs(db, [(job.id.bytes,) for job in gone])
    return gone


def _delete_jobs(db: Connection, job_ids: Sequence[tuple[bytes]]) -> None:
    """Deletes everything of a job but its finished row, which was deleted before."""
    for statement in ("delete_attempt", "delete_job"):
        db.many(SQL[statement], job_ids)
    progress.delete(db, job_ids)
    steps.delete(db, job_ids)
    for any_kept, delete in (
        ("any_stale", "delete_stale"),
        ("any_delivery", "delete_delivery"),
        ("any_dependency", "delete_dependency"),
    ):
        if db.value(SQL[any_kept]):
            db.many(SQL[delete], job_ids)
