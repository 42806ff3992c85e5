"""Queries by operators and clients in SQLite."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from dutiful.core.job import AttemptRecord, JobRecord, Progress
from dutiful.core.json import read_objects
from dutiful.core.states import State
from dutiful.store.control import PauseScope
from dutiful.store.metrics import LETTERS, Depth
from dutiful.store.queries import JobFilter, JobPage, QueueRecord, Stats, TenantCount
from dutiful.stores.counting import ENDED, EXACT, LOOKED_UP, by_queue, by_state, of_many
from dutiful.stores.sqlite import metrics_depths, queries_health, queries_listing
from dutiful.stores.sqlite.control import pauses
from dutiful.stores.sqlite.engine import SQL, Connection, Row, Subject, browses, reads
from dutiful.stores.sqlite.engine.codec import clock, moment, span, uuid
from dutiful.stores.sqlite.engine.columns import ATTEMPT, ID, JSON, OBJECT, PLAIN, RECORD, TIME, Codec, Columns
from dutiful.stores.sqlite.metrics import ended_by_outcome
from dutiful.stores.sqlite.workers import workers

# The columns of select_jobs; after them come those of the progress, the correlation id, and two that only events need.
_RECORD = Columns(
    JobRecord, **RECORD, state=Codec(decode=State), attempt=PLAIN, crashes=PLAIN, run_at=TIME, started_at=TIME,
    finished_at=TIME, expires_at=TIME, cancel_requested_at=TIME, worker_id=ID, result=JSON,
    errors=Codec(decode=read_objects), gate=PLAIN, gate_key=PLAIN, stale_at=TIME, last_error=OBJECT,
    backend_job_id=PLAIN,
)  # fmt: skip
_PROGRESS = Columns(
    Progress, phase=PLAIN, percent=PLAIN, overall=PLAIN, message=PLAIN, items=OBJECT, updated_at=TIME
)  # fmt: skip


# Columns of select_jobs that may be large, and those that lists do not show.
RESULT = "f.result"
PAYLOAD, SUMMARY = ("j.payload",), ("j.payload", "j.subject", RESULT)


class SqliteQueries(Subject):
    async def job(self, job_id: UUID) -> JobRecord | None:
        return await self._engine.read(lambda db: find(db, job_id))

    @browses
    def records(self, db: Connection, job_ids: Sequence[UUID], *, details: bool = True) -> list[JobRecord]:
        return _fetch(db, sorted(job_ids, reverse=True), details)

    @reads
    def outcomes(self, db: Connection, job_ids: Sequence[UUID]) -> list[JobRecord]:
        # CROSS JOIN keeps the finished row as the outer loop, so that a job that is not final costs one lookup.
        statement = f"{_from('dutiful_finished p CROSS JOIN dutiful_job j ON j.id = p.job_id')} WHERE p.job_id = ?"
        found = (db.row(statement, (job_id.bytes,)) for job_id in job_ids)
        return [record(row) for row in found if row is not None]

    async def jobs(self, filter: JobFilter) -> JobPage:
        return await self._engine.browse(lambda db: queries_listing.page(db, filter, _fetch))

    async def attempts(self, job_id: UUID) -> list[AttemptRecord]:
        return await self._engine.read(lambda db: attempts(db, job_id))

    @reads
    def dependencies(self, db: Connection, job_id: UUID) -> list[JobRecord]:
        needs = [uuid(needed) for (needed,) in db.rows(SQL["needs_of"], (job_id.bytes,))]
        return find_all(db, needs, SUMMARY)

    @browses
    def queues(self, db: Connection, *, tenant: str | None = None, named: Collection[str] = ()) -> list[QueueRecord]:
        found, oldest = metrics_depths.depths(db, tenant, named), metrics_depths.due_since(db, tenant, named)
        return _queues(db, found, oldest, tenant, named)

    @browses
    def stats(
        self,
        db: Connection,
        since: timedelta,
        *,
        tenant: str | None = None,
        named: Collection[str] = (),
        now: datetime | None = None,
    ) -> Stats:
        at = clock(now)
        found, oldest = metrics_depths.depths(db, tenant, named), metrics_depths.due_since(db, tenant, named)
        finished, exact = _finished(db, since, tenant, at)
        dead_letters = metrics_depths.unreviewed(db, tenant)
        return Stats(
            live=by_state(found),
            finished=finished,
            since=moment(at - span(since)),
            oldest_ready_at=min(oldest.values(), default=None),
            dead_letters=dead_letters,
            workers=sum(worker.alive for worker in workers(db, at)),
            estimated=not exact or dead_letters == LETTERS or any(depth.estimated for depth in found),
            queues=_queues(db, found, oldest, tenant, named),
        )

    @browses
    def ended_by_tenant(self, db: Connection, since: timedelta, *, now: datetime | None = None) -> list[TenantCount]:
        rows = db.rows(SQL["ended_by_tenant"], {"since": clock(now) - span(since), "limit": ENDED})
        return [TenantCount(tenant, State(state), jobs) for tenant, state, jobs in rows]

    async def clock(self, *, now: datetime | None = None) -> datetime:
        return moment(clock(now))

    async def check_places(self) -> list[str]:
        return await self._engine.browse(queries_health.check_places)

    async def health(self) -> dict[str, Any]:
        return await self._engine.browse(lambda db: queries_health.health(db, self._engine.path, self._engine.driver))


def _fetch(db: Connection, job_ids: Sequence[UUID], details: bool) -> list[JobRecord]:
    return find_all(db, job_ids, () if details else SUMMARY)


def find(db: Connection, job_id: UUID) -> JobRecord | None:
    row = job_row(db, job_id)
    return None if row is None else record(row)


def find_all(db: Connection, job_ids: Sequence[UUID], left_out: Sequence[str] = ()) -> list[JobRecord]:
    """The jobs of `job_ids` that exist."""
    rows = (job_row(db, job_id, left_out) for job_id in job_ids)
    return [record(row) for row in rows if row is not None]


def job_row(db: Connection, job_id: UUID, left_out: Sequence[str] = ()) -> Row | None:
    """All that is known of a job, for `record`; the last two columns are stale.sent_at and the claim's number."""
    return db.row(_one_job(tuple(left_out)), (job_id.bytes,))


