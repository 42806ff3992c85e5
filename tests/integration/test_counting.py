"""Counts of many jobs are cheap: exact for few jobs, and marked as estimates for many."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from random import Random
from statistics import fmean

import pytest

from dutiful.core.metrics.estimate import Share
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.control import PauseScope
from dutiful.store.metrics import AttemptStats
from dutiful.store.queries import QueueRecord
from dutiful.stores.sqlite.engine.driver import connect
from dutiful.stores.sqlite.metrics_depths import Sampled
from suite.builders import ADA, claim, complete, new_job, pause

HOUR = timedelta(hours=1)
MANY = 25_000  # more than are counted exactly or sampled completely
EXACT, LOOKED_UP = 10_000, 5_000


def about(count: int) -> object:
    return pytest.approx(count, rel=0.4)


def roughly(count: int) -> object:
    """Within a factor of two, which is far more than chance can cause."""
    return pytest.approx(1.25 * count, rel=0.6)


@pytest.mark.req("L39", "L76")
async def test_many_waiting_jobs_are_estimated_and_few_of_another_queue_are_exact(store: Store) -> None:
    now = datetime.now(UTC)
    jobs = [new_job(queue=("mail", "web")[n % 2], kind=("a", "b", "b")[n % 3]) for n in range(MANY)]
    await store.jobs.insert([*jobs, *(new_job(queue="rare", kind="c", tenant="acme") for _ in range(3))], now=now)

    depths = {(one.queue, one.kind): one for one in await store.metrics.depths()}
    assert {place: (one.count, one.estimated) for place, one in depths.items()} == {
        ("mail", "a"): (about(MANY // 6), True),
        ("mail", "b"): (about(MANY // 3), True),
        ("web", "a"): (about(MANY // 6), True),
        ("web", "b"): (about(MANY // 3), True),
        ("rare", "c"): (3, False),
    }
    queues = {one.queue: one for one in await store.queries.queues()}
    assert {name: (one.ready, one.estimated) for name, one in queues.items()} == {
        "mail": (about(MANY // 2), True),
        "web": (about(MANY // 2), True),
        "rare": (3, False),
    }
    stats = await store.queries.stats(HOUR)
    assert (stats.live["ready"], stats.estimated) == (about(MANY), True)
    assert stats.oldest_ready_at == now
    assert await store.queries.queues(tenant="acme") == [
        QueueRecord(queue="rare", ready=3, scheduled=0, blocked=0, running=0, oldest_ready_at=now)
    ]
    assert not (await store.queries.stats(HOUR, tenant="acme")).estimated


@pytest.mark.req("L76")
@pytest.mark.parametrize("state", [State.SCHEDULED, State.BLOCKED])
async def test_many_waiting_jobs_are_estimated_and_few_of_a_tenant_are_exact(store: Store, state: State) -> None:
    now = datetime.now(UTC)
    if state is State.BLOCKED:
        for kind in ("a", "b"):
            await pause(store, PauseScope.KIND, kind, now=now)
    due = now + HOUR if state is State.SCHEDULED else None
    jobs = [new_job(kind=("a", "b", "b")[n % 3], run_at=due, tenant="large") for n in range(MANY)]
    await store.jobs.insert([*jobs, *(new_job(kind="a", tenant="acme", run_at=due) for _ in range(3))], now=now)

    for tenant in (None, "large"):
        depths = {one.kind: (one.state, one.count, one.estimated) for one in await store.metrics.depths(tenant=tenant)}
        assert depths == {"a": (state, about(MANY // 3), True), "b": (state, about(2 * MANY // 3), True)}
    (acme,) = await store.metrics.depths(tenant="acme")
    assert (acme.kind, acme.state, acme.count, acme.estimated) == ("a", state, 3, False)


@pytest.mark.req("L39")
async def test_of_many_finished_jobs_the_counts_of_workers_are_shown(store: Store) -> None:
    count = EXACT + 500
    await store.jobs.insert([new_job(tenant="acme") for _ in range(count)])
    while claims := await claim(store, limit=2_000, now=datetime.now(UTC)):
        assert await complete(store, *claims, now=datetime.now(UTC)) == []

    seen = await store.queries.stats(HOUR)
    assert (seen.finished["completed"], seen.estimated) == (EXACT + 1, True)  # at least
    await store.metrics.add(ADA, 1, [AttemptStats(kind="greet", outcome="completed", count=count)])
    assert (await store.queries.stats(HOUR)).finished["completed"] == count
    assert (await store.queries.stats(HOUR)).live["ready"] == 0
    of_tenant = await store.queries.stats(HOUR, tenant="acme")
    assert (of_tenant.finished["completed"], of_tenant.estimated) == (LOOKED_UP, True)  # of its newest jobs


@pytest.mark.req("L39", "L76")
async def test_kinds_that_come_in_batches_are_estimated_fairly_while_they_are_drained(store: Store) -> None:
    now = datetime.now(UTC)
    batch = ("a",) * 40 + ("b",) * 180 + ("c",) * 180
    await store.jobs.insert([new_job(kind=kind, tenant="acme") for kind in batch * 60], now=now)
    expected = {"a": roughly(2_400), "b": roughly(10_800), "c": roughly(10_800)}
    for tenant in (None, "acme"):
        assert {one.kind: one.count for one in await store.metrics.depths(tenant=tenant)} == expected

    while await claim(store, limit=5_000, kinds=["b"], now=now):
        pass
    del expected["b"]
    for tenant in (None, "acme"):
        waiting = [one for one in await store.metrics.depths(tenant=tenant) if one.state is State.READY]
        assert {one.kind: one.count for one in waiting} == expected


def ranges(*spans: tuple[int, int, int]) -> list[int]:
    return sorted({number for span in spans for number in range(*span)})


@pytest.mark.parametrize(
    "numbers",
    [
        range(1_000_000, 1_100_000),
        range(-50_000, 250_000, 3),  # the others are in other queues
        [1, *range(900_000_000, 900_100_000)],  # one that no worker claims
        [*range(100_000), 10**15],  # and a late one
        ranges((0, 50_000, 1), (10**9, 10**9 + 100_000, 2), (10**12, 10**12 + 1000, 1)),  # bursts
        ranges(*((1000 * n, 1000 * n + 40, 1) for n in range(400))),  # rests of batches
    ],
    ids=["dense", "interleaved", "straggler", "latecomer", "bursts", "batches"],
)
def test_a_sample_estimates_the_count_with_any_gaps(numbers: Iterable[int]) -> None:
    db = connect(":memory:", "apsw", 0)
    db.run("CREATE TABLE rows (number INTEGER PRIMARY KEY, queue TEXT, kind TEXT)")
    db.many("INSERT INTO rows VALUES (?, 'default', 'a')", [(number,) for number in numbers])

    shares = [
        Sampled(db, "rows WHERE number", "number").view(256, 128, Random(seed)).shares["default", "a"]
        for seed in range(20)
    ]

    count = db.value("SELECT count(*) FROM rows")
    sums = [share.jobs for share in shares]
    assert max(share.seen for share in shares) < 5_000
    assert fmean(sums) == pytest.approx(count, rel=0.1)  # no bias
    assert count / 2 < min(sums) and max(sums) < 2 * count


def test_a_sample_of_few_is_all_of_them() -> None:
    db = connect(":memory:", "apsw", 0)
    db.run("CREATE TABLE rows (number INTEGER PRIMARY KEY, queue TEXT, kind TEXT)")
    sampled = Sampled(db, "rows WHERE number", "number")
    assert sampled.view(96, 48, Random(1)).shares == {}

    db.many("INSERT INTO rows VALUES (?, 'default', 'a')", [(number * number,) for number in range(40)])

    seen = sampled.view(96, 48, Random(1))
    assert (seen.shares, seen.windows) == ({("default", "a"): Share(40, 0.0, 40)}, 0)
