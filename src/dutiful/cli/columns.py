"""Which columns of a table a terminal has room for, and how wide they are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# What people wrote, or lists of names: the beginning tells enough. All else is copied or compared, and is shown whole.
TEXT = frozenset(
    {
        "error",
        "fires when",
        "kinds",
        "lanes (busy/slots: queues)",
        "reason",
        "states",
        "summary",
        "tenants",
        "to what",
        "url",
        "what came of it",
    }
)
GAP = 2  # between two columns
ENOUGH, LEAST = 24, 10  # characters of a text, before others make room for it and after


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    width: int  # of its widest cell, its heading among them
    empty: bool = False  # no row has anything there

    @property
    def text(self) -> bool:
        return self.name in TEXT


def fit(columns: Sequence[Column], room: int) -> dict[str, int]:
    """Those that are shown, each with its width; the first one always is."""
    for kept, least in _layouts(columns):
        spare = room - GAP * (len(kept) - 1) - sum(_floor(column, least) for column in kept)
        if spare >= 0:
            break
    widths: dict[str, int] = {}
    for column in kept:
        floor = _floor(column, least)
        widths[column.name] = min(column.width, floor + spare) if column.text else column.width
        spare -= widths[column.name] - floor
    return widths


def _layouts(columns: Sequence[Column]) -> Iterator[tuple[list[Column], int]]:
    """From the widest to the narrowest: empty columns go first, then others from the right.

    The last to go are the first two, which say what a row is about, and its state and error, for which somebody looks.
    """
    kept = list(columns)
    yield kept, ENOUGH
    spared = [column for column in reversed(columns[2:]) if column.name not in ("state", "error")]
    for column in sorted(spared, key=lambda column: not column.empty):
        kept = [other for other in kept if other is not column]
        yield kept, ENOUGH
    while len(kept) > 1:
        yield kept, LEAST
        kept = kept[:-1]
    yield kept, LEAST


def _floor(column: Column, least: int) -> int:
    return min(column.width, least) if column.text else column.width
