"""Limits in Postgres: which blocked jobs may become ready."""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from dutiful.core.limits import KindLimit, Limit
from dutiful.store.limits import Admission, LimitRecord, firsts, records
from dutiful.stores.postgres.engine.subject import Subject, arrays

OPEN_AT_MOST = 10.0  # seconds to wait for transactions that may make jobs of a newly limited kind ready
LOOK_AGAIN = 0.02


class PostgresLimits(Subject):
    async def put(self, kinds: Mapping[str, Sequence[KindLimit]], *, now: datetime | None = None) -> None:
        of_kinds = [(kind, one.limit.name, one.field) for kind, its in kinds.items() for one in its]
        limits = list({one.limit.name: one.limit for its in kinds.values() for one in its}.values())
        columns = [list(column) for column in zip(*of_kinds, strict=True)] or [[], [], []]
        rules = arrays(limits, "name", "most", "per", "burst", "fixed", "feedback")
        limited, stored = sorted({kind for kind, _, _ in of_kinds}), False
        while not stored:
            if await self._call("announce_limits", limited, now):
                await self._let_open_ones_end()
            stored = await self._call("put_limits", list(kinds), *columns, *rules, now)

    async def _let_open_ones_end(self) -> None:
        """Waits for transactions that may not know of a kind's first limit, because what they make ready has no slot.

        A user's own may be open for hours: what such a one makes ready is blocked later, as that of a paused kind is.
        """
        end = time.monotonic() + OPEN_AT_MOST
        unaware = await self._readers()
        while unaware and time.monotonic() < end:
            await asyncio.sleep(LOOK_AGAIN)
            unaware &= await self._readers()

    async def _readers(self) -> set[str]:
        return {row[0] for row in await self._db.fetch(self._sql["readers_of_pauses"])}

    async def admit(
        self,
        limit: int,
        *,
        everywhere: bool = False,
        ended: Collection[UUID] | None = None,
        now: datetime | None = None,
    ) -> Admission:
        jobs = None if ended is None else list(ended)
        rows = await self._rows("admit_limited", "queue, priority, moved, first, wait", everywhere, limit, jobs, now)
        if not rows:
            return Admission()
        *levels, last = rows
        return Admission(
            last["moved"], firsts((row["queue"], row["priority"], row["first"]) for row in levels), last["wait"]
        )

    async def hold(self, waits: Mapping[UUID, timedelta], *, now: datetime | None = None) -> None:
        await self._call("hold_limits", list(waits), list(waits.values()), now)

    async def all(self, *, keys: int | None = 10, now: datetime | None = None) -> list[LimitRecord]:
        rules = [
            LimitRecord(limit=Limit(*row[:6]), chosen=row["chosen"], kinds=list(row["kinds"]))
            for row in await self._db.fetch(self._sql["limit_rules"])
        ]
        if not rules:
            return []
        used = {(row["name"], row["key"]): row["used"] for row in await self._db.fetch(self._sql["limit_slots"], now)}
        waits = {row["gate"]: row["waiting"] for row in await self._db.fetch(self._sql["limit_waits"])}
        holds = {(row["name"], row["key"]): row["until"] for row in await self._db.fetch(self._sql["limit_holds"], now)}
        return records(rules, used, waits, holds, keys)

    async def choose(self, name: str, most: int | None, *, now: datetime | None = None) -> bool:
        return bool(await self._call("choose_limit", name, most, now))
