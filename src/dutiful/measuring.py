"""The contract of metrics: what workers count is written by the handful, never by the job.

A worker counts in memory and hands over what is new since the last time, a few times a minute. Those rows are facts;
a service folds them, for all workers together, into minutes, hours, and totals that only grow. All are whole numbers:
in whichever order they are added up, it comes to the same.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec

from dutiful.core.estimate import Doubt
from dutiful.core.settle import Change
from dutiful.core.sketch import Sketch, add
from dutiful.core.transitions import State

FINE = timedelta(hours=2)
"""For so long minutes are kept; a longer time is added up by the hour."""
LETTERS = 100_000
"""So many dead letters are counted, and the rest left out."""


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What attempts at jobs of one kind came to.

    `outcome` is the job's final state, or "retried", "snoozed", "lost", "released".
    """

    kind: str
    outcome: str
    count: int
    run: Sketch = {}  # how long they ran, in microseconds
    wait: Sketch = {}  # how long jobs had been due when their first attempt began
    run_microseconds: int = 0  # all together
    wait_microseconds: int = 0
    payload_bytes: int = 0  # all together
    payload_most: int = 0  # of one


def outcome_of(change: Change) -> str:
    """As tallies call it: a final state, or what became of the attempt."""
    if change.outcome == "lost":
        return "lost"  # also if it was once too often, for it is the attempt that was
    if change.to.final:
        return change.to.value
    return "retried" if change.outcome in ("failed", "timed_out") else change.outcome


def summed(tallies: Iterable[Tally]) -> list[Tally]:
    """One for each kind and outcome, in their order; of many, no more than the sums is kept."""
    sums: dict[tuple[str, str], tuple[Sketch, Sketch, list[int]]] = {}
    for one in tallies:
        key = one.kind, one.outcome
        known = sums.get(key)
        if known is None:
            known = sums[key] = {}, {}, [0, 0, 0, 0, 0]
        run, wait, sizes = known
        add(run, one.run)
        add(wait, one.wait)
        sizes[0] += one.count
        sizes[1] += one.run_microseconds
        sizes[2] += one.wait_microseconds
        sizes[3] += one.payload_bytes
        sizes[4] = max(sizes[4], one.payload_most)
    return [
        Tally(
            kind=kind,
            outcome=outcome,
            count=sizes[0],
            run=run,
            wait=wait,
            run_microseconds=sizes[1],
            wait_microseconds=sizes[2],
            payload_bytes=sizes[3],
            payload_most=sizes[4],
        )
        for (kind, outcome), (run, wait, sizes) in sorted(sums.items())
    ]


class Counted(NamedTuple):
    """By kind and outcome."""

    lately: list[Tally]
    ever: list[Tally]


def added_up(rows: Iterable[tuple[bool, bool, Tally]]) -> Counted:
    """Of rows that say whether they are of lately, and of all that was ever counted; what is both is added up once."""
    lately, ever, both = list[Tally](), list[Tally](), list[Tally]()
    for of_lately, of_ever, tally in rows:
        (both if of_lately and of_ever else lately if of_lately else ever).append(tally)
    fresh = summed(both)
    return Counted(lately=summed([*lately, *fresh]), ever=summed([*ever, *fresh]))


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs of one kind stand in one place of one queue."""

    queue: str
    kind: str
    state: State
    count: int
    doubt: Doubt | None = None  # it is an estimate

    @property
    def estimated(self) -> bool:
        return self.doubt is not None


class Signs(msgspec.Struct, frozen=True, kw_only=True):
    """What tells at a glance that something is wrong."""

    due_since: dict[str, datetime]  # by queue: its oldest job that waits
    dead_letters: int  # that nobody has reviewed; LETTERS stand for more, too
    stuck: int  # jobs that have been running for too long


class Measuring(Protocol):
    async def tally(self, worker_id: UUID, turn: int, tallies: Sequence[Tally], *, now: datetime | None = None) -> None:
        """Add what a worker has counted since its last turn; turns come in order, and a repeated one changes nothing.

        Whoever lost the reply repeats the turn as it was, and counts what is new for the next.
        """

    async def fold_tallies(self, keep: timedelta, *, now: datetime | None = None) -> bool:
        """Fold what workers have handed over into minutes, hours and totals, in bounded steps, and forget hours that
        are older than `keep`; returns whether there may be more.

        What was handed over by a clock that was ahead counts as of now.
        """
        ...

    async def tallied(self, since: timedelta, *, now: datetime | None = None) -> list[Tally]:
        """By kind and outcome, what was counted within this time, and the rest of the minute that it began in; if it
        is longer than FINE, of the hour."""
        ...

    async def counted(self, since: timedelta, *, now: datetime | None = None) -> Counted:
        """What `tallied` and `totals` would say of one moment, at little more than the price of one of them."""
        ...

    async def totals(self) -> list[Tally]:
        """By kind and outcome, all that was ever counted; these only grow."""
        ...

    async def depths(self, *, tenant: str | None = None) -> list[Depth]:
        """How many jobs wait or run, by queue, kind and place, at a cost that does not grow with them: beyond 10,000
        in a place (5,000 of a tenant), or 20,000 that run, it may be an estimate, and says between which bounds."""
        ...

    async def signs(self, stuck_after: timedelta, *, now: datetime | None = None) -> Signs:
        """Of all tenants, at a cost that does not grow with their jobs; `stuck_after` is how long a job may run."""
        ...
