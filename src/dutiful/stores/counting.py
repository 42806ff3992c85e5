"""What counts of jobs come to, for every store: by queue, by state, and of those that have ended."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from dutiful.core.transitions import FINAL, State
from dutiful.measuring import Depth
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


def of_many(seen: Mapping[str, int], ended: Mapping[str, int]) -> dict[str, int]:
    """By final state, how many attempts workers have seen end in it, where that is more than was seen."""
    return dict(seen) | {state.value: max(seen.get(state.value, 0), ended.get(state.value, 0)) for state in FINAL}
