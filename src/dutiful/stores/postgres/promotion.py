"""Moves jobs through the gates before which they are blocked: pauses, other jobs, and breakers that need probes."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.breaker import state as rules
from dutiful.core.breaker.probes import (
    CANDIDATES,
    KindInQueue,
    QueuePlace,
    RejectedJob,
    Serving,
    Turns,
    choose_rejected,
    room_for_rejected,
    round_robin,
    serving,
)
from dutiful.core.breaker.state import Breaker
from dutiful.store.promotion import Promotion
from dutiful.stores.postgres.breakers import read
from dutiful.stores.postgres.engine.subject import Session, Subject, arrays, decoded

LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)
LATE_COMMIT = timedelta(minutes=1)


class _Gated(msgspec.Struct, frozen=True):
    """A half-open breaker as it was seen."""

    breaker: Breaker
    version: int


class _Probes(msgspec.Struct):
    """How many probes run, how many are ready and still fresh, and those in ready that no live worker serves."""

    running: int = 0
    lined_up: int = 0
    stranded: list[UUID] = msgspec.field(default_factory=list)


class PostgresPromotion(Subject):
    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.run_floor = LONG_AGO  # no scheduled job is due before
        self._turns = Turns()
        self._swept: frozenset[tuple[str, datetime]] = frozenset()

    async def sweep(self, limit: int, *, now: datetime | None = None) -> Promotion:
        moved = await self._block_stopped(limit, now)
        placed, levels = await self._unblock(limit, now)
        levels += await self._db.fetch(self._sql["unblock_dependents"], limit, now)
        return _promotion(levels, moved + placed)

    async def admit_probes(self, limit: int, *, now: datetime | None = None) -> Promotion:
        placed, levels = await self._unblock(limit, now)
        return _promotion(levels, placed)

    async def _block_stopped(self, limit: int, now: datetime | None) -> int:
        """Block ready jobs that are not claimed any more; once per pause, because nothing of its kind becomes ready."""
        rows = await self._db.fetch(self._sql["stopped_kinds"], now)
        stopped = {(row["name"], row["since"]): row["settled"] for row in rows}
        news = sorted({kind for kind, since in stopped.keys() - self._swept})
        moved: int = await self._call("block_paused", news, limit, now) if news else 0
        settled = frozenset(pause for pause, settled in stopped.items() if settled)
        self._swept = settled & self._swept if moved >= limit else settled
        return moved

    async def _unblock(self, limit: int, now: datetime | None) -> tuple[int, list[Any]]:
        """Unblock what may run, in a few statements; returns how many got a seq, and the queue levels that got jobs."""
        placed: int = await self._call("assign_due_seqs", limit, now)
        opened = await self._db.fetch(self._sql["unblock_resumed"], limit, now)
        return placed, [*opened, *await self._probe(limit, now), *await self._free_rejected(limit, now)]

    async def _probe(self, limit: int, now: datetime | None) -> list[Any]:
        """Half-open breakers whose time is over, and admit jobs as probes; returns the queue levels that got some.

        All breakers at once: an outage of many must not take long in the leader's turn.
        """
        rows = await self._db.fetch(self._sql["gated_breakers"], now)
        if not rows:
            return []
        at = rows[0]["now_at"]
        gated = await self._half_open([_Gated(read(row), row["version"]) for row in rows], at)
        served = await self._serving(at)
        probes = await self._probes(gated, served, at)
        room = {
            name: min(rules.probe_room(one.breaker, probes[name].running, probes[name].lined_up), limit)
            for name, one in gated.items()
        }
        jobs = await self._candidates({name: most for name, most in room.items() if most > 0}, served)
        stranded = [(job_id, name) for name, its in probes.items() for job_id in its.stranded]
        moving = sorted({name for _, name in (*jobs, *stranded)})
        if not moving:
            return []
        return await self._db.fetch(
            self._sql["admit_probes"], moving, [gated[name].version for name in moving],
            *_columns(jobs), *_columns(stranded), at,
        )  # fmt: skip

    async def _half_open(self, seen: Sequence[_Gated], at: datetime) -> dict[str, _Gated]:
        """All that are half-open then; one that another process has written meanwhile is left to the next sweep."""
        gated = {one.breaker.name: one for one in seen}
        due = [one for one in seen if rules.due(one.breaker, at)]
        if due:
            turned = {one.breaker.name: rules.half_opened(one.breaker, at) for one in due}
            after = list(turned.values())
            rows = await self._db.fetch(
                self._sql["half_open_breakers"], list(turned), [one.version for one in due],
                *arrays(after, "state", "successes", "round", "half_opened_at"), at,
            )  # fmt: skip
            written = {row["name"] for row in rows}
            for one in due:
                name, version = one.breaker.name, gated.pop(one.breaker.name).version
                if name in written:
                    gated[name] = _Gated(turned[name], version + 1)
        return gated

    async def _free_rejected(self, limit: int, now: datetime | None) -> list[Any]:
        """Unblock jobs that breakers have rejected inside their handlers, if they may run; returns the queue levels."""
        rooms: dict[str, int | None] = {}
        at = now
        for row in await self._db.fetch(self._sql["awaited_breakers"], now):
            breaker, at = None if row["name"] is None else read(row), row["now_at"]
            if (room := room_for_rejected(breaker, row["probing"], at)) != 0:
                rooms[row["awaited"]] = room
        if not rooms or at is None:
            return []
        looks = [limit if room is None else min(CANDIDATES, limit) for room in rooms.values()]
        waiting: dict[str, list[RejectedJob[UUID]]] = {name: [] for name in rooms}
        for name, *who in await self._db.fetch(self._sql["rejected_jobs"], list(rooms), looks):
            waiting[name].append(RejectedJob(*who))
        served = None if all(room is None for room in rooms.values()) else await self._serving(at)
        jobs: list[UUID] = []
        for name, room in rooms.items():
            if room is None or served is None:
                jobs += [one.job_id for one in waiting[name]]
            else:
                jobs += choose_rejected(waiting[name], room, served)
        return list(await self._db.fetch(self._sql["unblock_rejected"], jobs[:limit], at))

    async def _serving(self, at: datetime) -> Serving:
        workers = [decoded(row) for row in await self._db.fetch(self._sql["live_workers"], at)]
        pauses = await self._db.fetch(self._sql["pauses"])
        return serving(
            ((worker["lanes"], worker["kinds"]) for worker in workers), {(row["scope"], row["name"]) for row in pauses}
        )

    async def _probes(self, gated: Mapping[str, _Gated], served: Serving, at: datetime) -> dict[str, _Probes]:
        found = {name: _Probes() for name in gated}
        for row in await self._db.fetch(self._sql["breaker_probes"], list(gated), at):
            its = found[row["breaker"]]
            if row["kind"] is None:
                its.running += row["runs"]
            elif not served.takes(row["kind"], row["queue"], row["tenant"]):
                its.stranded.append(row["job_id"])
            else:
                its.lined_up += row["since"] + rules.probe_turn(gated[row["breaker"]].breaker.policy) > at
        return found

    async def _candidates(self, room: Mapping[str, int], served: Serving) -> list[tuple[UUID, str]]:
        """Jobs that may probe, of each breaker as many as it has room for, each with its breaker's name."""
        if not room:
            return []
        waiting: dict[str, list[tuple[KindInQueue, QueuePlace]]] = {name: [] for name in room}
        for row in await self._db.fetch(self._sql["waiting_levels"], list(room)):
            waiting[row["breaker"]].append((KindInQueue(row["kind"], row["queue"]), (row["priority"], row["seq"])))
        asked = [
            (who, tenant, most, name)
            for name, most in room.items()
            for who, tenants in served.first_taken(self._turns.order(waiting[name]), most)
            for tenant in (sorted(tenants) if tenants is not None else [None])
        ]
        found: dict[str, dict[KindInQueue, list[tuple[QueuePlace, UUID]]]] = {name: {} for name in room}
        for who, _, _, name in asked:
            found[name][who] = []
        for row in await self._db.fetch(
            self._sql["probe_candidates"], [who.kind for who, *_ in asked], [who.queue for who, *_ in asked],
            [tenant for _, tenant, *_ in asked], [most for _, _, most, _ in asked],
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

    async def promote(self, limit: int, *, now: datetime | None = None) -> Promotion:
        rows = await self._db.fetch(self._sql["promote"], limit, self.run_floor, now)
        levels, last = rows[:-1], rows[-1]
        moved = sum(r[2] for r in levels)
        # A full batch means a busy table: do not scan its dead entries again. Anything less: search from the start.
        self.run_floor = max(r[3] for r in levels) - LATE_COMMIT if moved >= limit else LONG_AGO
        return Promotion(moved, frozenset((r[0], r[1]) for r in levels if r[4]), last[3])


def _columns(rows: Sequence[tuple[UUID, str]]) -> tuple[list[UUID], list[str]]:
    return [job_id for job_id, _ in rows], [name for _, name in rows]


def _promotion(levels: list[Any], moved: int = 0) -> Promotion:
    return Promotion(
        moved + sum(row["moved"] for row in levels), frozenset((r["queue"], r["priority"]) for r in levels)
    )
