"""Moves jobs through the gates before which they are blocked: pauses, other jobs, and breakers that need probes."""

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core import breaker as rules
from dutiful.core.breaker import Breaker
from dutiful.core.serving import Serving, Standing, Turns, by_turns, serving
from dutiful.duties import Promotion
from dutiful.stores.postgres.breaking import PostgresBreaking, Seen, Step, read
from dutiful.stores.postgres.connection import Connections
from dutiful.stores.postgres.part import decoded


class _Probes(msgspec.Struct, frozen=True):
    """How many run, how many are in line and it is their turn, and those in line that nobody would take."""

    running: int = 0
    lined_up: int = 0
    stranded: list[UUID] = []


class PostgresGating(PostgresBreaking):
    def __init__(self, db: Connections, schema: str) -> None:
        super().__init__(db, schema)
        self._turns = Turns()
        self._swept: frozenset[tuple[str, datetime]] = frozenset()

    async def sweep(self, limit: int, *, now: datetime | None = None) -> Promotion:
        moved = await self._shut(limit, now)
        lines = [*await self._db.fetch(self._sql["sweep"], limit, now), *await self._probe(limit, now)]
        return _promotion(lines, moved)

    async def let_out(self, limit: int, *, now: datetime | None = None) -> Promotion:
        return _promotion(await self._probe(limit, now))

    async def _shut(self, limit: int, now: datetime | None) -> int:
        """Take out of lines what is not claimed any more; once a pause, because nothing of its kind enters one."""
        rows = await self._db.fetch(self._sql["stopped_kinds"], now)
        stopped = {(row["name"], row["since"]): row["settled"] for row in rows}
        news = sorted({kind for kind, since in stopped.keys() - self._swept})
        moved: int = (await self._db.fetch(self._sql["shut"], news, limit, now))[0][0] if news else 0
        settled = frozenset(pause for pause, settled in stopped.items() if settled)
        self._swept = settled & self._swept if moved >= limit else settled
        return moved

    async def _probe(self, limit: int, now: datetime | None) -> list[Any]:
        """Half-open what has been open long enough, and let jobs out to probe; the lines that got some."""
        lines: list[Any] = []
        served: Serving | None = None
        for row in await self._db.fetch(self._sql["gated_breakers"], now):
            breaker, version, at = read(row), row["version"], row["now_at"]
            served = served or await self._serving(at)
            if rules.due(breaker, at):
                step = Step(rules.half_opened(breaker, at))
                if not await self._write_breaker(Seen(breaker, version, at, 0, False, False), step, None):
                    continue  # somebody else has done it, or it is open anew: the next sweep sees
                breaker, version, probes = step.after, version + 1, _Probes()
            else:
                probes = await self._probes(breaker, served, at)
            room = min(rules.room(breaker, probes.running, probes.lined_up), limit)
            jobs = await self._candidates(breaker.name, room, served, at)
            if jobs or probes.stranded:
                ids = [job_id for _, job_id in jobs]
                lines += await self._db.fetch(self._sql["let_out"], breaker.name, version, ids, probes.stranded, at)
        return lines

    async def _serving(self, at: datetime) -> Serving:
        workers = [decoded(row) for row in await self._db.fetch(self._sql["living"], at)]
        pauses = await self._db.fetch(self._sql["pauses"])
        return serving(
            ((worker["lanes"], worker["kinds"]) for worker in workers), {(row["scope"], row["name"]) for row in pauses}
        )

    async def _probes(self, breaker: Breaker, served: Serving, at: datetime) -> _Probes:
        running, lined_up, stranded = 0, 0, []
        for row in await self._db.fetch(self._sql["probes_of_breaker"], breaker.name, at):
            if row["kind"] is None:
                running += row["runs"]
            elif not served.takes(row["kind"], row["queue"], row["tenant"]):
                stranded.append(row["job_id"])
            else:
                lined_up += row["since"] + rules.turn(breaker.policy) > at
        return _Probes(running, lined_up, stranded)

    async def _candidates(self, name: str, limit: int, served: Serving, at: datetime) -> list[tuple[Standing, UUID]]:
        if limit <= 0:
            return []
        rows = await self._db.fetch(self._sql["waiting_lines"], name, at)
        lines: list[list[tuple[Standing, UUID]]] = []
        for who in self._turns.order((Standing(row["kind"], row["queue"]), row["since"]) for row in rows):
            whose = served.whose(*who)
            if whose is not None and not whose:
                continue
            tenants = None if whose is None else sorted(whose)
            if found := await self._db.fetch(self._sql["may_probe"], *who, tenants, limit, at):
                lines.append([(who, row["job_id"]) for row in found])
            if len(lines) == limit:
                break
        jobs = by_turns(lines, limit)
        self._turns.had(who for who, _ in jobs)
        return jobs


def _promotion(lines: list[Any], moved: int = 0) -> Promotion:
    return Promotion(moved + sum(row["moved"] for row in lines), frozenset((r["queue"], r["priority"]) for r in lines))
