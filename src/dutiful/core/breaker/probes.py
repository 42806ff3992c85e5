"""Chooses blocked jobs as probes of a breaker.

Only jobs that live workers would claim are chosen: a job in a queue that no worker serves would delay the others.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, count, islice, zip_longest
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from dutiful.core.breaker import state as rules
from dutiful.core.breaker.state import Breaker, BreakerState

T = TypeVar("T")
Id = TypeVar("Id")
NONE: frozenset[str] = frozenset()
QueuePosition = tuple[int, int]
"""A job's priority and its sequence number in the queue: the lower, the sooner."""
_REMEMBERED = 10_000
CANDIDATES = 100  # rejected jobs read per breaker, of which some are chosen


class KindInQueue(NamedTuple):
    """Jobs of one kind in one queue."""

    kind: str
    queue: str


class LaneFacts(Protocol):
    """The jobs that a lane of a live worker takes, according to its heartbeat."""

    @property
    def queues(self) -> Sequence[str]: ...

    @property
    def tenants(self) -> Sequence[str]: ...


class ServedLane(msgspec.Struct, frozen=True):
    """The jobs that one lane of a live worker takes."""

    kinds: frozenset[str]
    queues: frozenset[str]  # "*": any
    tenants: frozenset[str] = NONE  # none: jobs of any tenant, and of none


class Serving(msgspec.Struct, frozen=True):
    """Which jobs live workers take, pauses considered; `lanes` is None if no worker is known."""

    lanes: tuple[ServedLane, ...] | None
    kinds: frozenset[str] = NONE  # paused
    queues: frozenset[str] = NONE  # paused

    def tenants_taken(self, kind: str, queue: str) -> frozenset[str] | None:
        """The tenants whose jobs are taken; None: all, empty: none. If no worker is known, all count as taken."""
        if kind in self.kinds or queue in self.queues:
            return NONE
        if self.lanes is None:
            return None
        taking = [lane for lane in self.lanes if kind in lane.kinds and (queue in lane.queues or "*" in lane.queues)]
        if any(not lane.tenants for lane in taking):
            return None
        return NONE.union(*(lane.tenants for lane in taking))

    def first_taken(
        self, waiting: Iterable[KindInQueue], most: int
    ) -> Iterator[tuple[KindInQueue, frozenset[str] | None]]:
        """The first that a lane serves, until `most` of them are served for all tenants; each with its tenants.

        Each of those has at least one job, so together they have `most`. None: all tenants.
        """
        for each in waiting:
            tenants = self.tenants_taken(*each)
            if tenants is None:
                most -= 1
            if tenants is None or tenants:
                yield each, tenants
            if most <= 0:
                return

    def takes(self, kind: str, queue: str, tenant: str | None) -> bool:
        tenants = self.tenants_taken(kind, queue)
        return tenants is None or tenant in tenants


def serving(
    workers: Iterable[tuple[Mapping[str, LaneFacts], Sequence[str]]], paused: Collection[tuple[str, str]]
) -> Serving:
    """Makes a Serving from the lanes and kinds of each live worker, and the scopes and names of all pauses."""
    alive = list(workers)
    lanes = tuple(
        ServedLane(frozenset(kinds), frozenset(lane.queues), frozenset(lane.tenants))
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
    """Orders kinds in queues by how long ago their last turn was; those without one come first."""

    def __init__(self) -> None:
        self._last: dict[KindInQueue, int] = {}
        self._count = count(1)

    def order(self, waiting: Iterable[tuple[KindInQueue, QueuePosition]]) -> list[KindInQueue]:
        """Orders them, each given with the position of its first job, which decides among equals."""
        return [each for each, _ in sorted(waiting, key=lambda one: (self._last.get(one[0], 0), one[1], one[0]))]

    def record(self, taken: Iterable[KindInQueue]) -> None:
        """Records that these had their turn just now."""
        if len(self._last) > _REMEMBERED:
            self._last.clear()
        for each in taken:
            self._last[each] = next(self._count)


def round_robin(groups: Iterable[Sequence[T]], limit: int) -> list[T]:
    """The first of each group, then the second of each, and so on."""
    found = chain.from_iterable(zip_longest(*groups))
    return list(islice((one for one in found if one is not None), limit))


class RejectedJob(NamedTuple, Generic[Id]):
    """A job that a breaker has rejected inside its handler, and that has been blocked since."""

    job_id: Id
    kind: str
    queue: str
    tenant: str | None
    priority: int


def room_for_rejected(breaker: Breaker | None, probing: int, now: datetime) -> int | None:
    """How many rejected jobs may try again; None: all, because it is closed or (`breaker` None) deleted."""
    if breaker is None or breaker.state is BreakerState.CLOSED:
        return None
    if rules.due(breaker, now):  # the first call half-opens it
        breaker, probing = rules.half_opened(breaker, now), 0
    return rules.probe_room(breaker, probing, 0) if breaker.state is BreakerState.HALF_OPEN else 0


def choose_rejected(waiting: Sequence[RejectedJob[Id]], limit: int, served: Serving) -> list[Id]:
    """Up to `limit` jobs that a lane serves, by priority; if no lane serves any, all, to make room for the next ones.

    No job while every lane is paused.
    """
    if served.lanes == ():
        return []
    taken = [one for one in waiting if served.takes(one.kind, one.queue, one.tenant)]
    first = sorted(taken, key=lambda one: one.priority)[:limit] if taken else waiting
    return [one.job_id for one in first]
