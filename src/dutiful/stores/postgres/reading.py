"""What people and the client read from Postgres."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, assert_never
from uuid import UUID

import msgspec

from dutiful.acting import Pause, PauseScope
from dutiful.core.job import AttemptRecord, JobRecord
from dutiful.duties import Process, ScheduleRecord, WorkerRecord
from dutiful.locking import LockMode
from dutiful.measuring import LETTERS, Depth, Signs
from dutiful.reading import JobFilter, JobPage, QueueRecord, Stats
from dutiful.stores import liveness
from dutiful.stores.counting import EXACT, LOOKED_UP, by_queue, by_state, of_many
from dutiful.stores.listing import Fetch, Lines, Request, Sift, Walk, listing, needle
from dutiful.stores.postgres.measuring import PostgresMeasuring
from dutiful.stores.postgres.part import decoded, record


class PostgresReading(PostgresMeasuring):
    async def find(self, job_id: UUID) -> JobRecord | None:
        rows = await self._db.fetch(self._sql["records"], [job_id])
        return record(rows[0]) if rows else None

    async def outcomes(self, job_ids: Sequence[UUID]) -> list[JobRecord]:
        return [record(row) for row in await self._db.fetch(self._sql["outcomes"], job_ids)]

    async def jobs(self, filter: JobFilter) -> JobPage:
        looking, answer = listing(filter), None
        while True:
            try:
                request = looking.send(answer)
            except StopIteration as found:
                page: JobPage = found.value
                return page
            answer = await self._answer(request)

    async def _answer(self, request: Request) -> Any:
        fetch, sql = self._db.fetch, self._sql
        match request:
            case Lines(kinds, queue):
                return await fetch(sql["lines"], kinds, queue)
            case Walk(branches, low, high, each):
                columns = zip(*((branch.index.value, branch.name, branch.queue) for branch in branches), strict=True)
                return [row["ids"] for row in await fetch(sql["walk"], *columns, low, high, each)]
            case Sift(ids, wanted):
                rows = await fetch(sql["sift"], ids, wanted.state, wanted.kinds, wanted.queue, wanted.tenant,
                                   _json(wanted.subject), wanted.error_class,
                                   None if wanted.text is None else needle(wanted.text))  # fmt: skip
                return [row[0] for row in rows]
            case Fetch(ids):
                return [record(row) for row in await fetch(sql["records"], ids)]
            case _:
                assert_never(request)

    async def attempts(self, job_id: UUID) -> list[AttemptRecord]:
        return [AttemptRecord(**decoded(row)) for row in await self._db.fetch(self._sql["attempts"], job_id)]

    async def dependencies(self, job_id: UUID) -> list[JobRecord]:
        return [record(row) for row in await self._db.fetch(self._sql["dependencies"], job_id)]

    async def queues(self, *, tenant: str | None = None) -> list[QueueRecord]:
        return await self._queues(await self.depths(tenant=tenant), await self._oldest(tenant), tenant)

    async def stats(self, since: timedelta, *, tenant: str | None = None, now: datetime | None = None) -> Stats:
        at = now or await self._clock()
        depths, oldest = await self.depths(tenant=tenant), await self._oldest(tenant)
        finished, exact = await self._finished(since, tenant, at)
        dead_letters, workers = (await self._db.fetch(self._sql["other_counts"], now, tenant, LETTERS))[0]
        return Stats(
            live=by_state(depths),
            finished=finished,
            since=at - since,
            oldest_ready_at=min(oldest.values(), default=None),
            dead_letters=dead_letters,
            workers=workers,
            estimated=not exact or dead_letters == LETTERS or any(depth.estimated for depth in depths),
            queues=await self._queues(depths, oldest, tenant),
        )

    async def _queues(self, depths: list[Depth], oldest: dict[str, datetime], tenant: str | None) -> list[QueueRecord]:
        paused = {row[0] for row in await self._db.fetch(self._sql["paused_queues"])}
        return by_queue(depths, oldest, paused, empty=tenant is None)

    async def signs(self, stuck_after: timedelta, *, now: datetime | None = None) -> Signs:
        dead_letters, _ = (await self._db.fetch(self._sql["other_counts"], now, None, LETTERS))[0]
        stuck = (await self._db.fetch(self._sql["count_stuck"], stuck_after, now))[0][0]
        return Signs(due_since=await self._oldest(None), dead_letters=dead_letters, stuck=stuck)

    async def _oldest(self, tenant: str | None) -> dict[str, datetime]:
        """Since when the first jobs of each queue have been due."""
        return dict(await self._db.fetch(self._sql["line_heads"], tenant))

    async def _finished(self, since: timedelta, tenant: str | None, now: datetime) -> tuple[dict[str, int], bool]:
        """By state, those that ended lately, and whether that is exact.

        Of many, it is what workers have counted; of a tenant, those among its newest jobs.
        """
        limit = EXACT + 1 if tenant is None else LOOKED_UP
        rows = await self._db.fetch(self._sql["count_finished"], now - since, tenant, limit)
        seen = {state: count for state, count in rows if state is not None}
        exact = sum(count for _, count in rows) < limit
        if exact or tenant is not None:
            return seen, exact
        return of_many(seen, await self._ended(since, now)), False

    async def workers(self) -> list[WorkerRecord]:
        return [_worker(**decoded(row)) for row in await self._db.fetch(self._sql["workers"])]

    async def schedules(self) -> list[ScheduleRecord]:
        return [ScheduleRecord(**decoded(row)) for row in await self._db.fetch(self._sql["schedules"])]

    async def pauses(self) -> list[Pause]:
        rows = await self._db.fetch(self._sql["pauses"])
        return [Pause(PauseScope(r[0]), r[1], r[2], r[3], r[4]) for r in rows]

    async def clock(self, *, now: datetime | None = None) -> datetime:
        return now or await self._clock()

    async def check_places(self) -> list[str]:
        return [row[0] for row in await self._db.fetch(self._sql["misplaced"])]

    async def health(self) -> dict[str, Any]:
        rows = await self._db.fetch(self._sql["health"], self._schema)
        return {**dict(rows[0]), "store": "postgres", "pooled": self._db.pooled}


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _worker(
    host: str, pid: int, process_started: str | None, locks: str | None, alive: bool, **fields: Any
) -> WorkerRecord:
    process = liveness.process_of(host, pid, process_started)
    return WorkerRecord(
        **fields,
        host=host,
        pid=pid,
        alive=alive and process is not Process.ENDED,
        process=process,
        locks=None if locks is None else LockMode(locks),
    )
