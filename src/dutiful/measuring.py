"""The contract of metrics: what workers count is written by the handful, never by the job.

A worker counts in memory and hands over what is new since the last time, a few times a minute. Those rows are facts;
a service folds them, for all workers together, into minutes and into totals that only grow.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

import msgspec

from dutiful.core.sketch import Sketch
from dutiful.core.transitions import State


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What attempts at jobs of one kind came to.

    `outcome` is the job's final state, or "retried", "snoozed", "lost", "released".
    """

    kind: str
    outcome: str
    count: int
    run: Sketch = {}  # how long they ran, in microseconds
    wait: Sketch = {}  # how long jobs had been due when they were first claimed
    run_seconds: float = 0.0  # all together
    wait_seconds: float = 0.0
    payload_bytes: int = 0  # all together
    payload_most: int = 0  # of one


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs of one kind stand in one place of one queue."""

    queue: str
    kind: str
    state: State
    count: int
    estimated: bool = False


class Measuring(Protocol):
    async def tally(self, worker_id: UUID, turn: int, tallies: Sequence[Tally], *, now: datetime | None = None) -> None:
        """Add what a worker has counted since its last turn; the same turn again changes nothing."""

    async def fold_tallies(self, keep: timedelta, *, now: datetime | None = None) -> bool:
        """Fold what workers have handed over into minutes and totals, in bounded steps, and forget minutes that are
        older than `keep`; returns whether there may be more."""
        ...

    async def tallied(self, since: timedelta, *, now: datetime | None = None) -> list[Tally]:
        """By kind and outcome, what was counted within this time."""
        ...

    async def totals(self) -> list[Tally]:
        """By kind and outcome, all that was ever counted; these only grow."""
        ...

    async def depths(self, *, tenant: str | None = None) -> list[Depth]:
        """How many jobs wait or run, by queue, kind and place, at a cost that does not grow with them: beyond 10,000
        in a place it may be an estimate, and says so."""
        ...