@cache
def _one_job(left_out: Sequence[str]) -> str:
    """The statement, with NULL in place of some columns: SQLite does not read what comes after those that it needs."""
    statement = f"{_from('dutiful_job j')} WHERE j.id = ?"
    for column in left_out:
        statement = statement.replace(column, "NULL", 1)
    return statement


def attempts(db: Connection, job_id: UUID) -> list[AttemptRecord]:
    return [ATTEMPT.decode(row) for row in db.rows(SQL["attempts"], (job_id.bytes,))]


def _from(source: str) -> str:
    return SQL["select_jobs"].replace("{source}", source)


def record(row: Row) -> JobRecord:
    more = row[len(_RECORD) :]
    progress, (correlation_id, _, _) = more[: len(_PROGRESS)], more[len(_PROGRESS) :]
    return _RECORD.decode(
        row,
        correlation_id=correlation_id or str(uuid(row[0])),
        progress=None if progress[-1] is None else _PROGRESS.decode(progress),
    )


def _queues(
    db: Connection, found: list[Depth], oldest: dict[str, datetime], tenant: str | None, named: Collection[str]
) -> list[QueueRecord]:
    paused = {pause.name for pause in pauses(db) if pause.scope is PauseScope.QUEUE}
    return by_queue(found, oldest, paused, empty=tenant is None, named=named)


def _finished(db: Connection, since: timedelta, tenant: str | None, now: int) -> tuple[dict[str, int], bool]:
    """The number of recently finished jobs by state, and whether that is exact.

    If there are many, it is what workers have counted; for a tenant, those among its newest jobs are counted.
    """
    limit = EXACT + 1 if tenant is None else LOOKED_UP
    statement = SQL["count_finished" if tenant is None else "count_finished_of_tenant"]
    rows = db.rows(statement, {"tenant": tenant, "since": now - span(since), "limit": limit})
    seen = {state: count for state, count in rows if state is not None}
    exact = sum(count for _, count in rows) < limit
    if exact or tenant is not None:
        return seen, exact
    return of_many(seen, ended_by_outcome(db, since, now)), False
