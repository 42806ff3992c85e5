"""What workers have counted, in Postgres."""

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.estimate import Share, View
from dutiful.core.sketch import Sketch
from dutiful.core.transitions import State
from dutiful.measuring import FINE, Counted, Depth, Tally, added_up, summed
from dutiful.stores.counting import Sort, depths_of
from dutiful.stores.postgres.part import PostgresPart

_STEP = 2_000  # as many rows are folded in one transaction: nobody waits for it but others who fold
_FEW = 200  # as many are added up in no time; more, in a thread, for the event loop has others to serve
_sketch = msgspec.json.Decoder(Sketch)


class PostgresMeasuring(PostgresPart):
    async def tally(self, worker_id: UUID, turn: int, tallies: Sequence[Tally], *, now: datetime | None = None) -> None:
        if tallies:
            counted = msgspec.json.encode(summed(tallies)).decode()
            await self._db.fetch(self._sql["add_tallies"], worker_id, turn, counted, now)

    async def fold_tallies(self, keep: timedelta, *, now: datetime | None = None) -> bool:
        return bool((await self._db.fetch(self._sql["fold_tallies"], _STEP, FINE, keep, now))[0][0])

    async def tallied(self, since: timedelta, *, now: datetime | None = None) -> list[Tally]:
        if since <= FINE:
            return (await self._counted(since, False, now)).lately
        return summed(_tally(*row) for row in await self._db.fetch(self._sql["tallied_by_hour"], since, now))

    async def counted(self, since: timedelta, *, now: datetime | None = None) -> Counted:
        return await self._counted(since, True, now)

    async def totals(self) -> list[Tally]:
        return (await self.counted(timedelta(0))).ever

    async def depths(self, *, tenant: str | None = None) -> list[Depth]:
        shares: dict[tuple[str, int], dict[Sort, Share]] = {}
        windows: dict[tuple[str, int], int] = {}
        for state, view, queue, kind, jobs, squares, seen, looked in await self._db.fetch(self._sql["depths"], tenant):
            shares.setdefault((state, view), {})[queue, kind] = Share(jobs, squares, seen)
            windows[state, view] = looked
        by_state: dict[str, list[View[Sort]]] = {}
        for (state, view), found in shares.items():
            by_state.setdefault(state, []).append(View(found, windows[state, view]))
        return [
            depth
            for state, views in by_state.items()
            for depth in depths_of(State(state), views, everywhere=state != State.READY.value)
        ]

    async def _counted(self, since: timedelta, ever: bool, now: datetime | None) -> Counted:
        rows = await self._db.fetch(self._sql["counted"], since <= FINE, since, ever, now)
        return await asyncio.to_thread(_summed, rows) if len(rows) > _FEW else _summed(rows)

    async def _ended(self, since: timedelta, now: datetime) -> dict[str, int]:
        """By outcome, how many attempts."""
        return dict(await self._db.fetch(self._sql["count_ended"], since <= FINE, since, now))


def _summed(rows: Iterable[Any]) -> Counted:
    return added_up((lately, ever, _tally(*columns)) for lately, ever, *columns in rows)


def _tally(
    kind: str, outcome: str, count: int, run: str, wait: str, ran: int, waited: int, payload_bytes: int, most: int
) -> Tally:
    return Tally(
        kind=kind,
        outcome=outcome,
        count=count,
        run=_sketch.decode(run),
        wait=_sketch.decode(wait),
        run_microseconds=ran,
        wait_microseconds=waited,
        payload_bytes=payload_bytes,
        payload_most=most,
    )
