"""What workers have counted: handed over, folded, and read."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from dutiful.core.sketch import Sketch
from dutiful.measuring import FINE, Counted, Tally, added_up, summed
from dutiful.stores.sqlite.codec import span, to_json
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL

_MINUTE, _HOUR = span(timedelta(minutes=1)), span(timedelta(hours=1))
_TURNS_STAND = span(timedelta(days=1))
_STEP = 500  # as many rows are folded in one write, so that nobody waits long for the next
_sketch = msgspec.json.Decoder(Sketch)


def tally(db: Connection, worker_id: UUID, turn: int, tallies: Sequence[Tally], now: int) -> None:
    if db.change(SQL["take_turn"], {"worker": worker_id.bytes, "turn": turn, "now": now}):
        db.many(SQL["insert_tally"], [(worker_id.bytes, turn, now, *_columns(one)) for one in summed(tallies)])


def any_to_fold(db: Connection, keep: timedelta, now: int) -> bool:
    return bool(db.value(SQL["any_to_fold"], _over(keep, now)))


def fold(db: Connection, keep: timedelta, now: int) -> bool:
    """One step; returns whether there may be more."""
    rows = db.rows(SQL["tallies_to_fold"], (_STEP,))
    by_minute: dict[int, list[Tally]] = {}
    for _, _, at, *columns in rows:
        by_minute.setdefault(_began(min(at, now), _MINUTE), []).append(_tally(*columns))
    by_hour: dict[int, list[Tally]] = {}
    for minute, counted in by_minute.items():
        _add(db, "minute", (minute,), counted)
        by_hour.setdefault(_began(minute, _HOUR), []).extend(counted)
    for hour, counted in by_hour.items():
        _add(db, "hour", (hour,), counted)
    _add(db, "total", (), [one for counted in by_hour.values() for one in counted])
    db.many(SQL["drop_tally"], [(worker_id, turn, kind, outcome) for worker_id, turn, _, kind, outcome, *_ in rows])
    over = {**_over(keep, now), "limit": _STEP}
    dropped = max(db.change(SQL["drop_minutes"], over), db.change(SQL["drop_hours"], over))
    db.run(SQL["drop_turns"], (now - max(span(keep), _TURNS_STAND),))
    return len(rows) == _STEP or dropped == _STEP


def tallied(db: Connection, since: timedelta, now: int) -> list[Tally]:
    return summed(_tally(*columns) for lately, _, *columns in _counted(db, since, now, ever=False) if lately)


def counted(db: Connection, since: timedelta, now: int) -> Counted:
    rows = _counted(db, since, now, ever=True)
    return added_up((lately, ever, _tally(*columns)) for lately, ever, *columns in rows)


def ended(db: Connection, since: timedelta, now: int) -> dict[str, int]:
    """By outcome, how many attempts."""
    return dict(db.rows(SQL["count_ended"], _window(since, now)))


def _add(db: Connection, name: str, key: Row, counted: Iterable[Tally]) -> None:
    """To the rows of a minute, of an hour, or of all time."""
    for one in summed(counted):
        known = [_tally(*row) for row in db.rows(SQL[f"{name}_of"], (*key, one.kind, one.outcome))]
        (both,) = summed([*known, one])
        db.run(SQL[f"put_{name}"], (*key, *_columns(both)))


def _counted(db: Connection, since: timedelta, now: int, *, ever: bool) -> Iterator[Row]:
    return db.each(SQL["counted"], {**_window(since, now), "ever": ever})


def _window(since: timedelta, now: int) -> dict[str, int]:
    fine = since <= FINE
    return {"fine": fine, "since": _began(now - span(since), _MINUTE if fine else _HOUR), "now": now}


def _over(keep: timedelta, now: int) -> dict[str, int]:
    """Before when minutes and hours are to be forgotten."""
    return {"minute": _began(now - span(min(keep, FINE)), _MINUTE), "hour": _began(now - span(keep), _HOUR)}


def _began(at: int, length: int) -> int:
    return at - at % length


def _columns(one: Tally) -> Row:
    return (one.kind, one.outcome, one.count, to_json(one.run), to_json(one.wait), one.run_microseconds,
            one.wait_microseconds, one.payload_bytes, one.payload_most)  # fmt: skip


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
