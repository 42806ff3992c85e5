"""Fair shares in Postgres: looks along the tenants' queue levels, and claims of so many jobs of each."""

from datetime import datetime

from dutiful.core.job import Claim
from dutiful.declare.lane import ANY
from dutiful.store.shares import WINDOW, Look, LookRequest, ShareRecord, ShareRequest, TenantLevel, records
from dutiful.stores.postgres.engine.subject import Subject, arrays, text


class PostgresShares(Subject):
    async def look(self, ask: LookRequest) -> Look:
        queues = None if ANY in ask.queues else list(ask.queues)
        after = (None, None, None) if ask.after is None else ask.after
        starts = [ask.start(level) for level in ask.levels]
        levels = *arrays(ask.levels, "queue", "priority"), [seq for seq, _ in starts], [job_id for _, job_id in starts]
        rows = await self._rows(
            "look_at_tenants", "tenant, queue, priority, seq, weight, job_id",
            ask.lane, queues, ask.kinds, ask.tenants or None, *after, ask.steps, ask.each, text(ask.within), *levels,
            WINDOW,
        )  # fmt: skip
        seen = [TenantLevel(*row) for row in rows if row["queue"] is not None]
        last = seen[ask.steps - 1] if len(seen) >= ask.steps else None
        place = None if last is None or last.tenant is None else (last.tenant, last.queue, last.priority)
        walk = {(one.queue, one.priority): (one.seq, one.job_id) for one in seen if one.seq and not one.weight}
        return Look([one for one in seen if one.weight], place, len(seen) < len(rows), walk)

    async def claim(self, ask: ShareRequest, *, now: datetime | None = None) -> list[Claim]:
        takes = arrays(ask.takes, "tenant", "queue", "priority", "seq", "count", "job_id")
        rows = await self._rows(
            "claim_shares", "{claim_columns}",
            ask.worker_id, ask.lane, *takes, ask.kinds, ask.lease, WINDOW, now,
            repeat=False,  # on failure the lane releases what the call may have claimed
        )  # fmt: skip
        order = {(take.tenant, take.queue, take.priority): n for n, take in enumerate(ask.takes)}
        claims = [Claim(*row) for row in rows]
        return sorted(claims, key=lambda one: (order[one.tenant, one.queue, one.priority], one.seq, one.job_id))

    async def all(self) -> list[ShareRecord]:
        weights = {row["tenant"]: row["weight"] for row in await self._db.fetch(self._sql["share_weights"])}
        running = {row["tenant"]: row["running"] for row in await self._db.fetch(self._sql["running_by_tenant"])}
        return records(weights, running)

    async def put(self, tenant: str, weight: int | None) -> None:
        if weight is None:
            await self._db.fetch(self._sql["delete_share"], tenant)
        else:
            await self._db.fetch(self._sql["put_share"], tenant, weight)
