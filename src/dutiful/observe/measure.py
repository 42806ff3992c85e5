"""Measures every metric of the catalogue with a bounded number of queries, whose cost does not grow with jobs."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta

import msgspec

from dutiful.core.breaker.state import blocks
from dutiful.core.metrics.catalogue import METRICS, WINDOW_MINUTES, Sample
from dutiful.core.metrics.estimate import Bounds, sum_bounds
from dutiful.core.metrics.last import EndedAttempts, last_attempts
from dutiful.core.metrics.sketch import Sketch, merged, quantiles
from dutiful.core.states import State
from dutiful.declare.lane import ANY
from dutiful.observe.deliveries import DeliveryCounts, count_deliveries
from dutiful.store import Store
from dutiful.store.breakers import BreakerRecord
from dutiful.store.control import EVERY_LANE, Pause, PauseScope
from dutiful.store.metrics import ENDS, FAILURES, LETTERS, OTHERS, AttemptStats, Depth, Gauges
from dutiful.store.workers import WorkerRecord

WINDOW = timedelta(minutes=WINDOW_MINUTES)
STUCK = timedelta(hours=1)
MOST_SERIES = 1_000  # queues and kinds in one state that are measured one by one
SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
DEPTHS = {State.READY: "pending", State.SCHEDULED: "scheduled", State.BLOCKED: "blocked", State.RUNNING: "running"}


class FleetSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the fleet at one moment."""

    at: datetime
    depths: Sequence[Depth]
    attempts: Sequence[AttemptStats]  # of the last minutes
    last: Mapping[str, Sequence[EndedAttempts]] = {}  # by kind
    workers: Sequence[WorkerRecord]
    breakers: Sequence[BreakerRecord]
    gauges: Gauges
    pauses: Sequence[Pause]
    named: Set[str] = frozenset()  # queues that are measured however many there are
    deliveries: DeliveryCounts | None = None  # if a broker delivers the jobs


async def take_snapshot(
    store: Store,
    *,
    since: timedelta = WINDOW,
    attempts: Sequence[AttemptStats] | None = None,
    now: datetime | None = None,
    broker: bool = False,
    queues: Iterable[str] = (),
) -> FleetSnapshot:
    """Queries one after the other, to leave connections to workers; `attempts` are given by callers that have them.

    `broker`: whether one delivers the jobs; `queues`: those that are measured however many others there are, besides
    what lanes serve by name, and what is paused.
    """
    workers, pauses = await store.workers.all(), await store.control.pauses()
    named = {*queues, *(pause.name for pause in pauses if pause.scope is PauseScope.QUEUE), *served_by_name(workers)}
    return FleetSnapshot(
        at=now or datetime.now(UTC),
        depths=folded(await store.metrics.depths(named=named), named, {kind for one in workers for kind in one.kinds}),
        named=named,
        attempts=await store.metrics.recent(since, now=now) if attempts is None else attempts,
        last=await store.metrics.last(now=now),
        workers=workers,
        breakers=await store.breakers.all(now=now),
        gauges=await store.metrics.gauges(STUCK, named=named, now=now),
        pauses=pauses,
        deliveries=await count_deliveries(store.deliveries) if broker else None,
    )


async def measure(
    store: Store,
    *,
    since: timedelta = WINDOW,
    now: datetime | None = None,
    broker: bool = False,
    queues: Iterable[str] = (),
) -> list[Sample]:
    """Measures all METRICS; rates and quantiles cover the time `since`."""
    return samples(await take_snapshot(store, since=since, now=now, broker=broker, queues=queues))


def served_by_name(workers: Iterable[WorkerRecord]) -> set[str]:
    """The queues that lanes of live workers name."""
    lanes = (lane for worker in workers if worker.alive for lane in worker.lanes.values())
    return {queue for lane in lanes for queue in lane.queues if queue != ANY}


