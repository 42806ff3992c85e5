"""What workers have counted, in Postgres."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.sketch import Sketch
from dutiful.core.transitions import State
from dutiful.measuring import Depth, Tally, summed
from dutiful.stores.postgres.part import PostgresPart

_STEP = 500  # as many rows are folded in one transaction
_sketch = msgspec.json.Decoder(Sketch)


class PostgresMeasuring(PostgresPart):
    async def tally(self, worker_id: UUID, turn: int, tallies: Sequence[Tally], *, now: datetime | None = None) -> None:
        if tallies:
            counted = msgspec.json.encode(summed(tallies)).decode()
            await self._db.fetch(self._sql["add_tallies"], worker_id, turn, counted, now)

    async def fold_tallies(self, keep: timedelta, *, now: datetime | None = None) -> bool:
        return bool((await self._db.fetch(self._sql["fold_tallies"], _STEP, keep, now))[0][0])

    async def tallied(self, since: timedelta, *, now: datetime | None = None) -> list[Tally]:
        return _summed(await self._db.fetch(self._sql["tallied"], since, now))

    async def totals(self) -> list[Tally]:
        return _summed(await self._db.fetch(self._sql["totals"]))

    async def depths(self, *, tenant: str | None = None) -> list[Depth]:
        rows = await self._db.fetch(self._sql["depths"], tenant)
        return [Depth(**dict(row) | {"state": State(row["state"])}) for row in rows]


def _summed(rows: Iterable[Any]) -> list[Tally]:
    return summed(
        Tally(**dict(row) | {"run": _sketch.decode(row["run"]), "wait": _sketch.decode(row["wait"])}) for row in rows
    )
