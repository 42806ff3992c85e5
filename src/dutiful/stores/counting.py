"""What counts of jobs come to, for every store: by queue, by state, and of those that have ended."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from msgspec.structs import replace

from dutiful.core.estimate import Share, View, together
from dutiful.core.transitions import FINAL, State
from dutiful.measuring import Depth
from dutiful.reading import QueueRecord

EXACT = 10_000
"""So many in one place are counted one by one."""
LOOKED_UP = 5_000
"""So many of a tenant's jobs are looked up to see which have ended."""
RUNNING = 20_000
"""So many that run are looked up one by one."""

Sort = tuple[str, str]  # queue and kind


def depths_of(state: State, views: Iterable[View[Sort]], *, everywhere: bool = False) -> list[Depth]:
    """What was seen of the lines of a place, or of the place as a whole: then it tells of queues `everywhere`."""
    by_queue: dict[str, list[View[Sort]]] = {}
    sorts: dict[Sort, None] = {}
    for view in views:
        sorts |= dict.fromkeys(view.shares)
        for queue in {queue for queue, _ in view.shares}:
            by_queue.setdefault(queue, []).append(view)
    found = []
    for queue, kind in sorts:
        count, doubt = together(by_queue[queue], (queue, kind))
        if doubt is not None and everywhere:
            doubt = replace(doubt, everywhere=True)
        found.append(Depth(queue=queue, kind=kind, state=state, count=count, doubt=doubt))
    return found


def counted(rows: Iterable[tuple[str, str, int]]) -> View[Sort]:
    """Of queue, kind and how many: there was no need to guess."""
    return View({(queue, kind): Share(count, 0.0, count) for queue, kind, count in rows})


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
