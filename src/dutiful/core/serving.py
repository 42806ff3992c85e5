"""Of which lines the workers that live take jobs, and which line's turn it is to have one let out."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice, zip_longest
from typing import Any, NamedTuple, TypeVar

import msgspec

T = TypeVar("T")
_REMEMBERED = 10_000
NOBODY: frozenset[str] = frozenset()
Place = tuple[int, int]
"""A job's priority and its number in line: the lower, the better."""


class Standing(NamedTuple):
    """Jobs of one kind that stand in one queue."""

    kind: str
    queue: str


class ServedLane(msgspec.Struct, frozen=True):
    kinds: frozenset[str]
    queues: frozenset[str]  # "*": any
    tenants: frozenset[str] = NOBODY  # none: anybody's jobs, even nobody's


class Serving(msgspec.Struct, frozen=True):
    """What is taken from lines, if nothing else is in the way; `lanes` is None if no worker is known."""

    lanes: tuple[ServedLane, ...] | None
    kinds: frozenset[str] = NOBODY  # that people have paused
    queues: frozenset[str] = NOBODY  # that people have paused

    def whose(self, kind: str, queue: str) -> frozenset[str] | None:
        """The tenants whose jobs are taken; None: anybody's, empty: nobody's. Without a worker, all seem to be."""
        if kind in self.kinds or queue in self.queues:
            return NOBODY
        if self.lanes is None:
            return None
        taking = [lane for lane in self.lanes if kind in lane.kinds and (queue in lane.queues or "*" in lane.queues)]
        if any(not lane.tenants for lane in taking):
            return None
        return NOBODY.union(*(lane.tenants for lane in taking))

    def first(self, waiting: Iterable[Standing], most: int) -> Iterator[tuple[Standing, frozenset[str] | None]]:
        """Those of which jobs are taken, with whose these are: as many as surely have `most` jobs among them."""
        for who in waiting:
            whose = self.whose(*who)
            if whose is None:
                most -= 1
            if whose is None or whose:
                yield who, whose
            if most <= 0:
                return

    def takes(self, kind: str, queue: str, tenant: str | None) -> bool:
        whose = self.whose(kind, queue)
        return whose is None or tenant in whose


def serving(
    workers: Iterable[tuple[Mapping[str, Mapping[str, Any]], Sequence[str]]], paused: Collection[tuple[str, str]]
) -> Serving:
    """From the lanes and the kinds of each worker that lives, and the scopes and names of what people have paused."""
    alive = list(workers)
    lanes = tuple(
        ServedLane(frozenset(kinds), frozenset(lane["queues"]), frozenset(lane.get("tenants") or ()))
        for its_lanes, kinds in alive
        for name, lane in its_lanes.items()
        if ("lane", name) not in paused and ("lane", "*") not in paused
    )
    return Serving(
        lanes if alive else None,
        frozenset(name for scope, name in paused if scope == "kind"),
        frozenset(name for scope, name in paused if scope == "queue"),
    )


class Turns:
    """Remembers who had a turn; whoever has had none, or none for the longest, is the next."""

    def __init__(self) -> None:
        self._had: dict[Standing, int] = {}
        self._count = count(1)

    def order(self, waiting: Iterable[tuple[Standing, Place]]) -> list[Standing]:
        """Those that wait, each with its first one's place; of those that are equal, the best place first."""
        return [who for who, _ in sorted(waiting, key=lambda one: (self._had.get(one[0], 0), one[1], one[0]))]

    def had(self, some: Iterable[Standing]) -> None:
        if len(self._had) > _REMEMBERED:
            self._had.clear()
        for who in some:
            self._had[who] = next(self._count)


def by_turns(lines: Iterable[Sequence[T]], limit: int) -> list[T]:
    """The first of each line, then the second of each, and so on."""
    found = chain.from_iterable(zip_longest(*lines))
    return list(islice((one for one in found if one is not None), limit))
