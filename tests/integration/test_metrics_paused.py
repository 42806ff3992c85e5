"""Jobs that people hold back are blocked, not pending: nobody is to be woken for what somebody meant."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from dutiful.acting import EVERY_LANE, PauseScope
from dutiful.alert import BUILT_IN
from dutiful.core.estimate import Doubt
from dutiful.core.metric import Sample
from dutiful.core.transitions import State
from dutiful.duties import WorkerRecord
from dutiful.measuring import LETTERS, Depth, Signs
from dutiful.observe.measure import Look, measure, samples
from dutiful.services.alerts import Alerts
from dutiful.store import Store
from dutiful.testing.store_suite.builders import new_job, pause

MINUTE = timedelta(minutes=1)
QUEUE, KIND, LANE = PauseScope.QUEUE, PauseScope.KIND, PauseScope.LANE


def worker(**lanes: Sequence[str]) -> WorkerRecord:
    now = datetime.now(UTC)
    return WorkerRecord(
        id=uuid4(), name="ada", host="here", pid=1, started_at=now, seen_at=now, kinds=["mail"],
        lanes={name: {"slots": 1, "queues": [*queues]} for name, queues in lanes.items()},
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
    await store.beat(worker(post=["mail"], general=["web"]), timedelta(hours=2), now=now)
    await store.beat(worker(more=["web"]), timedelta(hours=2), now=now)
    await store.insert([new_job(queue="mail") for _ in range(300)], now=now)
    await store.insert([new_job(queue="web") for _ in range(300)], now=now)
    free = {"mail", "web"} - held

    found = await measure(store, now=now + MINUTE)

    assert values(found, "blocked") == dict.fromkeys(held, 300)
    assert values(found, "pending") == dict.fromkeys(free, 300)
    assert values(found, "pending_total") == {"": 300 * len(free)}
    assert values(found, "oldest_pending_seconds") == dict.fromkeys(free, 60)
    queues = {one.queue: (one.ready, one.paused) for one in await store.queues()}
    assert queues == {name: (300, paused == (QUEUE, name)) for name in ("mail", "web")}


async def test_a_paused_queue_sets_off_no_alert(store: Store) -> None:
    now = datetime.now(UTC)
    await pause(store, QUEUE, "mail", now=now)
    await store.insert([new_job(queue="mail") for _ in range(600)], now=now)
    alerts = Alerts(store, BUILT_IN, lambda now: measure(store, now=now), 2 * MINUTE)

    async def told(minutes: range) -> list[str]:
        return [change.after.rule for n in minutes for change in await alerts.once(now + n * MINUTE) if change.event]

    assert await told(range(0, 90, 2)) == []
    await store.resume(QUEUE, "mail")
    assert sorted(await told(range(90, 100, 2))) == ["backlog", "late"]


def look(**fields: Any) -> Look:
    empty: dict[str, Any] = {
        "at": datetime.now(UTC), "depths": [], "tallies": [], "workers": [], "breakers": [], "pauses": [],
        "signs": Signs(due_since={}, dead_letters=0, stuck=0),
    }  # fmt: skip
    return Look(**empty | fields)


def test_dead_letters_that_are_too_many_to_count_are_at_least_so_many() -> None:
    for count, doubt in ((LETTERS - 1, None), (LETTERS, Doubt(LETTERS, float("inf")))):
        found = samples(look(signs=Signs(due_since={}, dead_letters=count, stuck=0)))
        assert [sample.doubt for sample in found if sample.metric == "dead_letters"] == [doubt]


def test_the_bounds_of_all_that_wait_are_narrower_than_those_of_each() -> None:
    doubt = Doubt(60, 140, unseen=50)
    depths = [Depth(queue="q", kind=f"k{n}", state=State.READY, count=100, doubt=doubt) for n in range(100)]
    (total,) = [sample for sample in samples(look(depths=depths)) if sample.metric == "pending_total"]

    assert (total.value, total.doubt) == (10_000, Doubt(9_600, 10_400))
