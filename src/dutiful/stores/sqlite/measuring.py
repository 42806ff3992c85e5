"""What workers have counted: handed over, folded, and read."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from dutiful.core.sketch import Sketch
from dutiful.measuring import Tally, summed
from dutiful.stores.sqlite.codec import span, to_json
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL

_MINUTE = span(timedelta(minutes=1))
_TURNS_STAND = span(timedelta(days=1))
_STEP = 500  # as many rows are folded in one write, so that nobody waits long for the next
_sketch = msgspec.json.Decoder(Sketch)


def tally(db: Connection, worker_id: UUID, turn: int, tallies: Sequence[Tally], now: int) -> None:
    if db.change(SQL["take_turn"], {"worker": worker_id.bytes, "turn": turn, "now": now}):
        db.many(SQL["insert_tally"], [(worker_id.bytes, turn, now, *_columns(one)) for one in summed(tallies)])


def any_to_fold(db: Connection, keep: timedelta, now: int) -> bool:
    return bool(db.value(SQL["any_to_fold"], (_minute(now - span(keep)),)))


def fold(db: Connection, keep: timedelta, now: int) -> bool:
    """One step; returns whether there may be more."""
    rows = db.rows(SQL["tallies_to_fold"], (_STEP,))
    by_minute: dict[int, list[Tally]] = {}
    for _, _, at, *columns in rows:
        by_minute.setdefault(_minute(at), []).append(_tally(tuple(columns)))
    for minute, counted in by_minute.items():
        for one in summed(counted):
            known = _tallies(db.rows(SQL["minute_of"], (minute, one.kind, one.outcome)))
            db.run(SQL["put_minute"], (minute, *_columns(*summed([*known, one]))))
    for one in summed(one for counted in by_minute.values() for one in counted):
        known = _tallies(db.rows(SQL["total_of"], (one.kind, one.outcome)))
        db.run(SQL["put_total"], _columns(*summed([*known, one])))
    db.many(SQL["drop_tally"], [(worker_id, turn, kind, outcome) for worker_id, turn, _, kind, outcome, *_ in rows])
    dropped = db.change(SQL["drop_minutes"], (_minute(now - span(keep)), _STEP))
    db.run(SQL["drop_turns"], (now - max(span(keep), _TURNS_STAND),))
    return len(rows) == _STEP or dropped == _STEP


def tallied(db: Connection, since: timedelta, now: int) -> list[Tally]:
    return summed(_tallies(db.rows(SQL["tallied"], {"since": _minute(now - span(since))})))


def totals(db: Connection) -> list[Tally]:
    return summed(_tallies(db.rows(SQL["totals"])))


def _minute(at: int) -> int:
    return at - at % _MINUTE


def _columns(one: Tally) -> Row:
    return (one.kind, one.outcome, one.count, one.run_seconds, one.wait_seconds, one.payload_bytes, one.payload_most,
            to_json(one.run), to_json(one.wait))  # fmt: skip


def _tallies(rows: Iterable[Row]) -> list[Tally]:
    return [_tally(row) for row in rows]


def _tally(row: Row) -> Tally:
    kind, outcome, count, run_seconds, wait_seconds, payload_bytes, payload_most, run, wait = row
    return Tally(
        kind=kind,
        outcome=outcome,
        count=count,
        run=_sketch.decode(run),
        wait=_sketch.decode(wait),
        run_seconds=run_seconds,
        wait_seconds=wait_seconds,
        payload_bytes=payload_bytes,
        payload_most=payload_most,
    )