def folded(depths: Sequence[Depth], named: Collection[str], kinds: Collection[str]) -> list[Depth]:
    """The depths of each state, of which the smallest are added up if they are too many: who may enqueue may invent
    any number of queues and kinds. First are those of the queues in `named`, of them those of `kinds`."""
    found: list[Depth] = []
    by_state: dict[State, list[Depth]] = {}
    for one in depths:
        by_state.setdefault(one.state, []).append(one)
    for state, some in by_state.items():
        if len(some) > MOST_SERIES:
            some.sort(key=lambda one: (one.queue not in named, one.kind not in kinds, -one.count, one.queue, one.kind))
        found += some[:MOST_SERIES]
        rest: dict[str, list[Depth]] = {}
        for one in some[MOST_SERIES:]:
            rest.setdefault(one.queue if one.queue in named else OTHERS, []).append(one)
        found += [
            Depth(queue=queue, kind=OTHERS, state=state, count=_count(others), bounds=_bounds(others))
            for queue, others in rest.items()
        ]
    return found


def samples(fleet: FleetSnapshot) -> list[Sample]:
    """Returns samples in the order of the catalogue, then of labels."""
    paused = _paused_queues(fleet)
    found = [*_depths(fleet, paused), *_waits(fleet, paused), *_kinds(fleet.attempts), *_lanes(fleet.workers)]
    found += _last(fleet)
    found += [
        Sample(
            "breaker_open",
            float(blocks(one.breaker, one.waiting, one.probing, fleet.at)),
            {"breaker": one.breaker.name},
        )
        for one in fleet.breakers
    ]
    letters = fleet.gauges.dead_letters
    found.append(Sample("dead_letters", letters, bounds=Bounds(letters, math.inf) if letters >= LETTERS else None))
    found.append(Sample("stuck", fleet.gauges.stuck))
    if (deliveries := fleet.deliveries) is not None:
        unsent = deliveries.undelivered
        found.append(Sample("undelivered", unsent, bounds=Bounds(unsent, math.inf) if deliveries.more else None))
    found.append(Sample("workers", sum(worker.alive for worker in fleet.workers)))
    found += [
        Sample("paused_seconds", _age(pause.since, fleet.at), {"scope": pause.scope.value, "name": pause.name})
        for pause in fleet.pauses
    ]
    order = {name: index for index, name in enumerate(METRICS)}
    return sorted(found, key=lambda sample: (order[sample.metric], sorted(sample.labels.items())))


def _paused_queues(fleet: FleetSnapshot) -> frozenset[str]:
    """Queues whose ready jobs no worker claims, because the queue or every lane that serves it is paused.

    Jobs of a paused kind are blocked, so they are not among the ready ones.
    """
    paused = {(pause.scope, pause.name) for pause in fleet.pauses}
    queues = {depth.queue for depth in fleet.depths} | set(fleet.gauges.due_since)
    if (PauseScope.LANE, EVERY_LANE) in paused:
        return frozenset(queues)
    lanes = [(name, lane) for worker in fleet.workers if worker.alive for name, lane in worker.lanes.items()]

    def is_paused(queue: str) -> bool:
        serving = [name for name, lane in lanes if lane.serves(queue)]
        stopped = [name for name in serving if (PauseScope.LANE, name) in paused]
        return (PauseScope.QUEUE, queue) in paused or (bool(serving) and stopped == serving)

    return frozenset(filter(is_paused, queues))


def _depths(fleet: FleetSnapshot, paused: Collection[str]) -> Iterator[Sample]:
    by_metric: dict[str, dict[tuple[str, str], list[Depth]]] = {metric: {} for metric in DEPTHS.values()}
    for one in fleet.depths:
        metric = "blocked" if one.state is State.READY and one.queue in paused else DEPTHS[one.state]
        by_metric[metric].setdefault((one.queue, one.kind), []).append(one)
    for metric, by_kind in by_metric.items():
        for (queue, kind), some in by_kind.items():
            yield Sample(metric, _count(some), {"queue": queue, "kind": kind}, bounds=_bounds(some))
    ready = [one for one in fleet.depths if one.state is State.READY]
    if any(one.bounds.everywhere for one in ready if one.bounds):  # others may have been overlooked, but not these
        for queue in fleet.named - {one.queue for one in ready}:
            yield Sample("pending", 0, {"queue": queue, "kind": OTHERS}, bounds=Bounds(0, 0))
    waiting = [one for some in by_metric["pending"].values() for one in some]
    bounds = _bounds(waiting)
    # All queues were read, so that of all together none is unseen.
    yield Sample("pending_total", _count(waiting), bounds=bounds and Bounds(bounds.low, bounds.high))


