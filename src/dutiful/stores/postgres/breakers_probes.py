"""Probes in Postgres: which jobs test whether the service behind a half-open breaker has recovered."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.breaker import state as rules
from dutiful.core.breaker.probes import (
    CANDIDATES,
    KindInQueue,
    QueuePosition,
    RejectedJob,
    Serving,
    Turns,
    choose_rejected,
    room_for_rejected,
    round_robin,
    serving,
)
from dutiful.core.breaker.state import Breaker
from dutiful.stores.postgres.breakers import read
from dutiful.stores.postgres.engine.subject import Session, Subject, arrays, decoded


class _Gated(msgspec.Struct, frozen=True):
    """A half-open breaker as it was read."""

    breaker: Breaker
    version: int


class _Probes(msgspec.Struct):
    """How many probes run, how many are ready and have their turn, and the ready ones that no live worker serves."""

    running: int = 0
    ready: int = 0
    stranded: list[UUID] = msgspec.field(default_factory=list)


class BreakerProbes(Subject):
    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._turns = Turns()

    async def admit(self, limit: int, now: datetime | None) -> list[Any]:
        """Half-opens breakers whose time is over, and admits jobs as probes; returns the queue levels that got some.

        All breakers at once, so that an outage of many services does not delay the leader's other work.
        """
        rows = await self._rows("gated_breakers", "now_at, {breaker of (kept)}", now)
        if not rows:
            return []
        at = rows[0]["now_at"]
        gated = await self._half_open([_Gated(read(row), row["version"]) for row in rows], at)
        served = await self._serving(at)
        probes = await self._probes(gated, served, at)
        room = {
            name: min(rules.probe_room(one.breaker, probes[name].running, probes[name].ready), limit)
            for name, one in gated.items()
        }
        jobs = await self._candidates({name: most for name, most in room.items() if most > 0}, served)
        stranded = [(job_id, name) for name, its in probes.items() for job_id in its.stranded]
        moving = sorted({name for _, name in (*jobs, *stranded)})
        if not moving:
            return []
        return await self._rows(
            "admit_probes", "queue, priority, moved", moving, [gated[name].version for name in moving],
            *_columns(jobs), *_columns(stranded), at,
        )  # fmt: skip

    async def unblock_rejected(self, limit: int, now: datetime | None) -> list[Any]:
        """Unblocks jobs that breakers have rejected inside handlers, if they may run; returns their queue levels."""
        rooms: dict[str, int | None] = {}
        at = now
        for row in await self._rows("awaited_breakers", "awaited, now_at, probing, {breaker of (kept)}", now):
            breaker, at = None if row["name"] is None else read(row), row["now_at"]
            if (room := room_for_rejected(breaker, row["probing"], at)) != 0:
                rooms[row["awaited"]] = room
        if not rooms or at is None:
            return []
        looks = [limit if room is None else min(CANDIDATES, limit) for room in rooms.values()]
        waiting: dict[str, list[RejectedJob[UUID]]] = {name: [] for name in rooms}
        columns = "breaker, job_id, kind, queue, tenant, priority"
        for name, *who in await self._rows("rejected_jobs", columns, list(rooms), looks):
            waiting[name].append(RejectedJob(*who))
        served = None if all(room is None for room in rooms.values()) else await self._serving(at)
        jobs: list[UUID] = []
        for name, room in rooms.items():
            if room is None or served is None:
                jobs += [one.job_id for one in waiting[name]]
            else:
                jobs += choose_rejected(waiting[name], room, served)
        return await self._rows("unblock_rejected", "queue, priority, moved", jobs[:limit], at)

    async def _half_open(self, seen: Sequence[_Gated], at: datetime) -> dict[str, _Gated]:
        """Half-opens due breakers; returns all half-open ones, without those that another process has just changed."""
        gated = {one.breaker.name: one for one in seen}
        due = [one for one in seen if rules.due(one.breaker, at)]
        if due:
            turned = {one.breaker.name: rules.half_opened(one.breaker, at) for one in due}
            after = list(turned.values())
            rows = await self._rows(
                "half_open_breakers", "half_open_breakers", list(turned), [one.version for one in due],
                *arrays(after, "state", "successes", "round", "half_opened_at"), at,
            )  # fmt: skip
            written = {row[0] for row in rows}
            for one in due:
                name, version = one.breaker.name, gated.pop(one.breaker.name).version
                if name in written:
                    gated[name] = _Gated(turned[name], version + 1)
        return gated

    async def _serving(self, at: datetime) -> Serving:
        workers = [decoded(row) for row in await self._db.fetch(self._sql["live_workers"], at)]
        pauses = await self._db.fetch(self._sql["pauses"])
        return serving(
            ((worker["lanes"], worker["kinds"]) for worker in workers), {(row["scope"], row["name"]) for row in pauses}
        )

    async def _probes(self, gated: Mapping[str, _Gated], served: Serving, at: datetime) -> dict[str, _Probes]:
        found = {name: _Probes() for name in gated}
        columns = "breaker, job_id, since, runs, kind, queue, tenant"
        for row in await self._rows("breaker_probes", columns, list(gated), at):
            its = found[row["breaker"]]
            if row["kind"] is None:
                its.running += row["runs"]
            elif not served.takes(row["kind"], row["queue"], row["tenant"]):
                its.stranded.append(row["job_id"])
            else:
                its.ready += row["since"] + rules.probe_turn(gated[row["breaker"]].breaker.policy) > at
        return found

    async def _candidates(self, room: Mapping[str, int], served: Serving) -> list[tuple[UUID, str]]:
        """Jobs that may probe, each with its breaker's name; for each breaker as many as it admits."""
        if not room:
            return []
        waiting: dict[str, list[tuple[KindInQueue, QueuePosition]]] = {name: [] for name in room}
        for row in await self._rows("waiting_levels", "breaker, kind, queue, priority, seq", list(room)):
            waiting[row["breaker"]].append((KindInQueue(row["kind"], row["queue"]), (row["priority"], row["seq"])))
        asked = [
            (who, tenant, most, name)
            for name, most in room.items()
            for who, tenants in served.first_taken(self._turns.order(waiting[name]), most)
            for tenant in (sorted(tenants) if tenants is not None else [None])
        ]
        found: dict[str, dict[KindInQueue, list[tuple[QueuePosition, UUID]]]] = {name: {} for name in room}
        for who, _, _, name in asked:
            found[name][who] = []
        for row in await self._rows(
            "probe_candidates", "level, priority, seq, job_id", [who.kind for who, *_ in asked],
            [who.queue for who, *_ in asked], [tenant for _, tenant, *_ in asked], [most for _, _, most, _ in asked],
        ):  # fmt: skip
            who, _, _, name = asked[row["level"] - 1]
            found[name][who].append(((row["priority"], row["seq"]), row["job_id"]))
        jobs: list[tuple[UUID, str]] = []
        for name, levels in found.items():
            chosen = round_robin(
                [[(who, job_id) for _, job_id in sorted(its)] for who, its in levels.items()], room[name]
            )
            self._turns.record(who for who, _ in chosen)
            jobs += [(job_id, name) for _, job_id in chosen]
        return jobs


def _columns(rows: Sequence[tuple[UUID, str]]) -> tuple[list[UUID], list[str]]:
    return [job_id for job_id, _ in rows], [name for _, name in rows]
