"""Queries by operators and clients in Postgres."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, assert_never
from uuid import UUID

from dutiful.core.job import AttemptRecord, JobRecord
from dutiful.core.states import State
from dutiful.store.metrics import LETTERS, Depth
from dutiful.store.queries import JobFilter, JobPage, QueueRecord, Stats, TenantCount
from dutiful.stores import liveness
from dutiful.stores.counting import ENDED, EXACT, LOOKED_UP, by_queue, by_state, of_many
from dutiful.stores.listing import Fetch, FilterIds, KindQueues, Lookup, Walk, listing, needle
from dutiful.stores.postgres.engine.subject import Session, Subject, as_struct, record, text
from dutiful.stores.postgres.locks import PostgresLocks
from dutiful.stores.postgres.metrics import PostgresMetrics
from dutiful.stores.postgres.tenants import PostgresTenants


class PostgresQueries(Subject):
    def __init__(
        self, session: Session, metrics: PostgresMetrics, tenants: PostgresTenants, locks: PostgresLocks
    ) -> None:
        super().__init__(session)
        self._metrics = metrics
        self._tenants = tenants
        self._locks = locks

    async def job(self, job_id: UUID) -> JobRecord | None:
        return next(iter(await self.records([job_id])), None)

    async def records(self, job_ids: Sequence[UUID], *, details: bool = True) -> list[JobRecord]:
        rows = await self._rows("job_records", "{record}" if details else "{summary}", list(job_ids))
        return [record(row) for row in rows]

    async def outcomes(self, job_ids: Sequence[UUID]) -> list[JobRecord]:
        return [record(row) for row in await self._db.fetch(self._sql["outcomes"], job_ids)]

    async def jobs(self, filter: JobFilter) -> JobPage:
        looking, answer = listing(filter), None
        while True:
            try:
                lookup = looking.send(answer)
            except StopIteration as found:
                page: JobPage = found.value
                return page
            answer = await self._answer(lookup)

    async def _answer(self, lookup: Lookup) -> Any:
        fetch, sql = self._db.fetch, self._sql
        match lookup:
            case KindQueues(kinds, queue):
                return await self._rows("kind_queue_pairs", "kind, queue", kinds, queue)
            case Walk(branches, low, high, each):
                columns = zip(*((branch.index.value, branch.name, branch.queue) for branch in branches), strict=True)
                return [row["ids"] for row in await fetch(sql["walk_ids"], *columns, low, high, each)]
            case FilterIds(ids, wanted):
                rows = await fetch(sql["filter_ids"], ids, wanted.state, wanted.kinds, wanted.queue, wanted.tenant,
                                   None if wanted.subject is None else text(wanted.subject), wanted.error_class,
                                   None if wanted.text is None else needle(wanted.text), wanted.phase)  # fmt: skip
                return [row[0] for row in rows]
            case Fetch(ids, details):
                return await self.records(ids, details=details)
            case _:
                assert_never(lookup)

    async def attempts(self, job_id: UUID) -> list[AttemptRecord]:
        return [as_struct(AttemptRecord, row) for row in await self._rows("attempts", "{attempts}", job_id)]

    async def dependencies(self, job_id: UUID) -> list[JobRecord]:
        return [record(row) for row in await self._db.fetch(self._sql["dependencies"], job_id)]

    async def queues(self, *, tenant: str | None = None, named: Collection[str] = ()) -> list[QueueRecord]:
        depths = await self._metrics.depths(tenant=tenant, named=named)
        return await self._queues(depths, await self._metrics.oldest(tenant, named), tenant, named)

    async def stats(
        self,
        since: timedelta,
        *,
        tenant: str | None = None,
        named: Collection[str] = (),
        now: datetime | None = None,
    ) -> Stats:
        at = now or await self._clock()
        depths = await self._metrics.depths(tenant=tenant, named=named)
        oldest = await self._metrics.oldest(tenant, named)
        finished, exact = await self._finished(since, tenant, at)
        dead_letters = (await self._db.fetch(self._sql["open_dead_letters"], tenant, LETTERS))[0][0]
        processes = await self._db.fetch(self._sql["processes_with_heartbeat"], now)
        return Stats(
            live=by_state(depths),
            finished=finished,
            since=at - since,
            oldest_ready_at=min(oldest.values(), default=None),
            dead_letters=dead_letters,
            workers=sum(not liveness.dead(*process) for process in processes),
            estimated=not exact or dead_letters == LETTERS or any(depth.estimated for depth in depths),
            queues=await self._queues(depths, oldest, tenant, named),
        )

    async def _queues(
        self, depths: list[Depth], oldest: dict[str, datetime], tenant: str | None, named: Collection[str]
    ) -> list[QueueRecord]:
        paused = {row[0] for row in await self._db.fetch(self._sql["paused_queues"])}
        return by_queue(depths, oldest, paused, empty=tenant is None, named=named)

    async def _finished(self, since: timedelta, tenant: str | None, now: datetime) -> tuple[dict[str, int], bool]:
        """The number of recently finished jobs by state, and whether that is exact.

        If there are many, it is what workers have counted; for a tenant, those among its newest jobs are counted.
        """
        limit = EXACT + 1 if tenant is None else LOOKED_UP
        rows = await self._rows("count_finished", "state, jobs", now - since, tenant, limit)
        seen = {state: count for state, count in rows if state is not None}
        exact = sum(count for _, count in rows) < limit
        if exact or tenant is not None:
            return seen, exact
        return of_many(seen, await self._metrics.ended(since, now)), False

    async def ended_by_tenant(self, since: timedelta, *, now: datetime | None = None) -> list[TenantCount]:
        rows = await self._db.fetch(self._sql["ended_by_tenant"], (now or await self._clock()) - since, ENDED)
        return [TenantCount(tenant, State(state), jobs) for tenant, state, jobs in rows]

    async def clock(self, *, now: datetime | None = None) -> datetime:
        return now or await self._clock()

    async def check_places(self) -> list[str]:
        return [row[0] for row in await self._rows("misplaced_jobs", "misplaced_jobs", 1000)]

    async def health(self) -> dict[str, Any]:
        rows = await self._db.fetch(self._sql["health"], self._schema)
        health = {**dict(rows[0]), "store": "postgres", "pooled": self._db.pooled, **await self._tenants.health()}
        health["problems"] += await self._locks.intruders()
        return {**health, "worries": await self._unhinted()}

    async def _unhinted(self) -> list[str]:
        """Empty while hints are sent."""
        (queue,) = await self._db.fetch(self._sql["notification_queue"])
        if queue["hinted"]:
            return []
        oldest = "" if queue["pid"] is None else f", here process {queue['pid']} of role {queue['role']}"
        return [
            f"the server's queue of notifications is {queue['share']:.0%} full, so workers find jobs when they poll: "
            "end the session that listens in an open transaction, by `select pg_terminate_backend(pid)`; it is often "
            f"the one with the oldest in pg_stat_activity{oldest}"
        ]
