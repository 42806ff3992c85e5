"""Fair shares in SQLite: looks along the tenants' queue levels, and claims of so many jobs of each."""

from collections.abc import Iterator
from datetime import datetime
from itertools import islice

from dutiful.core.job import Claim
from dutiful.declare.lane import ANY
from dutiful.store.control import PauseScope
from dutiful.store.shares import (
    WINDOW,
    Look,
    LookRequest,
    Place,
    Position,
    ShareRecord,
    ShareRequest,
    TenantLevel,
    records,
)
from dutiful.stores.sqlite import claims
from dutiful.stores.sqlite.engine import SQL, Connection, Row, Subject, reads, writes
from dutiful.stores.sqlite.engine.codec import clock, to_json, uuid
from dutiful.stores.sqlite.engine.driver import ReplacedRow, stored


class SqliteShares(Subject):
    @reads
    def look(self, db: Connection, ask: LookRequest) -> Look:
        paused = claims.pauses(db)
        if claims.is_lane_paused(paused, ask.lane):
            return Look([], None, False)
        places = list(islice(_places(db, ask), ask.steps))
        last = places[-1] if len(places) >= ask.steps else None
        levels = [_level(db, place, ask, paused) for place in places]
        walk = dict[tuple[str, int], Position]()
        if not ask.tenants:
            levels += _tenantless(db, ask, paused, walk)
        return Look(levels, last, bool(db.value(SQL["any_suspect"])), walk)

    async def claim(self, ask: ShareRequest, *, now: datetime | None = None) -> list[Claim]:
        return await claims.claimed(self._engine, lambda db: _claim(db, ask, clock(now)))

    @reads
    def all(self, db: Connection) -> list[ShareRecord]:
        return records(dict(db.rows(SQL["share_weights"])), dict(db.rows(SQL["running_by_tenant"])))

    @writes
    def put(self, db: Connection, tenant: str, weight: int | None) -> None:
        if weight is None:
            db.run(SQL["delete_share"], (tenant,))
        else:
            db.run(SQL["put_share"], (tenant, weight))


def _places(db: Connection, ask: LookRequest) -> Iterator[Place]:
    """The queue levels of tenants, by stepping from one to the next; not of a name that is not UTF-8."""
    at, seen = (("", "", 0), ask.each) if ask.after is None else (ask.after, 0)
    while True:
        level = db.row(SQL["next_level_in_tenant"], at) if seen < ask.each else None
        seen += 1
        if level is None:
            seen, level = 1, db.row(SQL["next_tenant"], at[:1])
            if level is None:
                return
            if within := ask.within.get(level[0]):
                level = db.row(SQL["next_level_in_tenant"], (level[0], *within)) or level
        if not isinstance(level, ReplacedRow):
            yield level[0], level[1], level[2]
        at = stored(level)


def _level(db: Connection, place: Place, ask: LookRequest, paused: set[tuple[str, str]]) -> TenantLevel:
    tenant, queue, _ = place
    wanted = (ANY in ask.queues or queue in ask.queues) and (not ask.tenants or tenant in ask.tenants)
    if not wanted or (PauseScope.QUEUE.value, queue) in paused:
        return TenantLevel(*place, None)
    seq = db.value(SQL["first_of_tenant_level"], (*place, to_json(list(ask.kinds))))
    return TenantLevel(*place, seq, db.value(SQL["share_weight"], (tenant,)) or 1)


def _tenantless(
    db: Connection, ask: LookRequest, paused: set[tuple[str, str]], walk: dict[tuple[str, int], Position]
) -> Iterator[TenantLevel]:
    """The levels in which a job without a tenant is found; notes in `walk` where the others are to be searched on."""
    kinds = claims.running_kinds(paused, ask.kinds)  # a paused one would hide those behind it
    for level in ask.levels:
        if (PauseScope.QUEUE.value, level.queue) in paused:
            continue
        (after, job_id), key = ask.start(level), (level.queue, level.priority)
        where = {"queue": level.queue, "priority": level.priority, "seq": after, "job_id": job_id.bytes}
        found = db.row(SQL["first_tenantless"], {**where, "window": WINDOW, "kinds": kinds})
        if found is None:
            continue
        if found[2]:
            yield TenantLevel(None, *key, found[0], job_id=uuid(found[1]))
        else:
            walk[key] = found[0], uuid(found[1])


def _claim(db: Connection, ask: ShareRequest, now: int) -> list[Claim]:
    paused = claims.pauses(db)
    if claims.is_lane_paused(paused, ask.lane):
        return []
    kinds, picked = claims.running_kinds(paused, ask.kinds), list[Row]()
    for take in ask.takes:
        if (PauseScope.QUEUE.value, take.queue) in paused:
            continue
        wanted = {"queue": take.queue, "priority": take.priority, "seq": take.seq - 1, "kinds": kinds, "now": now}
        wanted |= {"limit": take.count}
        if take.tenant is None:
            wanted |= {"seq": take.seq, "job_id": take.job_id.bytes, "window": WINDOW}
            picked += db.rows(SQL["pick_tenantless"], wanted)
        else:
            picked += db.rows(SQL["pick_level_of_tenant"], {**wanted, "tenant": take.tenant})
    return claims.take(db, picked, ask.worker_id, ask.lease, now)
