"""Metrics: what workers have counted is added, rolled up into minutes, hours and totals, and read."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from dutiful.core.metrics.last import LAST, WINDOW, EndedAttempts
from dutiful.store.metrics import (
    ENDS,
    FAILURES,
    FINE,
    AttemptStats,
    CountedAttempts,
    Depth,
    Gauges,
    added_up,
    last_by_kind,
    summed,
)
from dutiful.stores.sqlite import metrics_depths
from dutiful.stores.sqlite.engine import SQL, Connection, Row, Subject, browses
from dutiful.stores.sqlite.engine.codec import clock, moment, span
from dutiful.stores.sqlite.engine.columns import COUNTER

_MINUTE, _HOUR = span(timedelta(minutes=1)), span(timedelta(hours=1))
_TURNS_KEPT = span(timedelta(days=1))
_STEP = 500  # so many rows are rolled up in one write, so that other writes do not wait long


class SqliteMetrics(Subject):
    async def add(
        self, worker_id: UUID, turn: int, stats: Sequence[AttemptStats], *, now: datetime | None = None
    ) -> None:
        if stats:
            await self._engine.write(lambda db: _add(db, worker_id.bytes, turn, stats, clock(now)))

    async def roll_up(self, keep: timedelta, *, now: datetime | None = None) -> bool:
        # An idle store is only read.
        if not await self._engine.read(lambda db: db.value(SQL["any_to_roll_up"], _cutoffs(keep, clock(now)))):
            return False
        return await self._engine.write(lambda db: _roll_up(db, keep, clock(now)))

    @browses
    def recent(self, db: Connection, since: timedelta, *, now: datetime | None = None) -> list[AttemptStats]:
        rows = db.each(SQL["counted"], {**_window(since, clock(now)), "ever": False})
        return summed(COUNTER.decode(columns) for lately, _, *columns in rows if lately)

    @browses
    def counted(self, db: Connection, since: timedelta, *, now: datetime | None = None) -> CountedAttempts:
        rows = db.each(SQL["counted"], {**_window(since, clock(now)), "ever": True})
        return added_up((lately, ever, COUNTER.decode(columns)) for lately, ever, *columns in rows)

    @browses
    def last(self, db: Connection, *, now: datetime | None = None) -> dict[str, list[EndedAttempts]]:
        rows = db.rows(SQL["last"], {"now": clock(now), "a_minute": _MINUTE})
        return last_by_kind((kind, moment(minute), count, failed) for kind, minute, count, failed in rows)

    async def depths(self, *, tenant: str | None = None, named: Collection[str] = ()) -> list[Depth]:
        return await self._engine.browse(lambda db: metrics_depths.depths(db, tenant, named))

    async def gauges(
        self, stuck_after: timedelta, *, named: Collection[str] = (), now: datetime | None = None
    ) -> Gauges:
        return await self._engine.browse(lambda db: metrics_depths.gauges(db, stuck_after, named, clock(now)))


def _add(db: Connection, worker_id: bytes, turn: int, stats: Sequence[AttemptStats], now: int) -> None:
    if db.change(SQL["put_counter_turn"], (worker_id, turn, now)):
        db.many(SQL["insert_counter"], [(worker_id, turn, now, *COUNTER.encode(one)) for one in summed(stats)])


def _roll_up(db: Connection, keep: timedelta, now: int) -> bool:
    """One step; returns whether there may be more."""
    rows = db.rows(SQL["counters_to_roll_up"], (_STEP,))
    by_minute: dict[int, list[AttemptStats]] = {}
    for _, _, at, *columns in rows:
        by_minute.setdefault(_began(min(at, now), _MINUTE), []).append(COUNTER.decode(columns))
    by_hour: dict[int, list[AttemptStats]] = {}
    for minute, counted in by_minute.items():
        _add_to(db, "minute", (minute,), counted)
        by_hour.setdefault(_began(minute, _HOUR), []).extend(counted)
    for hour, counted in by_hour.items():
        _add_to(db, "hour", (hour,), counted)
    _keep_last(db, by_minute, now)
    _add_to(db, "total", (), [one for counted in by_hour.values() for one in counted])
    db.many(SQL["delete_counter"], [(worker_id, turn, kind, outcome) for worker_id, turn, _, kind, outcome, *_ in rows])
    cutoffs = {**_cutoffs(keep, now), "limit": _STEP}
    deleted = max(db.change(SQL["delete_minute_counters"], cutoffs), db.change(SQL["delete_hour_counters"], cutoffs))
    db.run(SQL["delete_counter_turns"], (now - max(span(keep), _TURNS_KEPT),))
    return len(rows) == _STEP or deleted == _STEP


def _keep_last(db: Connection, by_minute: Mapping[int, Iterable[AttemptStats]], now: int) -> None:
    """Adds to the last attempts of each kind, and deletes those that are not among them any more."""
    ends = [(minute, one) for minute, counted in by_minute.items() for one in counted if one.outcome in ENDS]
    db.many(
        SQL["add_last"],
        [(one.kind, minute, one.count, one.count if one.outcome in FAILURES else 0) for minute, one in ends],
    )
    needed = {"since": _began(now - span(WINDOW), _MINUTE), "least": LAST}
    db.many(SQL["delete_last"], [{**needed, "kind": kind} for kind in {one.kind for _, one in ends}])


def ended_by_outcome(db: Connection, since: timedelta, now: int) -> dict[str, int]:
    """How many attempts ended, by outcome."""
    return dict(db.rows(SQL["count_ended"], _window(since, now)))


def _add_to(db: Connection, name: str, key: Row, counted: Iterable[AttemptStats]) -> None:
    """Adds counts to the rows of a minute, of an hour, or of all time."""
    for one in summed(counted):
        known = [COUNTER.decode(row) for row in db.rows(SQL[f"counter_{name}"], (*key, one.kind, one.outcome))]
        (both,) = summed([*known, one])
        db.run(SQL[f"put_counter_{name}"], (*key, *COUNTER.encode(both)))


def _window(since: timedelta, now: int) -> dict[str, int]:
    fine = since <= FINE
    return {"fine": fine, "since": _began(now - span(since), _MINUTE if fine else _HOUR), "now": now}


def _cutoffs(keep: timedelta, now: int) -> dict[str, int]:
    """Minutes and hours that began before these are deleted."""
    return {"minute": _began(now - span(min(keep, FINE)), _MINUTE), "hour": _began(now - span(keep), _HOUR)}


def _began(at: int, length: int) -> int:
    return at - at % length
