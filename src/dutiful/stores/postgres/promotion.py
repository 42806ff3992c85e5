"""Promotion in Postgres: blocks and unblocks jobs by their gates, which are pauses, dependencies and breakers."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from dutiful.store.promotion import Promotion
from dutiful.stores.postgres.breakers_probes import BreakerProbes
from dutiful.stores.postgres.dependents import RELEASED, releases
from dutiful.stores.postgres.engine.subject import Session, Subject

LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)
LATE_COMMIT = timedelta(minutes=1)
FLOOR_FOR = 10.0  # seconds


class PostgresPromotion(Subject):
    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._run_floor = LONG_AGO
        self._run_floor_until = 0.0
        self._probes = BreakerProbes(session)
        # Pauses that are a minute old, each with the transaction before which all must end; None: they have.
        self._swept: dict[tuple[str, datetime], int | None] = {}

    @property
    def run_floor(self) -> datetime:
        """No scheduled job is due before. Not believed for long, because others promote as well, and may fail."""
        return self._run_floor if time.monotonic() < self._run_floor_until else LONG_AGO

    async def sweep(self, limit: int, *, now: datetime | None = None) -> Promotion:
        moved = await self._block_stopped(limit, now)
        placed, levels = await self._unblock(limit, now)
        dependents = releases(await self._rows("unblock_dependents", RELEASED, limit, now))
        found = _promotion(levels, moved + placed + dependents.moved)
        return msgspec.structs.replace(found, levels=found.levels | dependents.levels, next=dependents.next)

    async def unblock(self, limit: int, *, now: datetime | None = None) -> Promotion:
        placed, levels = await self._unblock(limit, now)
        return _promotion(levels, placed)

    async def _block_stopped(self, limit: int, now: datetime | None) -> int:
        """Blocks ready jobs of paused kinds, until no transaction is left that did not see the pause.

        All of ready is read: at each sweep of a pause's first minute, then once, and once more when the transactions
        of that moment have ended, because a user's own may have enqueued before the pause and commit an hour after.
        """
        rows = await self._db.fetch(self._sql["stopped_kinds"], now)
        pauses = {(row["name"], row["since"]): row["is_new"] for row in rows}
        swept = {pause: until for pause, until in self._swept.items() if pauses.get(pause) is False}
        seen_by_all = [pause for pause, until in swept.items() if until is not None and until <= rows[0]["oldest_open"]]
        news = pauses.keys() - swept.keys()
        look = sorted({name for name, _ in (*news, *seen_by_all)})
        swept |= dict.fromkeys(seen_by_all, None)
        if olds := [pause for pause in news if not pauses[pause]]:
            # An id of our own, because a snapshot does not know the last ones that were given out.
            swept |= dict.fromkeys(olds, (await self._db.fetch(self._sql["transaction_id"]))[0][0])
        moved: int = await self._call("block_paused", look, limit, now) if look else 0
        if moved < limit:
            self._swept = swept
        return moved

    async def _unblock(self, limit: int, now: datetime | None) -> tuple[int, list[Any]]:
        """Unblocks jobs that may run, in a few statements; returns how many got a seq, and the levels that got jobs."""
        placed: int = await self._call("assign_due_seqs", limit, now)
        opened = await self._rows("unblock_resumed", "queue, priority, moved", limit, now)
        probes = await self._probes.admit(limit, now)
        return placed, [*opened, *probes, *await self._probes.unblock_rejected(limit, now)]

    async def next_due(self) -> timedelta | None:
        wait: timedelta | None = (await self._db.fetch(self._sql["next_due"], self.run_floor))[0][0]
        return wait

    async def promote(self, limit: int, *, now: datetime | None = None) -> Promotion:
        rows = await self._rows("promote", "queue, priority, moved, last_run_at, ready", limit, self.run_floor, now)
        levels, last = rows[:-1], rows[-1]
        moved = sum(r[2] for r in levels)
        # A full batch means a busy table: do not scan its dead entries again. Anything less: search from the start.
        self._run_floor = max(r[3] for r in levels) - LATE_COMMIT if moved >= limit else LONG_AGO
        self._run_floor_until = time.monotonic() + FLOOR_FOR
        return Promotion(moved, frozenset((r[0], r[1]) for r in levels if r[4]), last[3])


def _promotion(levels: list[Any], moved: int = 0) -> Promotion:
    return Promotion(
        moved + sum(row["moved"] for row in levels), frozenset((r["queue"], r["priority"]) for r in levels)
    )
