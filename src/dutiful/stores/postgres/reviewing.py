"""Dead letters in Postgres, and what people decide about them."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.audit import AuditEvent
from dutiful.core.readable import read_object, read_objects
from dutiful.core.review import BY_HAND, OPEN, TABLE, ReviewAct, ReviewState, resolution
from dutiful.core.transitions import State
from dutiful.reviewing import (
    BulkRun,
    BulkState,
    BulkStep,
    DeadLetter,
    DeadLetterCounts,
    DeadLetterFilter,
    DeadLetterGroup,
    Place,
    Review,
    Reviewed,
)
from dutiful.stores.postgres import encode
from dutiful.stores.postgres.part import PostgresPart

NIL = UUID(int=0)
LOOK = 5_000  # how many that are reprocessing one call looks at
_EQUAL = ("queue", "tenant", "correlation_id", "error_class", "error_type", "fingerprint")
_MOVES = msgspec.json.encode(
    {act: {state: to for (state, allowed), to in TABLE.items() if allowed is act} for act in ReviewAct}
).decode()


class PostgresReviewing(PostgresPart):
    _reprocessed_after = NIL

    async def dead_letter(self, job_id: UUID) -> DeadLetter | None:
        statement = self._sql["dead_letters"].replace("{where}", "job_id = $2")
        rows = await self._db.fetch(statement, 1, job_id)
        return _dead_letter(rows[0]) if rows else None

    async def dead_letters(
        self, filter: DeadLetterFilter, *, after: Place | None = None, limit: int = 50
    ) -> list[DeadLetter]:
        where, args = _where(filter, limit)
        if after is not None:
            args += [after.died_at, after.id]
            where += f" and (died_at, job_id) < (${len(args) - 1}, ${len(args)})"
        rows = await self._db.fetch(self._sql["dead_letters"].replace("{where}", where), *args)
        return [_dead_letter(row) for row in rows]

    async def dead_letter_count(self, filter: DeadLetterFilter) -> int:
        where, args = _where(filter)
        count: int = (await self._db.fetch(self._sql["dead_letter_count"].replace("{where}", where), *args))[0][0]
        return count

    async def dead_letter_counts(self, filter: DeadLetterFilter) -> DeadLetterCounts:
        where, args = _where(filter)
        rows = await self._db.fetch(self._sql["dead_letter_counts"].replace("{where}", where), *args)
        by_status, by_kind, by_class = Counter[str](), Counter[str](), Counter[str]()
        for status, kind, error_class, count, _ in rows:
            by_status[status] += count
            by_kind[kind] += count
            by_class[error_class] += count
        return DeadLetterCounts(
            total=by_status.total(),
            by_status=dict(by_status),
            by_kind=dict(by_kind),
            by_class=dict(by_class),
            oldest_open_at=min((row[4] for row in rows if row[0] in OPEN), default=None),
        )

    async def dead_letter_groups(self, filter: DeadLetterFilter, limit: int = 50) -> list[DeadLetterGroup]:
        where, args = _where(filter, limit)
        rows = await self._db.fetch(self._sql["dead_letter_groups"].replace("{where}", where), *args)
        return [DeadLetterGroup(**dict(row)) for row in rows]

    async def review(
        self, reviews: Sequence[Review], *, step: BulkStep | None = None, now: datetime | None = None
    ) -> list[Reviewed]:
        if not reviews and step is None:
            return []
        asked = msgspec.json.encode([_asked(review) for review in reviews]).decode()
        stepped = None if step is None else msgspec.json.encode(step).decode()
        rows = await self._db.fetch(self._sql["review"], asked, _MOVES, BY_HAND, stepped, now)
        return [
            Reviewed(id=r[0], status=None if r[1] is None else ReviewState(r[1]), applied=r[2], new_job_id=r[3])
            for r in rows
        ]

    async def start_bulk(self, run: BulkRun, event: AuditEvent) -> None:
        await self._db.fetch(
            self._sql["start_bulk"],
            run.id,
            run.created_at,
            run.ended_at,
            run.cursor and run.cursor.died_at,
            run.cursor and run.cursor.id,
            run.total,
            run.done,
            run.skipped,
            run.act.value,
            run.state.value,
            run.by,
            run.role,
            run.origin,
            run.filter.tenant,
            run.reason,
            msgspec.json.encode(run.filter).decode(),
            msgspec.json.encode([event]).decode(),
        )

    async def bulk_run(self, run_id: UUID) -> BulkRun | None:
        runs = await self._bulk_runs("id = $2", "desc", 1, run_id)
        return runs[0] if runs else None

    async def bulk_runs(self, *, running: bool = False, tenant: str | None = None, limit: int = 50) -> list[BulkRun]:
        where, direction = ("state = 'running'", "asc") if running else ("true", "desc")
        if tenant is None:
            return await self._bulk_runs(where, direction, limit)
        return await self._bulk_runs(f"{where} and tenant = $2", direction, limit, tenant)

    async def _bulk_runs(self, where: str, direction: str, *args: Any) -> list[BulkRun]:
        statement = self._sql["bulk_runs"].replace("{where}", where).replace("{direction}", direction)
        return [_bulk_run(**dict(row)) for row in await self._db.fetch(statement, *args)]

    async def stop_bulk(self, run_id: UUID, *, now: datetime | None = None) -> bool:
        return bool(await self._db.fetch(self._sql["stop_bulk"], run_id, now, repeat=False))

    async def resolve_reprocessed(
        self, limit: int, *, new_job_id: UUID | None = None, now: datetime | None = None
    ) -> int:
        if new_job_id is not None:
            rows = await self._db.fetch(self._sql["reprocessed"], UUID(int=new_job_id.int - 1), 1)
            return await self._resolve([row for row in rows[:-1] if row[1] == new_job_id], now)
        rows = await self._db.fetch(self._sql["reprocessed"], self._reprocessed_after, max(limit, LOOK))
        *ended, last = rows
        # Each call goes on where the last one ended, so that many which still run do not hide those that do not.
        self._reprocessed_after = last[1] or NIL
        if len(ended) > limit:
            ended = ended[:limit]
            self._reprocessed_after = ended[-1][1]
        return await self._resolve(ended, now)

    async def _resolve(self, ended: Sequence[Any], now: datetime | None) -> int:
        if not ended:
            return 0
        fates = [resolution(row[1], None if row[2] is None else State(row[2])) for row in ended]
        letters, new_jobs = [row[0] for row in ended], [row[1] for row in ended]
        columns = letters, new_jobs, [to.value for to, _ in fates], [why for _, why in fates]
        return len(await self._db.fetch(self._sql["resolve_reprocessed"], *columns, now))


def _where(filter: DeadLetterFilter, *args: Any) -> tuple[str, list[Any]]:
    """The conditions of a filter and the arguments of its statement, of which `args` are the first."""
    values = list(args)
    conditions = ["kind <> ''"]  # every one has a kind; that it is said lets the planner use the indexes for lists

    def add(condition: str, value: Any) -> None:
        values.append(value)
        conditions.append(condition.replace("?", f"${len(values)}"))

    if filter.status:
        statuses = [state.value for state in filter.status]
        # One alone is asked for by equality: then the index gives them in order of time.
        add("status = ?", statuses[0]) if len(statuses) == 1 else add("status = any (?)", statuses)
    if filter.kinds:
        add("kind = ?", filter.kinds[0]) if len(filter.kinds) == 1 else add("kind = any (?)", list(filter.kinds))
    for column in _EQUAL:
        if (value := getattr(filter, column)) is not None:
            add(f"{column} = ?", value)
    if filter.text is not None:
        add("strpos(lower(message), lower(?)) > 0", filter.text)
    if filter.since is not None:
        add("died_at >= ?", filter.since)
    if filter.until is not None:
        add("died_at < ?", filter.until)
    return " and ".join(conditions), values


def _dead_letter(row: Any) -> DeadLetter:
    values = dict(row)
    values["job"] = job = read_object(values["job"]) or {}
    values["payload"] = job.get("payload")
    for name in ("errors", "history"):
        values[name] = read_objects(values[name]) or []
    values["status"] = ReviewState(values["status"])
    return DeadLetter(**values)


def _asked(review: Review) -> dict[str, Any]:
    return {
        "id": review.id,
        "act": review.act,
        "by": review.by,
        "notes": review.notes,
        "job": None if review.job is None else encode.as_object(review.job),
        "event": review.event,
        "refusal": review.refusal,
    }


def _bulk_run(filter: str, cursor_died_at: datetime | None, cursor_id: UUID | None, **fields: Any) -> BulkRun:
    fields["act"], fields["state"] = ReviewAct(fields["act"]), BulkState(fields["state"])
    return BulkRun(
        **fields,
        filter=msgspec.json.decode(filter, type=DeadLetterFilter),
        cursor=None if cursor_died_at is None or cursor_id is None else Place(cursor_died_at, cursor_id),
    )
