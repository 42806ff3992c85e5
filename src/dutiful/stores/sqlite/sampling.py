"""How many rows there are between two numbers, and of what sort, without looking at all of them.

Wide gaps are cut out first: a range is parted at its middle again and again, the widest part first, and each part
begins and ends with a row. What is left is put end to end and looked at through windows of one width. Each opens at a
random point of its own stretch, so that a row is as likely to be seen whatever stands around it.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from random import Random
from statistics import median
from typing import Any

from dutiful.core.estimate import Share, View
from dutiful.stores.counting import Sort, counted
from dutiful.stores.sqlite.codec import to_json
from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL

FIRST, LAST = -(2**63), 2**63 - 1
_NARROW, _WIDER = 4, 16
"""How wide windows are at least, and how many times wider they are made at most."""
_ENOUGH, _MOST = 2, 20
"""So many rows to a window are enough, in the mean; and more than the most are not looked at."""
_PER_PART, _PARTS = 8, 2
"""How many windows there are to a part, and how many parts there are at least."""

_Part = tuple[int, int]  # both ends belong to it


class Sampled:
    """Rows that are ordered by a number: `rows` is a piece of SQL that ends with it, `bindings` go with that."""

    def __init__(self, db: Connection, rows: str, number: str, **bindings: Any) -> None:
        self._db, self._bindings = db, bindings
        self._first, self._last, self._some, self._seen = (
            SQL[name].replace("{rows}", rows).replace("{number}", number)
            for name in ("first_number", "last_number", "some_rows", "rows_in_windows")
        )

    def view(self, windows: int, few: int, chance: Random) -> View[Sort]:
        """All, if there are up to `few`; otherwise what is seen through so many windows."""
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
        """What is seen through windows, as far as they were looked through; and which share of them those are."""
        opened.sort(key=lambda _: chance.random())
        limit = _MOST * len(opened)
        found = self._through(opened, limit)
        looked = max(found[-1][0], 1) if len(found) == limit else len(opened)
        return looked / len(opened), [row for row in found if row[0] < looked]

    def _through(self, opened: Sequence[_Part], limit: int) -> list[Row]:
        return self._db.rows(self._seen, {**self._bindings, "windows": to_json(opened), "limit": limit})

    def _parts(self, parts: int) -> Iterator[_Part]:
        low, high = self._from(FIRST), self._below(LAST)
        if low is None or high is None:
            return
        heap = [(low - high, low, high)]
        while len(heap) < parts and heap[0][0] < -1:
            _, low, high = heappop(heap)
            middle = (low + high + 1) // 2
            left, right = self._below(middle), self._from(middle)
            assert left is not None and right is not None  # for `low` and `high` have rows
            heappush(heap, (low - left, low, left))
            heappush(heap, (right - high, right, high))
        yield from ((low, high) for _, low, high in heap)

    def _from(self, at: int) -> int | None:
        number: int | None = self._db.value(self._first, {**self._bindings, "at": at})
        return number

    def _below(self, at: int) -> int | None:
        number: int | None = self._db.value(self._last, {**self._bindings, "at": at})
        return number


def _first_width(some: Sequence[Row], room: int) -> int:
    """As wide as shows enough if all stand as the first ones do; by the middle of their gaps, as one may be wide."""
    gap = median(high - low for (low, *_), (high, *_) in pairwise(some))
    return max(min(int(_ENOUGH * gap), room // _WIDER), _NARROW)


def _all(rows: Iterable[Row]) -> View[Sort]:
    counts = Counter((queue, kind) for _, _, queue, kind in rows)
    return counted((queue, kind, count) for (queue, kind), count in counts.items())


def _weighed(rows: Sequence[Row], weight: float, windows: int) -> View[Sort]:
    """Of rows with the number of the window that showed them; each stands for `weight`."""
    seen: dict[Sort, list[int]] = {}
    for (queue, kind, _), count in Counter((queue, kind, window) for window, _, queue, kind in rows).items():
        seen.setdefault((queue, kind), []).append(count)
    shares = {
        sort: Share(weight * sum(counts), weight**2 * sum(count**2 for count in counts), sum(counts))
        for sort, counts in seen.items()
    }
    return View(shares, windows)


class _Axis:
    """Parts put end to end, and the last one's end to the first one's beginning."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.parts = sorted(parts)
        self._ends = [*accumulate(high - low + 1 for low, high in self.parts)]
        self.length = self._ends[-1]

    def window(self, number: int, of: int, width: int, chance: Random) -> Iterator[_Part]:
        """One that opens in the stretch of its number; in pieces, where it reaches over the end of a part."""
        at = int((number + chance.random()) * self.length / of)
        while width > 0:
            at %= self.length
            part = bisect_right(self._ends, at)
            high = self.parts[part][1]
            left = self._ends[part] - at
            yield high - left + 1, high - max(left - width, 0)
            at, width = at + left, width - left
