"""The contract of metrics: workers count in memory and write a few times a minute, never per job.

Each write of a worker, a turn, adds what it has counted since the last one. A maintenance service folds these rows into
minutes, hours and totals that only grow. All are integers, so the order of addition does not matter.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec

from dutiful.core.metrics.estimate import Bounds
from dutiful.core.metrics.last import EndedAttempts
from dutiful.core.metrics.sketch import Sketch, add
from dutiful.core.settle import Change
from dutiful.core.states import State

FINE = timedelta(hours=2)
"""How long minutes are kept; longer windows are summed by the hour."""
FAILURES = frozenset({"failed", "retried"})
"""Outcomes that are failures."""
ENDS = FAILURES | {"completed", "completed_with_errors", "cancelled"}
"""Outcomes that count: snoozed, released and lost attempts are given back, and say nothing about the kind."""
MOST_LEVELS = 1_000
"""So many queue levels are read one by one: who may enqueue may invent any number of queues."""
OTHERS = ""
"""The name under which the jobs of all other queues, or kinds, are added up; no queue or kind has it."""
LETTERS = 100_000
"""Dead letters are counted up to this number."""


class AttemptStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and durations of the attempts of one kind with one outcome.

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
    """The outcome as the counters name it: a final state, or why the job runs again."""
    if change.outcome == "lost":
        return "lost"  # also when it was the last crash allowed, because the attempt was lost
    if change.to.final:
        return change.to.value
    return "retried" if change.outcome in ("failed", "timed_out") else change.outcome


def summed(stats: Iterable[AttemptStats]) -> list[AttemptStats]:
    """One sum for each kind and outcome, in their order."""
    sums: dict[tuple[str, str], tuple[Sketch, Sketch, list[int]]] = {}
    for one in stats:
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
        AttemptStats(
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


class CountedAttempts(NamedTuple):
    """Recent and total counts, by kind and outcome."""

    lately: list[AttemptStats]
    ever: list[AttemptStats]


def added_up(rows: Iterable[tuple[bool, bool, AttemptStats]]) -> CountedAttempts:
    """Sums of rows that are flagged as recent, as part of the totals, or both; those that are both are summed once."""
    lately, ever, both = list[AttemptStats](), list[AttemptStats](), list[AttemptStats]()
    for of_lately, of_ever, stats in rows:
        (both if of_lately and of_ever else lately if of_lately else ever).append(stats)
    fresh = summed(both)
    return CountedAttempts(lately=summed([*lately, *fresh]), ever=summed([*ever, *fresh]))


def last_by_kind(rows: Iterable[tuple[str, datetime, int, int]]) -> dict[str, list[EndedAttempts]]:
    """The last attempts of each kind, from rows of kind, minute, count and failures."""
    found: dict[str, list[EndedAttempts]] = {}
    for kind, minute, ended, failed in rows:
        found.setdefault(kind, []).append(EndedAttempts(minute, ended, failed))
    return found


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """The number of jobs of one kind in one queue and state."""

    queue: str
    kind: str
    state: State
    count: int
    bounds: Bounds | None = None  # it is an estimate

    @property
    def estimated(self) -> bool:
        return self.bounds is not None


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """The gauges that alerts watch."""

    due_since: dict[
        str, datetime
    ]  # by queue: its oldest job that waits; OTHERS: the oldest that was seen of all others
    dead_letters: int  # that wait for review, up to LETTERS
    stuck: int  # jobs that have been running for too long


class MetricStore(Protocol):
    async def add(
        self, worker_id: UUID, turn: int, stats: Sequence[AttemptStats], *, now: datetime | None = None
    ) -> None:
        """Adds what a worker has counted since its last turn; turns come in order, and a repeated one changes nothing.

        A caller that got no reply repeats the turn unchanged; what it has counted since belongs to the next one.
        """

    async def roll_up(self, keep: timedelta, *, now: datetime | None = None) -> bool:
        """Folds the rows of workers into minutes, hours and totals, in bounded steps, and deletes hours older than
        `keep`; returns whether there may be more.

        Rows from a clock that was ahead count as of now.
        """

    async def recent(self, since: timedelta, *, now: datetime | None = None) -> list[AttemptStats]:
        """What was counted within this time, by kind and outcome; from the start of the minute in which it began, or of
        the hour if it is longer than FINE."""

    async def counted(self, since: timedelta, *, now: datetime | None = None) -> CountedAttempts:
        """`recent`, and everything ever counted, by kind and outcome, which only grows; both of one snapshot."""

    async def last(self, *, now: datetime | None = None) -> dict[str, list[EndedAttempts]]:
        """The last attempts of each kind by minute, the newest first: at least LAST of them, however long ago, and all
        of the last WINDOW."""

    async def depths(self, *, tenant: str | None = None, named: Collection[str] = ()) -> list[Depth]:
        """How many jobs wait or run, by queue, kind and place, at a cost that does not grow with them: beyond 10,000
        in a place (5,000 of a tenant), or 20,000 that run, it may be an estimate, and says between which bounds.

        Of more than MOST_LEVELS queue levels, those of the queues in `named` are read; others may be overlooked, which
        the bounds say.
        """

    async def gauges(
        self, stuck_after: timedelta, *, named: Collection[str] = (), now: datetime | None = None
    ) -> Gauges:
        """Gauges over all tenants, at a bounded cost; `stuck_after`: how long a job may run; `named` as in `depths`."""
