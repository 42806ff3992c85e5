"""What watchers read: which jobs something happened to, and each with all that events are made from."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from dutiful.core.event import JobView, PostView
from dutiful.core.ids import floor_at
from dutiful.core.job import JobRecord
from dutiful.core.readable import read_as
from dutiful.stores.sqlite import looking, tracking
from dutiful.stores.sqlite.codec import EPOCH, maybe_moment, micros, moment, span, uuid
from dutiful.stores.sqlite.driver import Connection
from dutiful.stores.sqlite.sql import SQL
from dutiful.watching import Stir, Stirred, Tombstone

# Every time is read off the clock by the one who holds the write lock, so times come in the order of the commits, and
# nothing can appear before what was seen. Only a clock that is set back can do that: by so much it is forgiven.
_REACH = 100_000
# An id is made by the client, this long before its job is stored at most; a job that was later is told of when it runs.
_ID_AGE = timedelta(seconds=2)
_NO_BOUND = 2**63 - 1
_LAST_ID = b"\xff" * 16
_record = msgspec.json.Decoder(JobRecord)


def listen(db: Connection, listener_id: UUID, ttl: timedelta, now: int) -> None:
    db.run(SQL["delete_gone_listeners"], (now,))
    db.run(SQL["listen"], (listener_id.bytes, now + span(ttl)))


def unlisten(db: Connection, listener_id: UUID) -> None:
    db.run(SQL["unlisten"], (listener_id.bytes,))


def listened(db: Connection, now: int) -> bool:
    return db.row(SQL["listened"], (now,)) is not None


def views(db: Connection, job_ids: Sequence[UUID]) -> list[JobView]:
    found = (_view(db, job_id) for job_id in job_ids)
    return [view for view in found if view is not None]


def _view(db: Connection, job_id: UUID) -> JobView | None:
    row = looking.job_row(db, job_id)
    if row is None:
        return None
    told_at, claim_id = row[-2:]
    return JobView(
        job=looking.record(row),
        claim_id=claim_id,
        phases=tracking.phases(db, job_id),
        attempts=looking.attempts(db, job_id),
        posts=[
            PostView(
                id=uuid(id_), url=url, state=state, attempts=attempts, ended_at=maybe_moment(ended_at), status=status,
                error=error,
            )
            for id_, url, state, attempts, ended_at, status, error in db.rows(SQL["post_views"], (job_id.bytes,))
        ],
        stale_told_at=maybe_moment(told_at),
    )  # fmt: skip


def stirred(db: Connection, since: datetime | None, limit: int, now: int) -> Stirred:
    if since is None:
        return Stirred([], [], moment(now))
    start = micros(since) - _REACH
    window = {
        "from": start,
        "floor": floor_at(max(EPOCH, moment(start) - _ID_AGE)).bytes,
        "limit": limit,
    }
    bound, ceiling = _NO_BOUND, _LAST_ID
    if (last := db.value(SQL["last_stirs"], window)) is not None:
        bound = last
    if (newest := db.row(SQL["last_new_job"], window)) is not None:
        bound = min(bound, newest[0])
        # Nobody makes an id after its job: those of later ones need not be looked at.
        ceiling = max(newest[1], floor_at(moment(bound) + timedelta(milliseconds=1)).bytes)
    rows = db.rows(SQL["stirs"], {"bound": bound, "ceiling": ceiling, **window})
    more = bound != _NO_BOUND
    if len(rows) > limit:
        # All of one moment together, however many: the next look begins after it.
        cut = rows[limit - 1][0]
        more = more or rows[-1][0] > cut
        rows = [row for row in rows if row[0] <= cut]
    until = since
    if more:
        until = moment(rows[-1][0] + _REACH)  # the next look reaches back to just this moment
    elif rows:
        until = max(since, moment(min(rows[-1][0], now)))
    return Stirred(
        [Stir(uuid(job_id), mark) for _, job_id, mark in rows if mark is not None],
        [*_tombstones(db, (job_id for _, job_id, mark in rows if mark is None))],
        until,
        more,
    )


def tombstones(db: Connection, job_ids: Sequence[UUID]) -> list[Tombstone]:
    return [*_tombstones(db, (job_id.bytes for job_id in job_ids))]


def _tombstones(db: Connection, job_ids: Iterable[bytes]) -> Iterator[Tombstone]:
    for job_id in job_ids:
        if (row := db.row(SQL["tombstone"], (job_id,))) is not None:
            text, deleted_at, told_at = row
            job = read_as(_record, text)
            yield Tombstone(
                job_id=job.id,
                kind=job.kind,
                queue=job.queue,
                tenant=job.tenant,
                correlation_id=job.correlation_id,
                stale_at=job.stale_at,
                deleted_at=moment(deleted_at),
                told_at=moment(told_at),
            )
