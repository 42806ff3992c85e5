"""Parts with jobs that are long finished: marks them stale, deletes them, and remembers who is still to be told."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from dutiful.core.ids import floor_at
from dutiful.core.job import JobRecord
from dutiful.core.readable import read_as
from dutiful.duties import Retained, Tidings
from dutiful.stores.sqlite import bulk, locking, looking, tracking
from dutiful.stores.sqlite.codec import moment, span, to_json, uuid
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.sql import SQL

_TOMBSTONE_STANDS = span(timedelta(hours=1))
_record = msgspec.json.Decoder(JobRecord)


class Walked(msgspec.Struct, frozen=True):
    """What one step along the finished jobs has found, and where the next one begins."""

    found: list[bytes]
    cursor: UUID | None


def walk(
    db: Connection, cutoff: int, limit: int, cursor: UUID | None, *, marking: bool = False, stale_only: bool = False
) -> Walked:
    """Walk by id, which carries a time that is never after its job's finish; `marking` looks for what is not stale.

    A job that is marked but of which nobody has been told is not yet `stale_only`: that comes first.
    """
    if cutoff < 0:
        return Walked([], None)
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
    return Walked(found, uuid(walked[-1][0]) if len(walked) == limit else None)


def retain(
    db: Connection, older_than: timedelta, limit: int, cursor: UUID | None, stale_only: bool, now: int
) -> Retained:
    cutoff = now - span(older_than)
    purge(db, cutoff, limit, now)
    walked = walk(db, cutoff, limit, cursor, stale_only=stale_only)
    old = [(job_id,) for job_id in walked.found]
    if old:
        db.many(SQL["delete_finished"], old)
        _delete(db, old)
    return Retained(len(old), walked.cursor)


def purge(db: Connection, cutoff: int, limit: int, now: int) -> bool:
    """Delete what has outlived its use and belongs to no job; returns whether there may be more."""
    keys = db.change(SQL["delete_expired_keys"], (now, limit))
    posts = db.change(SQL["delete_ended_posts"], (cutoff, limit))
    tombstones = db.change(SQL["delete_old_tombstones"], (now - _TOMBSTONE_STANDS, limit))
    runs = bulk.forget(db, cutoff, limit)
    locking.forget(db)
    return max(keys, posts, tombstones, runs, _forget_closed(db, cutoff, limit)) >= limit


def _forget_closed(db: Connection, cutoff: int, limit: int) -> int:
    """Delete dead letters that people have closed long ago; says how many."""
    closed = db.rows(SQL["closed_dead_letters"], (cutoff, limit))
    for verb in ("delete_dead_letter", "delete_dead_letter_body"):
        db.many(SQL[verb], closed)
    return len(closed)


def records(db: Connection, job_ids: Sequence[bytes]) -> list[JobRecord]:
    found = (looking.find(db, uuid(job_id)) for job_id in job_ids)
    return [job for job in found if job is not None]


def mark_stale(db: Connection, jobs: Sequence[JobRecord], told: bool, now: int) -> list[JobRecord]:
    """Returns those that we have marked, and nobody else before us."""
    return [
        msgspec.structs.replace(job, stale_at=moment(now))
        for job in jobs
        if db.change(SQL["mark_stale"], (job.id.bytes, now, now if told else None))
    ]


def remove(db: Connection, jobs: Sequence[JobRecord], told: bool, now: int) -> list[JobRecord]:
    """Delete what nobody else has deleted, nor needs, since it was seen; each leaves a tombstone."""
    gone = [job for job in jobs if db.change(SQL["delete_finished_unneeded"], (job.id.bytes,))]
    told_at = now if told else None
    db.many(SQL["put_tombstone"], [(job.id.bytes, to_json(job), now, told_at) for job in gone])
    _delete(db, [(job.id.bytes,) for job in gone])
    return gone


def _delete(db: Connection, job_ids: Sequence[tuple[bytes]]) -> None:
    """All of a job but its end, which was deleted before."""
    for verb in ("delete_attempts", "delete_job"):
        db.many(SQL[verb], job_ids)
    tracking.forget(db, job_ids)
    if db.value(SQL["any_stale"]):
        db.many(SQL["delete_stale"], job_ids)


def untold(db: Connection, limit: int) -> list[Tidings]:
    stale = records(db, [job_id for (job_id,) in db.rows(SQL["untold_stale"], (limit,))])
    rest = db.rows(SQL["untold_tombstones"], (limit - len(stale),))
    deleted = [read_as(_record, text) for (text,) in rest]
    return [Tidings(job, deleted=False) for job in stale] + [Tidings(job, deleted=True) for job in deleted]


def tell(db: Connection, stale: Sequence[UUID], deleted: Sequence[UUID], now: int) -> None:
    db.many(SQL["tell_stale"], [(job_id.bytes, now) for job_id in stale])
    db.many(SQL["tell_tombstone"], [(job_id.bytes, now) for job_id in deleted])
