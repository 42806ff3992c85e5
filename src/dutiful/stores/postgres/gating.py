"""Moves jobs through the gates before which they are blocked: pauses, other jobs, and breakers that need probes."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core import barred
from dutiful.core import breaker as rules
from dutiful.core.barred import Waiter
from dutiful.core.breaker import Breaker
from dutiful.core.serving import Place, Serving, Standing, Turns, by_turns, serving
from dutiful.duties import Promotion
from dutiful.stores.postgres.breaking import PostgresBreaking, read
from dutiful.stores.postgres.connection import Connections
from dutiful.stores.postgres.part import decoded


class _Gated(msgspec.Struct, frozen=True):
    """A half-open breaker as it was seen."""

    breaker: Breaker
    version: int


class _Probes(msgspec.Struct):
    """How many run, how many are in line and it is their turn, and those in line that nobody would take."""

    running: int = 0
    lined_up: int = 0
    stranded: list[UUID] = msgspec.field(default_factory=list)


class PostgresGating(PostgresBreaking):
    def __init__(self, db: Connections, schema: str) -> None:
        super().__init__(db, schema)
        self._turns = Turns()
        self._swept: frozenset[tuple[str, datetime]] = frozenset()

    async def sweep(self, limit: int, *, now: datetime | None = None) -> Promotion:
        moved = await self._shut(limit, now)
        placed, lines = await self._open(limit, now)
        lines += await self._db.fetch(self._sql["sweep_needs"], limit, now)
        return _promotion(lines, moved + placed)

    async def let_out(self, limit: int, *, now: datetime | None = None) -> Promotion:
        placed, lines = await self._open(limit, now)
        return _promotion(lines, placed)

    async def _shut(self, limit: int, now: datetime | None) -> int:
        """Take out of lines what is not claimed any more; once a pause, because nothing of its kind enters one."""
        rows = await self._db.fetch(self._sql["stopped_kinds"], now)
        stopped = {(row["name"], row["since"]): row["settled"] for row in rows}
        news = sorted({kind for kind, since in stopped.keys() - self._swept})
        moved: int = (await self._db.fetch(self._sql["shut"], news, limit, now))[0][0] if news else 0
        settled = frozenset(pause for pause, settled in stopped.items() if settled)
        self._swept = settled & self._swept if moved >= limit else settled
        return moved

    async def _open(self, limit: int, now: datetime | None) -> tuple[int, list[Any]]:
        """Let out what may go, in a few looks; how many got a place in line, and the lines that got jobs."""
        placed: int = (await self._db.fetch(self._sql["place_due"], limit, now))[0][0]
        opened = await self._db.fetch(self._sql["reopen"], limit, now)
        return placed, [*opened, *await self._probe(limit, now), *await self._free_barred(limit, now)]

    async def _probe(self, limit: int, now: datetime | None) -> list[Any]:
        """Half-open what has been open long enough, and let jobs out to probe; the lines that got some.

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
            name: min(rules.room(one.breaker, probes[name].running, probes[name].lined_up), limit)
            for name, one in gated.items()
        }
        jobs = await self._candidates({name: most for name, most in room.items() if most > 0}, served)
        stranded = [(job_id, name) for name, its in probes.items() for job_id in its.stranded]
        moving = sorted({name for _, name in (*jobs, *stranded)})
        if not moving:
            return []
        return await self._db.fetch(
            self._sql["let_out"], moving, [gated[name].version for name in moving],
            *_columns(jobs), *_columns(stranded), at,
        )  # fmt: skip

    async def _half_open(self, seen: Sequence[_Gated], at: datetime) -> dict[str, _Gated]:
        """All that are half-open then; what somebody else has written meanwhile is for the next sweep."""
        gated = {one.breaker.name: one for one in seen}
        due = [one for one in seen if rules.due(one.breaker, at)]
        if due:
            turned = {one.breaker.name: rules.half_opened(one.breaker, at) for one in due}
            after = turned.values()
            rows = await self._db.fetch(
                self._sql["turn_breakers"], list(turned), [one.version for one in due],
                [one.state.value for one in after], [one.successes for one in after], [one.round for one in after],
                [one.half_opened_at for one in after], at,
            )  # fmt: skip
            written = {row["name"] for row in rows}
            for one in due:
                name, version = one.breaker.name, gated.pop(one.breaker.name).version
                if name in written:
                    gated[name] = _Gated(turned[name], version + 1)
        return gated

    async def _free_barred(self, limit: int, now: datetime | None) -> list[Any]:
        """Let those go on that breakers have refused inside their handlers, if they may; the lines that got some."""
        rooms: dict[str, int | None] = {}
        at = now
        for row in await self._db.fetch(self._sql["awaited_breakers"], now):
            breaker, at = None if row["name"] is None else read(row), row["now_at"]
            if (room := barred.room(breaker, row["probing"], at)) != 0:
                rooms[row["awaited"]] = room
        if not rooms or at is None:
            return []
        looks = [limit if room is None else min(barred.LOOKED_AT, limit) for room in rooms.values()]
        waiting: dict[str, list[Waiter[UUID]]] = {name: [] for name in rooms}
        for name, *who in await self._db.fetch(self._sql["barred_jobs"], list(rooms), looks):
            waiting[name].append(Waiter(*who))
        served = None if all(room is None for room in rooms.values()) else await self._serving(at)
        jobs: list[UUID] = []
        for name, room in rooms.items():
            if room is None or served is None:
                jobs += [one.job_id for one in waiting[name]]
            else:
                jobs += barred.chosen(waiting[name], room, served)
        return list(await self._db.fetch(self._sql["free_barred"], jobs[:limit], at))

    async def _serving(self, at: datetime) -> Serving:
        workers = [decoded(row) for row in await self._db.fetch(self._sql["living"], at)]
        pauses = await self._db.fetch(self._sql["pauses"])
        return serving(
            ((worker["lanes"], worker["kinds"]) for worker in workers), {(row["scope"], row["name"]) for row in pauses}
        )

    async def _probes(self, gated: Mapping[str, _Gated], served: Serving, at: datetime) -> dict[str, _Probes]:
        found = {name: _Probes() for name in gated}
        for row in await self._db.fetch(self._sql["probes_of_breakers"], list(gated), at):
            its = found[row["breaker"]]
            if row["kind"] is None:
                its.running += row["runs"]
            elif not served.takes(row["kind"], row["queue"], row["tenant"]):
                its.stranded.append(row["job_id"])
            else:
                its.lined_up += row["since"] + rules.turn(gated[row["breaker"]].breaker.policy) > at
        return found

    async def _candidates(self, room: Mapping[str, int], served: Serving) -> list[tuple[UUID, str]]:
        """Jobs that may probe, of each breaker as many as it has room for, each with its breaker's name."""
        if not room:
            return []
        waiting: dict[str, list[tuple[Standing, Place]]] = {name: [] for name in room}
        for row in await self._db.fetch(self._sql["waiting_lines"], list(room)):
            waiting[row["breaker"]].append((Standing(row["kind"], row["queue"]), (row["priority"], row["seq"])))
        asked = [
            (who, tenant, most, name)
            for name, most in room.items()
            for who, whose in served.first(self._turns.order(waiting[name]), most)
            for tenant in (sorted(whose) if whose is not None else [None])
        ]
        found: dict[str, dict[Standing, list[tuple[Place, UUID]]]] = {name: {} for name in room}
        for who, _, _, name in asked:
            found[name][who] = []
        for row in await self._db.fetch(
            self._sql["may_probe"], [who.kind for who, *_ in asked], [who.queue for who, *_ in asked],
            [tenant for _, tenant, *_ in asked], [most for _, _, most, _ in asked],
        ):  # fmt: skip
            who, _, _, name = asked[row["line"] - 1]
            found[name][who].append(((row["priority"], row["seq"]), row["job_id"]))
        jobs: list[tuple[UUID, str]] = []
        for name, lines in found.items():
            chosen = by_turns([[(who, job_id) for _, job_id in sorted(its)] for who, its in lines.items()], room[name])
            self._turns.had(who for who, _ in chosen)
            jobs += [(job_id, name) for _, job_id in chosen]
        return jobs


def _columns(rows: Sequence[tuple[UUID, str]]) -> tuple[list[UUID], list[str]]:
    return [job_id for job_id, _ in rows], [name for _, name in rows]


def _promotion(lines: list[Any], moved: int = 0) -> Promotion:
    return Promotion(moved + sum(row["moved"] for row in lines), frozenset((r["queue"], r["priority"]) for r in lines))
