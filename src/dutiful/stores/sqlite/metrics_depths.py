"""Counts waiting and running jobs at a bounded cost: if there are many, from a sample.

A sample is taken of rows that are ordered by a number. Wide gaps are cut out first: a range is split at its middle
repeatedly, the widest part first, and each part begins and ends with a row. The parts are joined to one axis, of which
windows of equal width are read. Each window opens at a random point of its own stretch of the axis, so that every row
is equally likely to be read, whatever is around it.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import accumulate, chain, islice, pairwise
from math import inf
from random import Random
from statistics import median
from typing import Any

from dutiful.core.metrics.estimate import Bounds, Share, View
from dutiful.core.states import State
from dutiful.store.metrics import LETTERS, MOST_LEVELS, OTHERS, Depth, Gauges
from dutiful.stores.counting import EXACT, RUNNING, Sort, counted, depths_of
from dutiful.stores.sqlite.claims import each_queue_level
from dutiful.stores.sqlite.engine import SQL, Connection, Row
from dutiful.stores.sqlite.engine.codec import moment, span, to_json
from dutiful.stores.sqlite.engine.driver import ReplacedRow, stored

FIRST, LAST = -(2**63), 2**63 - 1
_NARROW, _WIDER = 4, 16
"""The least width of windows, and the largest factor by which they are widened at once."""
_ENOUGH, _MOST = 2, 20
"""The mean number of rows per window that is enough, and the number above which no more rows are read."""
_PER_PART, _PARTS = 8, 2
"""The number of windows per part, and the least number of parts."""
_MOST_WINDOWS, _WINDOWS, _FEWEST_WINDOWS = 512, 1024, 6
"""The number of windows: the most of a queue level, of all levels together, and the least of a level."""
_SHORT = 512
"""A queue level with up to this many jobs is counted exactly, unless there are many levels."""
_CHANCES = 2**31

_Level = dict[str, Any]
_Part = tuple[int, int]  # both ends belong to it


def depths(db: Connection, tenant: str | None, named: Collection[str] = ()) -> list[Depth]:
    return [
        *_waiting(db, State.SCHEDULED, tenant),
        *_ready(db, tenant, named),
        *_waiting(db, State.BLOCKED, tenant),
        *_running(db, tenant),
    ]


def gauges(db: Connection, stuck_after: timedelta, named: Collection[str], now: int) -> Gauges:
    return Gauges(
        due_since=due_since(db, None, named),
        dead_letters=unreviewed(db, None),
        stuck=db.value(SQL["count_stuck"], (now - span(stuck_after),)),
    )


def unreviewed(db: Connection, tenant: str | None) -> int:
    """Dead letters that wait for review, LETTERS at most."""
    statement = SQL["count_unreviewed" if tenant is None else "count_unreviewed_of_tenant"]
    counted: int = db.value(statement, {"tenant": tenant, "limit": LETTERS})
    return counted


def _waiting(db: Connection, state: State, tenant: str | None) -> list[Depth]:
    if (exact := _counted(db, state, tenant)) is not None:
        return exact
    table, whose = f"dutiful_{state}", "" if tenant is None else "_of_tenant"
    sampled = Sampled(db, SQL[f"sampled_table{whose}"].replace("{table}", table), f"{table}.rowid", tenant=tenant)
    return depths_of(state, [sampled.view(_MOST_WINDOWS, _SHORT, Random())], everywhere=True)


def _ready(db: Connection, tenant: str | None, named: Collection[str]) -> list[Depth]:
    if (exact := _counted(db, State.READY, tenant)) is not None:
        return exact
    found, crowded = _levels(db, tenant, named)
    # All levels share one budget.
    few = min(max(EXACT // max(len(found), 1), _FEWEST_WINDOWS), _SHORT)
    windows = min(max(_WINDOWS // max(len(found), 1), _FEWEST_WINDOWS), _MOST_WINDOWS)
    # Each level by itself, so that a short one is exact beside a long one.
    rows, chance = _rows_of_level(tenant), Random()
    views = [Sampled(db, rows, "seq", **level).view(windows, few, chance) for level in found]
    looked = {level["queue"] for level in found}
    return [*depths_of(State.READY, views), *(_overlooked(db, tenant, looked) if crowded else ())]


def _overlooked(db: Connection, tenant: str | None, looked: Collection[str]) -> Iterator[Depth]:
    """The least that there is in other queues: what is among the jobs that were made first."""
    whose = "" if tenant is None else "_of_tenant"
    for queue, kind, count in db.rows(SQL[f"count_first{whose}"], {"tenant": tenant, "limit": EXACT}):
        if queue not in looked:
            bounds = Bounds(count, inf, unseen=inf, everywhere=True)
            yield Depth(queue=queue, kind=kind, state=State.READY, count=count, bounds=bounds)


def _counted(db: Connection, state: State, tenant: str | None) -> list[Depth] | None:
    """Exact counts; None if there are too many."""
    table, whose = f"dutiful_{state}", "" if tenant is None else "_of_tenant"
    asked = {"tenant": tenant, "limit": EXACT + 1}
    if db.value(SQL[f"count_up_to{whose}"].replace("{table}", table), asked) > EXACT:
        return None
    return depths_of(state, [counted(db.rows(SQL[f"count_table{whose}"].replace("{table}", table), asked))])


def _running(db: Connection, tenant: str | None) -> list[Depth]:
    """Counts all running jobs, or a random sample of them."""
    leases = db.value(SQL["count_leases"])
    weight = max(leases / RUNNING, 1.0)
    rows = db.rows(SQL["count_running"], {"tenant": tenant, "share": int(_CHANCES / weight)})
    if weight == 1:
        return depths_of(State.RUNNING, [counted(rows)])
    shares = {(queue, kind): Share(count * weight, count * weight**2, count) for queue, kind, count in rows}
    return depths_of(State.RUNNING, [View(shares, leases)], everywhere=True)


def due_since(db: Connection, tenant: str | None, named: Collection[str] = ()) -> dict[str, datetime]:
    """Since when the oldest ready job of each queue has been due."""
    oldest: dict[str, datetime] = {}
    first = SQL["first_job"].replace("{rows}", _rows_of_level(tenant))
    levels, crowded = _levels(db, tenant, named)
    for level in levels:
        since = moment(db.value(SQL["due_since"], (db.value(first, level),)))
        oldest[level["queue"]] = min(since, oldest.get(level["queue"], since))
    if crowded:
        asked = {"tenant": tenant, "limit": MOST_LEVELS, "looked": to_json(list(oldest))}
        if other := db.value(SQL["first_overlooked" if tenant is None else "first_overlooked_of_tenant"], asked):
            oldest[OTHERS] = moment(db.value(SQL["due_since"], (other,)))
    return oldest


def _levels(db: Connection, tenant: str | None, named: Collection[str]) -> tuple[list[_Level], bool]:
    """The queue levels that have jobs; if there are too many, those of `named`, and True."""
    found = list(islice(_walk(db, tenant), MOST_LEVELS + 1))
    if len(found) <= MOST_LEVELS:
        return found, False
    own = (islice(_walk_queue(db, tenant, queue), MOST_LEVELS // 10) for queue in named)
    return list(chain.from_iterable(own)), True


def _walk(db: Connection, tenant: str | None) -> Iterator[_Level]:
    if tenant is None:
        yield from ({"queue": queue, "priority": priority} for queue, priority in each_queue_level(db))
        return
    level = db.row(SQL["first_level_of_tenant"], (tenant,))
    while level is not None:
        if not isinstance(level, ReplacedRow):
            yield {"tenant": tenant, "queue": level[0], "priority": level[1]}
        level = db.row(SQL["next_level_of_tenant"], (tenant, *stored(level)))


def _walk_queue(db: Connection, tenant: str | None, queue: str) -> Iterator[_Level]:
    statement = SQL["next_priority" if tenant is None else "next_priority_of_tenant"]
    level: _Level = {"queue": queue, "priority": FIRST} | ({} if tenant is None else {"tenant": tenant})
    while (priority := db.value(statement, level)) is not None:
        level = level | {"priority": priority}
        yield level


def _rows_of_level(tenant: str | None) -> str:
    return SQL["sampled_level" if tenant is None else "sampled_level_of_tenant"]


class Sampled:
    """Rows that are ordered by a number: `rows` is the end of an SQL statement that selects them, with `bindings`."""

    def __init__(self, db: Connection, rows: str, number: str, **bindings: Any) -> None:
        self._db, self._bindings = db, bindings
        self._first, self._last, self._some, self._seen = (
            SQL[name].replace("{rows}", rows).replace("{number}", number)
            for name in ("first_number", "last_number", "some_rows", "rows_in_windows")
        )

    def view(self, windows: int, few: int, chance: Random) -> View[Sort]:
        """Counts all rows if there are up to `few`; otherwise estimates from this many windows."""
        some = self._db.rows(self._some, {**self._bindings, "limit": few + 1})
        if len(some) <= few:
            return _all((0, *row) for row in some)
        axis = _Axis([*self._parts(max(windows // _PER_PART, _PARTS))])
        enough, width = _ENOUGH * windows, _first_width(some, axis.length // windows)
        while windows * width < axis.length:
            opened = [window for n in range(windows) for window in axis.window(n, windows, width, chance)]
            share, seen = self._look(opened, chance)
            if len(seen) >= enough:
                weight = axis.length / (share * windows * width)
                return _weighed(seen, weight, max(round(share * windows), 1))
            width *= min(max(enough // max(len(seen), 1) + 1, 2), _WIDER)
        return _all(self._through(axis.parts, -1))

    def _look(self, opened: list[_Part], chance: Random) -> tuple[float, list[Row]]:
        """Reads windows in random order, up to a limit; returns the share of windows that were read, and their rows."""
        opened.sort(key=lambda _: chance.random())
        limit = _MOST * len(opened)
        found = self._through(opened, limit)
        looked = max(found[-1][0], 1) if len(found) == limit else len(opened)
        return looked / len(opened), [row for row in found if row[0] < looked]

    def _through(self, opened: Sequence[_Part], limit: int) -> list[Row]:
        return self._db.rows(self._seen, {**self._bindings, "windows": to_json(opened), "limit": limit})

    def _parts(self, parts: int) -> Iterator[_Part]:
        low, high = self._number(self._first, FIRST), self._number(self._last, LAST)
        if low is None or high is None:
            return
        heap = [(low - high, low, high)]
        while len(heap) < parts and heap[0][0] < -1:
            _, low, high = heappop(heap)
            middle = (low + high + 1) // 2
            left, right = self._number(self._last, middle), self._number(self._first, middle)
            assert left is not None and right is not None  # because `low` and `high` are rows
            heappush(heap, (low - left, low, left))
            heappush(heap, (right - high, right, high))
        yield from ((low, high) for _, low, high in heap)

    def _number(self, statement: str, at: int) -> int | None:
        number: int | None = self._db.value(statement, {**self._bindings, "at": at})
        return number


def _first_width(some: Sequence[Row], room: int) -> int:
    """Initial window width, from the median gap of the first rows, because a single gap may be wide."""
    gap = median(high - low for (low, *_), (high, *_) in pairwise(some))
    return max(min(int(_ENOUGH * gap), room // _WIDER), _NARROW)


def _all(rows: Iterable[Row]) -> View[Sort]:
    counts = Counter((queue, kind) for _, _, queue, kind in rows)
    return counted((queue, kind, count) for (queue, kind), count in counts.items())


def _weighed(rows: Sequence[Row], weight: float, windows: int) -> View[Sort]:
    """Estimates from sampled rows, each with the number of its window; each row represents `weight` rows."""
    seen: dict[Sort, list[int]] = {}
    for (queue, kind, _), count in Counter((queue, kind, window) for window, _, queue, kind in rows).items():
        seen.setdefault((queue, kind), []).append(count)
    shares = {
        sort: Share(weight * sum(counts), weight**2 * sum(count**2 for count in counts), sum(counts))
        for sort, counts in seen.items()
    }
    return View(shares, windows)


class _Axis:
    """Parts joined end to end, and the last one to the first."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.parts = sorted(parts)
        self._ends = [*accumulate(high - low + 1 for low, high in self.parts)]
        self.length = self._ends[-1]

    def window(self, number: int, of: int, width: int, chance: Random) -> Iterator[_Part]:
        """A window at a random point of its stretch; in pieces, where it crosses the end of a part."""
        at = int((number + chance.random()) * self.length / of)
        while width > 0:
            at %= self.length
            part = bisect_right(self._ends, at)
            high = self.parts[part][1]
            left = self._ends[part] - at
            yield high - left + 1, high - max(left - width, 0)
            at, width = at + left, width - left
