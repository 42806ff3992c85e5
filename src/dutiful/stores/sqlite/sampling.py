"""How many rows there are between two numbers, and of what sort, without looking at all of them.

A range is parted at its middle again and again, the widest part first. Each part begins and ends with a row, so that
wide gaps fall out, and within a part rows are taken to be as dense as where it begins.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, NamedTuple

from dutiful.stores.sqlite.driver import Connection, Row
from dutiful.stores.sqlite.sql import SQL

FIRST, LAST = -(2**63), 2**63 - 1
_EACH = 32
"""As many rows of a part are looked at."""


class Weighed(NamedTuple):
    row: Row  # number, queue, kind
    weight: float  # for how many it stands; 1 if it was counted


class Sampled:
    """Rows that are ordered by a number: `rows` is a piece of SQL that ends with it, `bindings` go with that."""

    def __init__(self, db: Connection, rows: str, number: str, **bindings: Any) -> None:
        self._db, self._bindings = db, bindings
        self._first, self._last, self._some = (
            SQL[name].replace("{rows}", rows).replace("{number}", number)
            for name in ("first_number", "last_number", "some_rows")
        )

    def rows(self, parts: int) -> Iterator[Weighed]:
        for low, high in self._parts(parts):
            looked = self._db.rows(self._some, {**self._bindings, "low": low, "high": high, "limit": _EACH})
            seen = looked[-1][0]
            # The first row is one; as many as the others lie as close after it.
            weight = 1.0 if seen == high else (1 + (len(looked) - 1) * (high - low) / (seen - low)) / len(looked)
            yield from (Weighed(row, weight) for row in looked)

    def _parts(self, parts: int) -> Iterator[tuple[int, int]]:
        low, high = self._from(FIRST), self._below(LAST)
        if low is None or high is None:
            return
        heap = [(low - high, low, high)]
        while len(heap) < parts and -heap[0][0] >= _EACH:
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
