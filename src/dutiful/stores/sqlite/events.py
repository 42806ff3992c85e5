"""Events in SQLite: which jobs have changed, and their snapshots."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from dutiful.core.events import JobView, LeftOut, PostView
from dutiful.core.ids import floor_at
from dutiful.store.events import JobChange, JobChanges, Tombstone
from dutiful.stores.sqlite import progress, queries
from dutiful.stores.sqlite.engine import SQL, Connection, Subject, browses, reads, writes
from dutiful.stores.sqlite.engine.codec import EPOCH, clock, maybe_moment, micros, moment, span, uuid
from dutiful.stores.sqlite.engine.columns import ID, PLAIN, TIME, Columns

# The clock is read while the write lock is held, so times are in commit order, and no change appears before one that
# was read. Only a clock that is set back breaks this; up to this many microseconds are tolerated.
_REACH = 100_000
# The client makes an id at most this long before its job is stored; a job that took longer is found when it runs.
_ID_AGE = timedelta(seconds=2)
_NO_BOUND = 2**63 - 1
_LAST_ID = b"\xff" * 16
_POST = Columns(
    PostView, id=ID, url=PLAIN, state=PLAIN, attempts=PLAIN, ended_at=TIME, status=PLAIN, error=PLAIN
)  # fmt: skip


class SqliteEvents(Subject):
    @writes
    def listen(self, db: Connection, listener_id: UUID, ttl: timedelta, *, now: datetime | None = None) -> None:
        at = clock(now)
        db.run(SQL["delete_gone_listeners"], (at,))
        db.run(SQL["listen"], (listener_id.bytes, at + span(ttl)))

    async def unlisten(self, listener_id: UUID) -> None:
        await self._engine.write(lambda db: db.run(SQL["unlisten"], (listener_id.bytes,)))

    async def has_listeners(self, *, now: datetime | None = None) -> bool:
        return await self._engine.read(lambda db: db.row(SQL["has_listeners"], (clock(now),)) is not None)

    @reads
    def marks(self, db: Connection, job_ids: Sequence[UUID]) -> list[JobChange]:
        found = ((job_id, db.value(SQL["job_mark"], (job_id.bytes,))) for job_id in job_ids)
        return [JobChange(job_id, mark) for job_id, mark in found if mark is not None]

    @reads
    def views(self, db: Connection, job_ids: Sequence[UUID], *, largest: int | None = None) -> list[JobView]:
        return [view for job_id in job_ids if (view := _view(db, job_id, largest)) is not None]

    @reads
    def result(self, db: Connection, job_id: UUID, left_out: LeftOut) -> str | None:
        wanted = (job_id.bytes, micros(left_out.ended_at))
        if left_out.phase is None:
            found: str | None = db.value(SQL["result_of_job"], wanted)
        else:
            found = db.value(SQL["result_of_phase"], (*wanted, left_out.phase))
        return found

    @reads
    def tombstones(self, db: Connection, job_ids: Sequence[UUID]) -> list[Tombstone]:
        return [*_tombstones(db, (job_id.bytes for job_id in job_ids))]

    @browses
    def changes_since(
        self, db: Connection, since: datetime | None, limit: int, *, tenant: str | None = None
    ) -> JobChanges:
        now = clock(None)
        if since is None:
            return JobChanges([], [], moment(now))
        start = micros(since) - _REACH
        window = {"from": start, "floor": floor_at(max(EPOCH, moment(start) - _ID_AGE)).bytes, "limit": limit}
        bound, ceiling = _NO_BOUND, _LAST_ID
        if (last := db.value(SQL["last_changes"], window)) is not None:
            bound = last
        if (newest := db.row(SQL["last_new_job"], window)) is not None:
            bound = min(bound, newest[0])
            # An id is made before its job is stored, so later ids need not be read.
            ceiling = max(newest[1], floor_at(moment(bound) + timedelta(milliseconds=1)).bytes)
        rows = db.rows(SQL["changes_since"], {"bound": bound, "ceiling": ceiling, **window})
        more = bound != _NO_BOUND
        if len(rows) > limit:
            # All changes of one moment are returned together, however many, because the next call begins after it.
            cut = rows[limit - 1][0]
            more = more or rows[-1][0] > cut
            rows = [row for row in rows if row[0] <= cut]
        until = since
        if more:
            until = moment(rows[-1][0] + _REACH)  # the next call reaches back to just this moment
        elif rows:
            until = max(since, moment(min(rows[-1][0], now)))
        made = [(job_id, mark) for _, job_id, mark in rows if mark is not None]
        deleted = _tombstones(db, (job_id for _, job_id, mark in rows if mark is None))
        if tenant is not None:
            theirs = {job_id for job_id in dict(made) if db.value(SQL["tenant_of"], (job_id,)) == tenant}
            made = [change for change in made if change[0] in theirs]
        return JobChanges(
            [JobChange(uuid(job_id), mark) for job_id, mark in made],
            [tombstone for tombstone in deleted if tenant in (None, tombstone.tenant)],
            until,
            more,
        )


def _view(db: Connection, job_id: UUID, largest: int | None) -> JobView | None:
    large: list[str | None] = []
    if largest is not None:
        large = [phase for (phase,) in db.rows(SQL["large_results"], {"job_id": job_id.bytes, "largest": largest})]
    row = queries.job_row(db, job_id, (*queries.PAYLOAD, *([queries.RESULT] if None in large else [])))
    if row is None:
        return None
    sent_at, claim_id = row[-2:]
    view = JobView(
        job=queries.record(row),
        claim_id=claim_id,
        phases=progress.phases(db, job_id, largest),
        attempts=queries.attempts(db, job_id),
        posts=[_POST.decode(post) for post in db.rows(SQL["post_views"], (job_id.bytes,))],
        stale_sent_at=maybe_moment(sent_at),
    )
    return view.without(None in large, [phase for phase in large if phase is not None]) if large else view


def _tombstones(db: Connection, job_ids: Iterable[bytes]) -> Iterator[Tombstone]:
    for job_id in job_ids:
        if (row := db.row(SQL["tombstone"], (job_id,))) is not None:
            kind, queue, tenant, correlation_id, stale_at, deleted_at, sent_at = row
            yield Tombstone(
                job_id=uuid(job_id),
                kind=kind,
                queue=queue,
                tenant=tenant,
                correlation_id=correlation_id,
                stale_at=None if stale_at is None else datetime.fromisoformat(stale_at),
                deleted_at=moment(deleted_at),
                sent_at=moment(sent_at),
            )
