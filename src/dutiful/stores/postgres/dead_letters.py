"""Dead letters in Postgres, and their review."""

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.review.audit import AuditEvent
from dutiful.core.review.state import BY_HAND, TABLE, ReviewAct, ReviewState, resolution
from dutiful.core.states import State
from dutiful.store.dead_letters import (
    BulkRun,
    BulkState,
    BulkStep,
    DeadLetter,
    DeadLetterCounts,
    DeadLetterFilter,
    DeadLetterGroup,
    LetterCursor,
    Review,
    Reviewed,
)
from dutiful.stores.counting import dead_letter_counts
from dutiful.stores.postgres.engine import columns
from dutiful.stores.postgres.engine.subject import Session, Subject, as_struct, conditions, decoded, text

log = logging.getLogger("dutiful.maintenance")
NIL = UUID(int=0)
LOOK = 5_000  # reprocessing ones that one call reads
_EQUAL = ("queue", "tenant", "correlation_id", "error_class", "error_type", "fingerprint")
_REPROCESSED = "job_id, new_job_id, state"
_MOVES = text({act: {state: to for (state, allowed), to in TABLE.items() if allowed is act} for act in ReviewAct})


class PostgresDeadLetters(Subject):
    _reprocessed_after = NIL

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._unreadable: set[UUID] = set()  # bulk runs that were logged already

    async def find(self, job_id: UUID) -> DeadLetter | None:
        statement = self._sql["dead_letters"].replace("{where}", "job_id = $2")
        rows = await self._db.fetch(statement, 1, job_id)
        return _dead_letter(rows[0]) if rows else None

    async def find_all(self, job_ids: Sequence[UUID]) -> list[DeadLetter]:
        statement = self._sql["dead_letters"].replace("{where}", "job_id = any ($2)")
        return [_dead_letter(row) for row in await self._db.fetch(statement, len(job_ids), list(job_ids))]

    async def search(
        self, filter: DeadLetterFilter, *, after: LetterCursor | None = None, limit: int = 50, details: bool = True
    ) -> list[DeadLetter]:
        where, args = _where(filter, limit)
        if after is not None:
            args += [after.died_at, after.id]
            where += f" and (died_at, job_id) < (${len(args) - 1}, ${len(args)})"
        statement = self._sql["dead_letters" if details else "dead_letter_summaries"]
        return [_dead_letter(row) for row in await self._db.fetch(statement.replace("{where}", where), *args)]

    async def states(self, job_ids: Sequence[UUID]) -> dict[UUID, ReviewState]:
        rows = await self._db.fetch(self._sql["dead_letter_states"], list(job_ids))
        return {job_id: ReviewState(status) for job_id, status in rows}

    async def count(self, filter: DeadLetterFilter) -> int:
        where, args = _where(filter)
        count: int = (await self._db.fetch(self._sql["count_dead_letters"].replace("{where}", where), *args))[0][0]
        return count

    async def counts(self, filter: DeadLetterFilter) -> DeadLetterCounts:
        where, args = _where(filter)
        rows = await self._db.fetch(self._sql["count_dead_letters_by"].replace("{where}", where), *args)
        return dead_letter_counts([tuple(row) for row in rows])

    async def groups(self, filter: DeadLetterFilter, limit: int = 50) -> list[DeadLetterGroup]:
        where, args = _where(filter, limit)
        rows = await self._db.fetch(self._sql["group_dead_letters"].replace("{where}", where), *args)
        return [DeadLetterGroup(**dict(row)) for row in rows]

    async def review(
        self, reviews: Sequence[Review], *, step: BulkStep | None = None, now: datetime | None = None
    ) -> list[Reviewed]:
        if not reviews and step is None:
            return []
        stepped = None if step is None else text(step)
        asked = text([_asked(review) for review in reviews])
        rows = await self._db.fetch(self._sql["review"], asked, _MOVES, BY_HAND, stepped, now)
        return [as_struct(Reviewed, row) for row in rows]

    async def start_bulk(self, run: BulkRun, event: AuditEvent) -> None:
        cursor = msgspec.structs.astuple(run.cursor) if run.cursor else (None, None)
        await self._db.fetch(
            self._sql["insert_bulk_run"], run.id, run.created_at, run.ended_at, *cursor, run.total, run.done,
            run.skipped, run.act, run.state, run.by, run.role, run.origin, run.filter.tenant, run.reason,
            text(run.filter), text([event]),
        )  # fmt: skip

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
        return [
            run for row in await self._db.fetch(statement, *args) if (run := self._bulk_run(**dict(row))) is not None
        ]

    def _bulk_run(
        self, filter: str, cursor_died_at: datetime | None, cursor_id: UUID | None, **fields: Any
    ) -> BulkRun | None:
        """None, if SQL has written it in another way: other runs go on."""
        try:
            wanted = msgspec.json.decode(filter, type=DeadLetterFilter)
        except msgspec.ValidationError as error:
            if fields["id"] not in self._unreadable:
                self._unreadable.add(fields["id"])
                log.warning("the filter of bulk run %s cannot be read (%s): delete its row", fields["id"], error)
            return None
        fields["act"], fields["state"] = ReviewAct(fields["act"]), BulkState(fields["state"])
        cursor = None if cursor_died_at is None or cursor_id is None else LetterCursor(cursor_died_at, cursor_id)
        return BulkRun(**fields, filter=wanted, cursor=cursor)

    async def stop_bulk(self, run_id: UUID, *, now: datetime | None = None) -> bool:
        return bool(await self._db.fetch(self._sql["stop_bulk_run"], run_id, now, repeat=False))

    async def resolve_reprocessed(
        self, limit: int, *, new_job_id: UUID | None = None, now: datetime | None = None
    ) -> int:
        if new_job_id is not None:
            rows = await self._rows("reprocessed", _REPROCESSED, UUID(int=new_job_id.int - 1), 1)
            return await self._resolve([row for row in rows[:-1] if row[1] == new_job_id], now)
        rows = await self._rows("reprocessed", _REPROCESSED, self._reprocessed_after, max(limit, LOOK))
        *ended, last = rows
        # Each call continues where the last one ended, so that many running jobs do not hide ended ones.
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
    """The conditions of a filter, and the arguments of its statement, beginning with `args`."""
    wanted = [
        _among("status", filter.status),
        _among("kind", filter.kinds),
        *((f"{column} = ?", getattr(filter, column)) for column in _EQUAL),
        ("strpos(lower(message), lower(?)) > 0", filter.text),
        ("died_at >= ?", filter.since),
        ("died_at < ?", filter.until),
    ]
    where, values = conditions(wanted, *args)
    # Every letter has a kind; the condition lets the planner use the indexes for lists.
    return f"kind <> '' and {where}", values


def _among(column: str, values: Sequence[str]) -> tuple[str, Any]:
    """One value is compared by equality, because then the index gives the rows in order of time."""
    return (f"{column} = ?", values[0]) if len(values) == 1 else (f"{column} = any (?)", list(values) or None)


def _dead_letter(row: Any) -> DeadLetter:
    values = decoded(row)
    values |= {name: values[name] or [] for name in ("errors", "history")}
    job = values["job"] or {}
    return DeadLetter(**values | {"status": ReviewState(values["status"]), "job": job, "payload": job.get("payload")})


def _asked(review: Review) -> dict[str, Any]:
    return msgspec.structs.asdict(review) | {"job": None if review.job is None else columns.as_object(review.job)}
