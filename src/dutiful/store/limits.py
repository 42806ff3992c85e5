"""The contract of limits: jobs of a limited kind are blocked until a slot of each of its limits is free.

They wait outside of `ready`, so that claims never read past them, however many there are. An admitted job takes a slot
of each limit. A slot of a limit on what runs at once is free when its job is neither ready nor running; one of a limit
on starts counts until its time is over. Slots are freed by the next admission, so a crash leaves none behind.

A limit is never exceeded: admissions are made one at a time, and nothing else makes such a job ready.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.limits import KindLimit, Limit, read_gate
from dutiful.store.claims import QueueLevel


class Admission(msgspec.Struct, frozen=True):
    """What an admission did."""

    seen: int = 0  # jobs that it looked at; as many as asked for: there may be more
    levels: frozenset[QueueLevel] = frozenset()  # that got jobs, each with the first of them
    wait: timedelta | None = None  # until a start ceases to count, if jobs wait


def firsts(ready: Iterable[tuple[str, int, int]]) -> frozenset[QueueLevel]:
    """The first at each level of jobs that became ready, each given by its queue, priority and seq."""
    found: dict[tuple[str, int], int] = {}
    for queue, priority, seq in ready:
        found[queue, priority] = min(seq, found.get((queue, priority), seq))
    return frozenset(QueueLevel(*level, seq) for level, seq in found.items())


class KeyUse(msgspec.Struct, frozen=True):
    """How much of a limit one key uses."""

    key: str
    used: int
    waiting: int
    held_until: datetime | None = None  # a service has asked to wait


class LimitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A limit, and how it is used."""

    limit: Limit
    chosen: int | None = None  # by an operator, instead of limit.most
    kinds: list[str] = []
    used: int = 0
    waiting: int = 0
    keys: list[KeyUse] = []  # those that most jobs wait for

    @property
    def most(self) -> int:
        return self.limit.most if self.chosen is None else self.chosen


class LimitStore(Protocol):
    async def put(self, kinds: Mapping[str, Sequence[KindLimit]], *, now: datetime | None = None) -> None:
        """Stores the limits of these kinds, in place of those they had; what runs or is ready counts from now on."""

    async def admit(
        self,
        limit: int,
        *,
        everywhere: bool = False,
        ended: Collection[UUID] | None = None,
        now: datetime | None = None,
    ) -> Admission:
        """Makes jobs ready for which there are slots, up to `limit`: where slots were freed, and new ones.

        `everywhere`: also where nothing changed, because a limit may have been raised, or a kind resumed. `ended`: jobs
        that may have ended, so that only their slots are looked at; None: all.
        """

    async def hold(self, waits: Mapping[UUID, timedelta], *, now: datetime | None = None) -> None:
        """Lets no job start, for so long, that has the key of one of these in a limit with feedback.

        What is ready is blocked again; what runs or is claimed is not stopped. A longer wait that was asked for holds.
        """

    async def all(self, *, keys: int | None = 10, now: datetime | None = None) -> list[LimitRecord]:
        """All limits by name, each with up to `keys` keys; None: all that are used, waited for or held."""

    async def choose(self, name: str, most: int | None, *, now: datetime | None = None) -> bool:
        """Sets how many may run or start, in place of the declared number; False: no such limit.

        None: the declared number, and no wait that a service has asked for. If fewer may, ready jobs are admitted anew.
        """


def records(
    limits: Iterable[LimitRecord],
    used: Mapping[tuple[str, str], int],
    waits: Mapping[str, int],
    holds: Mapping[tuple[str, str], datetime],
    most: int | None,
) -> list[LimitRecord]:
    """Adds the use of each key to its limit: `used` and `holds` by name and key, `waits` by gate."""
    waiting = {read_gate(gate): count for gate, count in waits.items()}
    uses: dict[str, list[KeyUse]] = {}
    for name, key in used.keys() | waiting.keys() | holds.keys():
        place = name, key
        uses.setdefault(name, []).append(KeyUse(key, used.get(place, 0), waiting.get(place, 0), holds.get(place)))
    return [_with_uses(record, uses.get(record.limit.name, []), most) for record in limits]


def _with_uses(record: LimitRecord, keys: list[KeyUse], most: int | None) -> LimitRecord:
    keys.sort(key=lambda one: (-one.waiting, one.held_until is None, -one.used, one.key))
    return msgspec.structs.replace(
        record,
        used=sum(one.used for one in keys),
        waiting=sum(one.waiting for one in keys),
        keys=keys[:most],
    )
