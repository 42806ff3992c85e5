"""Paused jobs are blocked, not pending: an intended pause fires no alert."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from dutiful.core.metrics.catalogue import Sample
from dutiful.core.metrics.estimate import Bounds
from dutiful.core.states import State
from dutiful.declare.alert import BUILT_IN
from dutiful.maintenance.alerts import AlertChecker
from dutiful.observe.measure import FleetSnapshot, measure, samples
from dutiful.store import Store
from dutiful.store.control import EVERY_LANE, PauseScope
from dutiful.store.metrics import LETTERS, Depth, Gauges
from dutiful.store.workers import LaneRecord, WorkerRecord
from suite.builders import new_job, pause

MINUTE = timedelta(minutes=1)
QUEUE, KIND, LANE = PauseScope.QUEUE, PauseScope.KIND, PauseScope.LANE


def worker(**lanes: Sequence[str]) -> WorkerRecord:
    now = datetime.now(UTC)
    return WorkerRecord(
        id=uuid4(), name="ada", host="here", pid=1, started_at=now, seen_at=now, kinds=["mail"],
        lanes={name: LaneRecord(slots=1, queues=tuple(queues)) for name, queues in lanes.items()},
    )  # fmt: skip


def values(found: Sequence[Sample], metric: str) -> dict[str, float]:
    return {sample.labels.get("queue", ""): sample.value for sample in found if sample.metric == metric}


@pytest.mark.parametrize(
    ("paused", "held"),
    [
        ((QUEUE, "mail"), {"mail"}),
        ((LANE, EVERY_LANE), {"mail", "web"}),
        ((LANE, "post"), {"mail"}),  # none else takes from it
        ((LANE, "general"), set()),  # others take from both, too
        ((KIND, "other"), set()),
    ],
)
async def test_jobs_in_a_line_that_is_paused_are_blocked(
    store: Store, paused: tuple[PauseScope, str], held: set[str]
) -> None:
    now = datetime.now(UTC)
    await pause(store, *paused, now=now)
    await store.workers.heartbeat(worker(post=["mail"], general=["web"]), timedelta(hours=2), now=now)
    await store.workers.heartbeat(worker(more=["web"]), timedelta(hours=2), now=now)
    await store.jobs.insert([new_job(queue="mail") for _ in range(300)], now=now)
    await store.jobs.insert([new_job(queue="web") for _ in range(300)], now=now)
    free = {"mail", "web"} - held

    found = await measure(store, now=now + MINUTE)

    assert values(found, "blocked") == dict.fromkeys(held, 300)
    assert values(found, "pending") == dict.fromkeys(free, 300)
    assert values(found, "pending_total") == {"": 300 * len(free)}
    assert values(found, "oldest_pending_seconds") == dict.fromkeys(free, 60)
    queues = {one.queue: (one.ready, one.paused) for one in await store.queries.queues()}
    assert queues == {name: (300, paused == (QUEUE, name)) for name in ("mail", "web")}


async def test_a_paused_queue_sets_off_no_alert(store: Store) -> None:
    now = datetime.now(UTC)
    await pause(store, QUEUE, "mail", now=now)
    await store.jobs.insert([new_job(queue="mail") for _ in range(600)], now=now)
    alerts = AlertChecker(store.alerts, BUILT_IN, lambda now: measure(store, now=now), 2 * MINUTE)

    async def fired(minutes: range) -> list[str]:
        return [change.after.rule for n in minutes for change in await alerts.check(now + n * MINUTE) if change.event]

    assert await fired(range(0, 90, 2)) == []
    await store.control.resume(QUEUE, "mail")
    assert sorted(await fired(range(90, 100, 2))) == ["backlog", "late"]


def snapshot(**fields: Any) -> FleetSnapshot:
    empty: dict[str, Any] = {
        "at": datetime.now(UTC), "depths": [], "attempts": [], "workers": [], "breakers": [], "pauses": [],
        "gauges": Gauges(due_since={}, dead_letters=0, stuck=0),
    }  # fmt: skip
    return FleetSnapshot(**empty | fields)


def test_dead_letters_that_are_too_many_to_count_are_at_least_so_many() -> None:
    for count, bounds in ((LETTERS - 1, None), (LETTERS, Bounds(LETTERS, float("inf")))):
        found = samples(snapshot(gauges=Gauges(due_since={}, dead_letters=count, stuck=0)))
        assert [sample.bounds for sample in found if sample.metric == "dead_letters"] == [bounds]


def test_the_bounds_of_all_that_wait_are_narrower_than_those_of_each() -> None:
    bounds = Bounds(60, 140, unseen=50)
    depths = [Depth(queue="q", kind=f"k{n}", state=State.READY, count=100, bounds=bounds) for n in range(100)]
    (total,) = [sample for sample in samples(snapshot(depths=depths)) if sample.metric == "pending_total"]

    assert (total.value, total.bounds) == (10_000, Bounds(9_600, 10_400))
