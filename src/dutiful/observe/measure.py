"""Every metric of the catalogue, from a bounded number of looks at the store; what it costs does not grow with jobs."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from dutiful.acting import EVERY_LANE, Pause, PauseScope
from dutiful.breaking import BreakerRecord
from dutiful.core.breaker import bars
from dutiful.core.estimate import Doubt, summed
from dutiful.core.metric import METRICS, WINDOW_MINUTES, Sample
from dutiful.core.sketch import Sketch, merged, quantiles
from dutiful.core.transitions import State
from dutiful.duties import WorkerRecord
from dutiful.measuring import LETTERS, Depth, Signs, Tally
from dutiful.settings import ANY
from dutiful.store import Store

WINDOW = timedelta(minutes=WINDOW_MINUTES)
STUCK = timedelta(hours=1)
SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
DEPTHS = {
    State.READY: "pending",
    State.SCHEDULED: "scheduled",
    State.BLOCKED: "blocked",
    State.RUNNING: "running",
}
FAILURES = frozenset({"failed", "retried"})
# A job that was snoozed, released or lost says nothing of how its kind fares: its attempt was handed back.
ENDS = FAILURES | {"completed", "completed_with_errors", "cancelled"}


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What there was at one moment."""

    at: datetime
    depths: Sequence[Depth]
    tallies: Sequence[Tally]  # of the last minutes
    workers: Sequence[WorkerRecord]
    breakers: Sequence[BreakerRecord]
    signs: Signs
    pauses: Sequence[Pause]


async def look(
    store: Store,
    *,
    since: timedelta = WINDOW,
    tallies: Sequence[Tally] | None = None,
    now: datetime | None = None,
) -> Look:
    """One after the other: the connections are for those who work. `tallies`: of those who have read them already."""
    return Look(
        at=now or datetime.now(UTC),
        depths=await store.depths(),
        tallies=await store.tallied(since, now=now) if tallies is None else tallies,
        workers=await store.workers(),
        breakers=await store.breakers(now=now),
        signs=await store.signs(STUCK, now=now),
        pauses=await store.pauses(),
    )


async def measure(store: Store, *, since: timedelta = WINDOW, now: datetime | None = None) -> list[Sample]:
    """All that METRICS names; rates and quantiles are over the time `since`."""
    return samples(await look(store, since=since, now=now))


def samples(seen: Look) -> list[Sample]:
    """In the order of the catalogue, and by labels."""
    held = _held(seen)
    found = [*_depths(seen.depths, held), *_waits(seen, held), *_kinds(seen.tallies), *_lanes(seen.workers)]
    found += [
        Sample(
            "breaker_open",
            float(bars(one.breaker, one.waiting, one.probing, seen.at)),
            {"breaker": one.breaker.name},
        )
        for one in seen.breakers
    ]
    letters = seen.signs.dead_letters
    found.append(Sample("dead_letters", letters, doubt=Doubt(letters, math.inf) if letters >= LETTERS else None))
    found.append(Sample("stuck", seen.signs.stuck))
    found.append(Sample("workers", sum(worker.alive for worker in seen.workers)))
    found += [
        Sample("paused_seconds", _age(pause.since, seen.at), {"scope": pause.scope.value, "name": pause.name})
        for pause in seen.pauses
    ]
    order = {name: place for place, name in enumerate(METRICS)}
    return sorted(found, key=lambda sample: (order[sample.metric], sorted(sample.labels.items())))


def _held(seen: Look) -> frozenset[str]:
    """The queues whose jobs stand in line and are claimed by nobody, for people have paused them, or every lane that
    takes from them. Jobs of a kind that is paused have left the line."""
    paused = {(pause.scope, pause.name) for pause in seen.pauses}
    queues = {depth.queue for depth in seen.depths} | set(seen.signs.due_since)
    if (PauseScope.LANE, EVERY_LANE) in paused:
        return frozenset(queues)
    lanes = [(name, lane["queues"]) for worker in seen.workers if worker.alive for name, lane in worker.lanes.items()]

    def held(queue: str) -> bool:
        serving = [name for name, queues in lanes if queue in queues or ANY in queues]
        stopped = [name for name in serving if (PauseScope.LANE, name) in paused]
        return (PauseScope.QUEUE, queue) in paused or (bool(serving) and stopped == serving)

    return frozenset(filter(held, queues))


def _depths(depths: Iterable[Depth], held: Collection[str]) -> Iterator[Sample]:
    places: dict[str, dict[tuple[str, str], list[Depth]]] = {metric: {} for metric in DEPTHS.values()}
    for one in depths:
        metric = "blocked" if one.state is State.READY and one.queue in held else DEPTHS[one.state]
        places[metric].setdefault((one.queue, one.kind), []).append(one)
    for metric, sorts in places.items():
        for (queue, kind), some in sorts.items():
            yield Sample(metric, _count(some), {"queue": queue, "kind": kind}, doubt=_doubt(some))
    waiting = [one for some in places["pending"].values() for one in some]
    doubt = _doubt(waiting)
    # All lines were looked at, so that of all together none is overlooked.
    yield Sample("pending_total", _count(waiting), doubt=doubt and Doubt(doubt.low, doubt.high))


def _count(depths: Iterable[Depth]) -> int:
    return sum(one.count for one in depths)


def _doubt(depths: Sequence[Depth]) -> Doubt | None:
    doubts = [one.doubt for one in depths if one.doubt]
    if not doubts:
        return None
    unseen, everywhere = max(one.unseen for one in doubts), any(one.everywhere for one in doubts)
    return summed([(one.count, one.doubt) for one in depths], unseen, everywhere=everywhere)


def _waits(seen: Look, held: Collection[str]) -> Iterator[Sample]:
    for queue, since in seen.signs.due_since.items():
        if queue not in held:
            yield Sample("oldest_pending_seconds", _age(since, seen.at), {"queue": queue})


def _age(since: datetime, now: datetime) -> float:
    return max(0.0, (now - since).total_seconds())


def _kinds(tallies: Iterable[Tally]) -> Iterator[Sample]:
    by_kind: dict[str, list[Tally]] = {}
    for tally in tallies:
        by_kind.setdefault(tally.kind, []).append(tally)
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


def _sum(tallies: Iterable[Tally], counts: Callable[[str], bool]) -> int:
    return sum(one.count for one in tallies if counts(one.outcome))


def _quantiles(what: str, sketch: Sketch, labels: dict[str, str]) -> Iterator[Sample]:
    count = sum(sketch.values())
    for name, value in zip(SHARES, quantiles(sketch, list(SHARES.values())), strict=False):  # of nothing there is none
        yield Sample(f"{what}_{name}_seconds", value, labels, count=count)


def _lanes(workers: Iterable[WorkerRecord]) -> Iterator[Sample]:
    slots: dict[str, int] = {}
    used: dict[str, float] = {}
    for worker in workers:
        for name, lane in worker.lanes.items() if worker.alive else ():
            share = lane.get("utilisation", lane.get("busy", 0) / lane["slots"])
            slots[name] = slots.get(name, 0) + lane["slots"]
            used[name] = used.get(name, 0.0) + share * lane["slots"]
    for name in slots:
        yield Sample("lane_utilisation", used[name] / slots[name], {"lane": name})
