"""Sums counts of jobs for every store: by queue, by state, and of finished jobs."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from dutiful.core.metrics.estimate import Share, View, total
from dutiful.core.review.state import OPEN
from dutiful.core.states import FINAL, State
from dutiful.store.dead_letters import DeadLetterCounts
from dutiful.store.metrics import OTHERS, Depth
from dutiful.store.queries import MOST_QUEUES, QueueRecord

EXACT = 10_000
"""Up to this many jobs of a state are counted exactly."""
LOOKED_UP = 5_000
"""How many of a tenant's newest jobs are read to count the finished ones."""
ENDED = 100_000
"""Up to this many jobs that ended lately are counted by tenant."""
RUNNING = 20_000
"""Up to this many running jobs are counted exactly."""

Sort = tuple[str, str]  # queue and kind


def depths_of(state: State, views: Iterable[View[Sort]], *, everywhere: bool = False) -> list[Depth]:
    """Depths from samples of the queue levels of one state, or of all its jobs (`everywhere`)."""
    by_queue: dict[str, list[View[Sort]]] = {}
    sorts: dict[Sort, None] = {}
    for view in views:
        sorts |= dict.fromkeys(view.shares)
        for queue in {queue for queue, _ in view.shares}:
            by_queue.setdefault(queue, []).append(view)
    found = []
    for queue, kind in sorts:
        count, bounds = total(by_queue[queue], (queue, kind))
        if bounds is not None and everywhere:
            bounds = replace(bounds, everywhere=True)
        found.append(Depth(queue=queue, kind=kind, state=state, count=count, bounds=bounds))
    return found


def counted(rows: Iterable[tuple[str, str, int]]) -> View[Sort]:
    """A view of exact counts; each row is a queue, a kind and a count."""
    return View({(queue, kind): Share(count, 0.0, count) for queue, kind, count in rows})


def by_queue(
    depths: Iterable[Depth],
    oldest: Mapping[str, datetime],
    paused: Collection[str],
    *,
    empty: bool,
    named: Collection[str] = (),
) -> list[QueueRecord]:
    """One record per queue, and one of all others if they are too many; `empty` includes paused queues without jobs."""
    found: dict[str, list[Depth]] = {name: [] for name in paused} if empty else {}
    for depth in depths:
        found.setdefault(depth.queue, []).append(depth)
    first, rest = sorted(found), list[str]()
    if len(first) > MOST_QUEUES:
        by_size = {queue: -sum(depth.count for depth in there) for queue, there in found.items()}
        first.sort(key=lambda queue: (queue not in named, queue not in paused, by_size[queue], queue))
        first, rest = sorted(first[:MOST_QUEUES]), first[MOST_QUEUES:]
    records = [
        QueueRecord(
            queue=queue,
            **by_state(found[queue]),
            oldest_ready_at=oldest.get(queue),
            paused=queue in paused,
            estimated=any(depth.estimated for depth in found[queue]),
        )
        for queue in first
    ]
    if rest:
        others = [depth for queue in rest for depth in found[queue]]
        ages = [oldest[queue] for queue in (*rest, OTHERS) if queue in oldest]
        estimated = any(depth.estimated for depth in others)
        since = min(ages, default=None)
        records.append(
            QueueRecord(
                queue=OTHERS,
                **by_state(others),
                oldest_ready_at=since,
                paused=False,
                estimated=estimated,
                queues=len(rest),
            )
        )
    return records


def by_state(depths: Iterable[Depth]) -> dict[str, int]:
    counts = {state.value: 0 for state in State if not state.final}
    for depth in depths:
        counts[depth.state.value] += depth.count
    return counts


def dead_letter_counts(rows: Sequence[tuple[str, str, str, int, datetime]]) -> DeadLetterCounts:
    """Sums by status, kind and error class; rows end with a count and the time of the oldest."""
    by_status, by_kind, by_class = Counter[str](), Counter[str](), Counter[str]()
    for status, kind, error_class, count, _ in rows:
        by_status[status] += count
        by_kind[kind] += count
        by_class[error_class] += count
    return DeadLetterCounts(
        total=by_status.total(),
        by_status=dict(by_status),
        by_kind=dict(by_kind),
        by_class=dict(by_class),
        oldest_open_at=min((since for status, *_, since in rows if status in OPEN), default=None),
    )


def of_many(seen: Mapping[str, int], ended: Mapping[str, int]) -> dict[str, int]:
    """Counts by final state: the attempts that workers have counted in `ended`, or `seen` if that is more."""
    return dict(seen) | {state.value: max(seen.get(state.value, 0), ended.get(state.value, 0)) for state in FINAL}
