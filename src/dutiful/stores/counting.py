"""What counts of jobs come to, for every store: by queue, by state, and of those that have ended."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from dutiful.core.transitions import FINAL, State
from dutiful.measuring import Depth, Tally
from dutiful.reading import QueueRecord

EXACT = 10_000
"""So many in one place are counted one by one."""
LOOKED_UP = 5_000
"""So many are counted one by one where each has to be looked up in another table."""
LETTERS = 100_000
"""So many dead letters are counted, and the rest left out."""


def by_queue(
    depths: Iterable[Depth], oldest: Mapping[str, datetime], paused: Collection[str], *, empty: bool
) -> list[QueueRecord]:
    """`empty`: those that are paused and have no jobs, too."""
    found: dict[str, list[Depth]] = {name: [] for name in paused} if empty else {}
    for depth in depths:
        found.setdefault(depth.queue, []).append(depth)
    return [
        QueueRecord(
            queue=queue,
            **by_state(there),
            oldest_ready_at=oldest.get(queue),
            paused=queue in paused,
            estimated=any(depth.estimated for depth in there),
        )
        for queue, there in sorted(found.items())
    ]


def by_state(depths: Iterable[Depth]) -> dict[str, int]:
    counts = {state.value: 0 for state in State if not state.final}
    for depth in depths:
        counts[depth.state.value] += depth.count
    return counts


def of_many(seen: Mapping[str, int], told: Iterable[Tally]) -> dict[str, int]:
    """By final state, what workers have counted, where that is more than was seen."""
    counted: defaultdict[str, int] = defaultdict(int, seen)
    for state, count in _by_outcome(told).items():
        counted[state] = max(counted[state], count)
    return dict(counted)


def _by_outcome(told: Iterable[Tally]) -> dict[str, int]:
    counts: dict[str, int] = {state.value: 0 for state in FINAL}
    for tally in told:
        if tally.outcome in counts:
            counts[tally.outcome] += tally.count
    return counts