def _count(depths: Iterable[Depth]) -> int:
    return sum(one.count for one in depths)


def _bounds(depths: Sequence[Depth]) -> Bounds | None:
    all_bounds = [one.bounds for one in depths if one.bounds]
    if not all_bounds:
        return None
    unseen, everywhere = max(one.unseen for one in all_bounds), any(one.everywhere for one in all_bounds)
    return sum_bounds([(one.count, one.bounds) for one in depths], unseen, everywhere=everywhere)


def _waits(fleet: FleetSnapshot, paused: Collection[str]) -> Iterator[Sample]:
    due_since = fleet.gauges.due_since
    for queue, since in due_since.items():
        if queue not in paused:
            age = _age(since, fleet.at)
            bounds = Bounds(age, math.inf, unseen=math.inf, everywhere=True) if queue == OTHERS else None
            yield Sample("oldest_pending_seconds", age, {"queue": queue}, bounds=bounds)
    if OTHERS in due_since:  # others may have been overlooked, but not these
        for queue in fleet.named - due_since.keys() - set(paused):
            yield Sample("oldest_pending_seconds", 0, {"queue": queue}, bounds=Bounds(0, 0))


def _age(since: datetime, now: datetime) -> float:
    return max(0.0, (now - since).total_seconds())


def _kinds(attempts: Iterable[AttemptStats]) -> Iterator[Sample]:
    by_kind: dict[str, list[AttemptStats]] = {}
    for one in attempts:
        by_kind.setdefault(one.kind, []).append(one)
    for kind, some in by_kind.items():
        labels = {"kind": kind}
        ended = _sum(some, lambda outcome: outcome in ENDS)
        if ended:
            failed = _sum(some, lambda outcome: outcome in FAILURES)
            yield Sample("recent_attempts", ended, labels)
            yield Sample("error_rate", failed / ended, labels, count=ended)
        yield from _quantiles("run", merged(one.run for one in some), labels)
        yield from _quantiles("wait", merged(one.wait for one in some), labels)
        yield Sample("lost_attempts", _sum(some, lambda outcome: outcome == "lost"), labels)
        yield Sample("payload_most_bytes", max(one.payload_most for one in some), labels)


def _last(fleet: FleetSnapshot) -> Iterator[Sample]:
    for kind, minutes in fleet.last.items():
        if last := last_attempts(minutes, fleet.at):
            yield Sample("last_error_rate", last.error_rate, {"kind": kind}, count=last.ended)


def _sum(attempts: Iterable[AttemptStats], counts: Callable[[str], bool]) -> int:
    return sum(one.count for one in attempts if counts(one.outcome))


def _quantiles(what: str, sketch: Sketch, labels: dict[str, str]) -> Iterator[Sample]:
    count = sum(sketch.values())
    for name, value in zip(SHARES, quantiles(sketch, list(SHARES.values())), strict=False):  # an empty sketch has none
        yield Sample(f"{what}_{name}_seconds", value, labels, count=count)


def _lanes(workers: Iterable[WorkerRecord]) -> Iterator[Sample]:
    slots: dict[str, int] = {}
    used: dict[str, float] = {}
    lingering: dict[str, int] = {}
    for worker in workers:
        for name, lane in worker.lanes.items() if worker.alive else ():
            share = lane.busy / lane.slots if lane.utilisation is None else lane.utilisation
            slots[name] = slots.get(name, 0) + lane.slots
            used[name] = used.get(name, 0.0) + share * lane.slots
            lingering[name] = lingering.get(name, 0) + lane.lingering
    for name in slots:
        yield Sample("lane_utilisation", used[name] / slots[name], {"lane": name})
        yield Sample("lingering_handlers", lingering[name], {"lane": name})
