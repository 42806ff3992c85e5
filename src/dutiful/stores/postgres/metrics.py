"""Metrics in Postgres."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from dutiful.core.metrics.estimate import Share, View
from dutiful.core.metrics.last import LAST, WINDOW, EndedAttempts
from dutiful.core.metrics.sketch import Sketch
from dutiful.core.states import State
from dutiful.store.metrics import (
    FINE,
    LETTERS,
    MOST_LEVELS,
    AttemptStats,
    CountedAttempts,
    Depth,
    Gauges,
    added_up,
    last_by_kind,
    summed,
)
from dutiful.stores.counting import Sort, depths_of
from dutiful.stores.postgres.engine.subject import Subject, text

_STEP = 2_000  # rows rolled up in one transaction; only other roll-ups wait for it
_FEW = 200  # more rows are summed in a thread, because the event loop has other work
CROWD = -1  # the view of queues of which some may have been overlooked
_sketch = msgspec.json.Decoder(Sketch)


class PostgresMetrics(Subject):
    async def add(
        self, worker_id: UUID, turn: int, stats: Sequence[AttemptStats], *, now: datetime | None = None
    ) -> None:
        if stats:
            await self._call("add_counters", worker_id, turn, text(summed(stats)), now)

    async def roll_up(self, keep: timedelta, *, now: datetime | None = None) -> bool:
        return bool(await self._call("roll_up_counters", _STEP, FINE, keep, LAST, WINDOW, now))

    async def recent(self, since: timedelta, *, now: datetime | None = None) -> list[AttemptStats]:
        if since <= FINE:
            return (await self._counted(since, False, now)).lately
        return summed(
            _attempt_stats(*row) for row in await self._db.fetch(self._sql["counted_by_hour"], False, since, now)
        )

    async def counted(self, since: timedelta, *, now: datetime | None = None) -> CountedAttempts:
        return await self._counted(since, True, now)

    async def last(self, *, now: datetime | None = None) -> dict[str, list[EndedAttempts]]:
        return last_by_kind(await self._db.fetch(self._sql["last"], now))

    async def depths(self, *, tenant: str | None = None, named: Collection[str] = ()) -> list[Depth]:
        columns = "state, view, queue, kind, jobs, squares, seen, windows"
        rows = await self._rows("depths", columns, tenant, list(named), MOST_LEVELS)
        return await asyncio.to_thread(_depths, rows) if len(rows) > _FEW else _depths(rows)

    async def _counted(self, since: timedelta, ever: bool, now: datetime | None) -> CountedAttempts:
        rows = await self._db.fetch(self._sql["counted"], since <= FINE, since, now, ever)
        return await asyncio.to_thread(_summed, rows) if len(rows) > _FEW else _summed(rows)

    async def gauges(
        self, stuck_after: timedelta, *, named: Collection[str] = (), now: datetime | None = None
    ) -> Gauges:
        dead_letters = (await self._db.fetch(self._sql["open_dead_letters"], None, LETTERS))[0][0]
        stuck = await self._call("count_stuck", stuck_after, now)
        return Gauges(due_since=await self.oldest(None, named), dead_letters=dead_letters, stuck=stuck)

    async def oldest(self, tenant: str | None, named: Collection[str] = ()) -> dict[str, datetime]:
        """Since when the oldest ready job of each queue has been due."""
        rows = await self._db.fetch(self._sql["queue_level_heads"], tenant, list(named), MOST_LEVELS)
        return {queue: since for queue, since in rows if since is not None}

    async def ended(self, since: timedelta, now: datetime) -> dict[str, int]:
        """The number of attempts that ended, by outcome."""
        return dict(await self._db.fetch(self._sql["count_ended"], since <= FINE, since, now))


def _depths(rows: Iterable[Any]) -> list[Depth]:
    shares: dict[tuple[str, int], dict[Sort, Share]] = {}
    windows: dict[tuple[str, int], int] = {}
    for state, view, queue, kind, jobs, squares, seen, looked in rows:
        shares.setdefault((state, view), {})[queue, kind] = Share(jobs, squares, seen)
        windows[state, view] = looked
    crowded = (State.READY.value, CROWD) in shares
    by_state: dict[str, list[View[Sort]]] = {}
    for (state, view), found in shares.items():
        by_state.setdefault(state, []).append(View(found, windows[state, view]))
    return [
        depth
        for state, views in by_state.items()
        for depth in depths_of(State(state), views, everywhere=state != State.READY.value or crowded)
    ]


def _summed(rows: Iterable[Any]) -> CountedAttempts:
    return added_up((lately, ever, _attempt_stats(*columns)) for lately, ever, *columns in rows)


def _attempt_stats(*columns: Any) -> AttemptStats:
    values = dict(zip(AttemptStats.__struct_fields__, columns, strict=True))
    return AttemptStats(**values | {"run": _sketch_in(values["run"]), "wait": _sketch_in(values["wait"])})


def _sketch_in(text: str) -> Sketch:
    """An empty one, if SQL has written something else."""
    try:
        return _sketch.decode(text)
    except msgspec.ValidationError:
        return {}
