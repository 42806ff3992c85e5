"""What workers count, and what is made of it: each attempt once, by what the store has taken."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from running_workers import eventually, final, working

from dutiful import Context, Dutiful, Fixed, Retry, Snooze
from dutiful.core.breaker.state import BreakerPolicy
from dutiful.core.errors import StoreUnavailable
from dutiful.core.job import ClaimToken
from dutiful.core.metrics.catalogue import METRICS, Sample
from dutiful.core.metrics.sketch import bucket
from dutiful.core.outcome import Done, Fail, Failed, Lost, Outcome
from dutiful.core.retry.error_info import describe
from dutiful.maintenance.rescuer import Rescuer
from dutiful.observe.measure import measure
from dutiful.store import Store
from dutiful.store.claims import Completion
from dutiful.store.control import Pause, PauseScope
from dutiful.store.metrics import AttemptStats
from dutiful.store.workers import LaneRecord, WorkerRecord
from dutiful.worker.counters import AttemptCounters, Timing
from dutiful.worker.leases import Leases
from dutiful.worker.settler import Settler
from suite.builders import claim, claim_one, counted_ever, enqueue, new_job, settle, start_one

Counted = dict[tuple[str, str], AttemptStats]


async def counted(app: Dutiful) -> Counted:
    async with app.opened() as client:
        return {(one.kind, one.outcome): one for one in await counted_ever(client.store)}


def counts(stats: Counted) -> dict[tuple[str, str], int]:
    return {key: one.count for key, one in stats.items()}


def waits(stats: Counted) -> Counter[str]:
    found: Counter[str] = Counter()
    for (kind, _), one in stats.items():
        found[kind] += sum(one.wait.values())
    return found


def by_label(samples: Sequence[Sample], metric: str) -> dict[tuple[str, ...], float]:
    labels = METRICS[metric].labels
    return {tuple(one.labels[label] for label in labels): one.value for one in samples if one.metric == metric}


@pytest.mark.req("L28", "L77", "L78", "L96")
async def test_every_attempt_counts_once_by_what_came_of_it(app: Dutiful) -> None:
    soon = Retry(max_attempts=2, backoff=Fixed("10ms"))
    seen: Counter[str] = Counter()

    @app.job
    async def fine(text: str) -> int:
        await asyncio.sleep(0.02)
        return len(text)

    @app.job(retry=soon)
    def flaky() -> None:
        seen["flaky"] += 1
        if seen["flaky"] == 1:
            raise OSError("not yet")

    @app.job(retry=soon)
    async def doomed() -> None:
        raise OSError("never")

    @app.job
    async def sleepy() -> None:
        seen["sleepy"] += 1
        if seen["sleepy"] == 1:
            raise Snooze("10ms")

    @app.job
    async def itself(ctx: Context) -> None:
        async with ctx.transaction():
            pass

    async with working(app):
        jobs: list[Any] = [await fine.enqueue("x" * size) for size in (10, 100)]
        jobs += [await doomed.enqueue(), await sleepy.enqueue(), await itself.enqueue(), await flaky.enqueue()]
        for job in jobs:
            await final(app, job)

    stats = await counted(app)
    assert counts(stats) == {
        ("fine", "completed"): 2,
        ("flaky", "retried"): 1,
        ("flaky", "completed"): 1,
        ("doomed", "retried"): 1,
        ("doomed", "failed"): 1,
        ("sleepy", "snoozed"): 1,
        ("sleepy", "completed"): 1,
        ("itself", "completed"): 1,
    }
    assert waits(stats) == {"fine": 2, "flaky": 1, "doomed": 1, "sleepy": 1, "itself": 1}, "each job waits once"
    one = stats["fine", "completed"]
    assert one.run_microseconds >= 30_000 and sum(one.run.values()) == 2 and min(one.run) >= bucket(15_000)
    assert one.payload_most > 100 and one.payload_bytes == 2 * one.payload_most - 90, "as long as the JSON is"


async def test_counts_are_handed_over_with_the_heartbeat_and_folded_by_the_leader(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dutiful.maintenance.rollup.INTERVAL", 0.1)
    app.configure(heartbeat="100ms")

    @app.job
    async def fine() -> None: ...

    async with app.opened() as client:
        roll_up, found = client.store.metrics.roll_up, 0

        async def spy(keep: timedelta) -> bool:
            nonlocal found
            found = max(found, len(await counted_ever(client.store)))
            return await roll_up(keep)

        async def handed_over_and_folded() -> bool:
            return found > 0

        monkeypatch.setattr(client.store.metrics, "roll_up", spy)
        async with working(app, client):
            await final(app, await fine.enqueue())
            await eventually(handed_over_and_folded)
            assert [(one.kind, one.count) for one in await counted_ever(client.store)] == [("fine", 1)]


async def test_a_turn_whose_reply_was_lost_is_repeated_and_counts_once(store: Store) -> None:
    class LosesReplies:
        lost = 0

        async def add(self, worker_id: UUID, turn: int, stats: Sequence[AttemptStats]) -> None:
            await store.metrics.add(worker_id, turn, stats)
            if self.lost < 2:
                self.lost += 1
                raise StoreUnavailable("the reply was lost")

    stats, wire, worker_id = AttemptCounters(), LosesReplies(), uuid4()
    await enqueue(store, *(new_job(payload='{"name": "Ada"}') for _ in range(3)))
    for one in await claim(store):
        stats.completed([(one, Completion(one.job_id, one.claim_id), Timing(0.0, 0.5))])
        if wire.lost < 2:
            with pytest.raises(StoreUnavailable):
                await stats.flush(wire, worker_id)  # type: ignore[arg-type]
    await stats.flush_all(wire, worker_id)  # type: ignore[arg-type]
    (total,) = await counted_ever(store)
    assert (total.count, total.run, total.run_microseconds) == (3, {bucket(500_000): 3}, 1_500_000)


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_without_metrics_nothing_is_counted(app: Dutiful) -> None:
    app.configure(metrics=False)

    @app.job
    async def fine() -> None: ...

    async with working(app):
        await final(app, await fine.enqueue())
    assert await counted(app) == {}


async def test_what_another_took_away_is_lost_and_its_late_outcome_counts_nothing(app: Dutiful) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.job
    async def slow() -> None:
        begun.set()
        await go_on.wait()

    async with working(app), app.opened() as client:
        job = await slow.enqueue()
        await asyncio.wait_for(begun.wait(), 60)
        elsewhere = AttemptCounters()
        rescuer = Rescuer(client.store, app.kinds, on_rescue=elsewhere.rescued)
        held = await client.store.claims.held(job.id)
        assert held is not None
        await rescuer.rescue([held])
        await elsewhere.flush(client.store.metrics, uuid4())
        go_on.set()
        await final(app, job)
    stats = await counted(app)
    assert counts(stats) == {("slow", "lost"): 1, ("slow", "completed"): 1}
    assert waits(stats) == {"slow": 0}, "a job that was lost has waited for its worker, too"


async def test_an_outcome_that_the_store_refuses_counts_nothing(store: Store) -> None:
    stats, leases = AttemptCounters(), Leases()
    settler = Settler(store.claims, {}, leases, lambda low, high: low, counters=stats)
    settling = asyncio.create_task(settler.run())
    await enqueue(store, *(new_job() for _ in range(4)))
    claims = await claim(store)
    leases.add(claims)
    for late in claims[:2]:
        await settle(store, late, Lost())
    outcomes: list[Outcome] = [Done(), _failed(), Done(), _failed()]
    for one, outcome in zip(claims, outcomes, strict=True):
        settler.settle(one, outcome, Timing(0.0, 1.0))
    settler.close()
    await asyncio.wait_for(settling, 60)
    await stats.flush(store.metrics, uuid4())
    assert [(one.outcome, one.count) for one in await counted_ever(store)] == [("completed", 1), ("failed", 1)]


async def test_an_expired_lease_counts_as_a_lost_attempt(app: Dutiful) -> None:
    @app.job
    async def greet() -> None: ...

    app.configure(lease="2s")  # a third of it passes before anybody is rescued
    job = await greet.enqueue()
    async with app.opened() as client:
        await claim_one(client.store, now=datetime.now(UTC) - timedelta(hours=1), kinds=["greet"])
        async with working(app):
            await final(app, job)
        assert by_label(await measure(client.store), "lost_attempts") == {("greet",): 1}
    assert counts(await counted(app)) == {("greet", "lost"): 1, ("greet", "completed"): 1}


@pytest.mark.req("L79")
async def test_a_lane_is_as_full_as_its_slots_were_since_the_last_heartbeat(app: Dutiful) -> None:
    app.configure(heartbeat="200ms", lanes="fast=2:fast; general=2:other")
    go_on = asyncio.Event()

    @app.job(queue="fast")
    async def plug() -> None:
        await go_on.wait()

    async with working(app), app.opened() as client:

        async def utilisation() -> dict[tuple[str, ...], float]:
            return by_label(await measure(client.store), "lane_utilisation")

        async def empty() -> bool:
            return await utilisation() == {("fast",): 0.0, ("general",): 0.0}

        async def full() -> bool:
            return await utilisation() == {("fast",): 1.0, ("general",): 0.0}

        assert await eventually(empty)
        jobs = [await plug.enqueue() for _ in range(2)]
        assert await eventually(full)
        go_on.set()
        for job in jobs:
            await final(app, job)
        assert await eventually(empty)


@pytest.mark.req("L39", "L73", "L76", "L79", "L80", "L84")
async def test_every_metric_of_the_catalogue_is_measured(store: Store) -> None:
    now = datetime.now(UTC)
    long_ago = now - timedelta(hours=2)
    await start_one(store, now=long_ago, kind="stuck")
    await settle(store, await start_one(store, now=long_ago, kind="dies"), _failed(), now=now, max_attempts=1)
    await enqueue(
        store,
        *(new_job(kind="mail", queue="fast") for _ in range(3)),
        new_job(kind="later", delay=timedelta(hours=9)),
        now=now - timedelta(minutes=3),
    )
    other = new_job(kind="other")
    await enqueue(store, other, new_job(kind="waits", depends_on=(other.id,)), now=now)
    await store.breakers.open("email-service", None, now=now)
    await store.breakers.enter("fine", BreakerPolicy(), ClaimToken(uuid4(), 1), now=now)
    forgotten = Pause(PauseScope.KIND, "render", long_ago, "ada")
    await store.control.pause(forgotten, now=long_ago)
    await store.workers.heartbeat(_worker(), timedelta(minutes=1), now=now)
    run = {bucket(1_000_000): 98, bucket(60_000_000): 2}
    stats = [
        AttemptStats(
            kind="mail", outcome="completed", count=89, run=run, wait={bucket(2_000_000): 89}, payload_most=700
        ),
        AttemptStats(kind="mail", outcome="retried", count=10),
        AttemptStats(kind="mail", outcome="failed", count=1),
        AttemptStats(kind="mail", outcome="snoozed", count=50),
        AttemptStats(kind="mail", outcome="lost", count=4),
    ]
    await store.metrics.add(uuid4(), 1, stats, now=now)

    found = await measure(store, now=now, broker=True)
    assert {sample.metric for sample in found} == set(METRICS)
    assert [list(METRICS).index(sample.metric) for sample in found] == sorted(
        list(METRICS).index(sample.metric) for sample in found
    )
    for sample in found:
        assert set(sample.labels) == set(METRICS[sample.metric].labels)
        assert not sample.estimated
    assert by_label(found, "pending") == {("default", "other"): 1, ("fast", "mail"): 3}
    assert by_label(found, "pending_total") == {(): 4}
    assert by_label(found, "scheduled") == {("default", "later"): 1}
    assert by_label(found, "blocked") == {("default", "waits"): 1}
    assert by_label(found, "running") == {("default", "stuck"): 1}
    assert by_label(found, "stuck") == {(): 1}
    assert by_label(found, "oldest_pending_seconds")["fast",] == pytest.approx(180, abs=1)
    assert by_label(found, "error_rate") == {("mail",): pytest.approx(0.11)}
    assert [sample.count for sample in found if sample.metric == "error_rate"] == [100]
    assert by_label(found, "run_p50_seconds")["mail",] == pytest.approx(1.0, rel=0.13)
    assert by_label(found, "run_p99_seconds")["mail",] == pytest.approx(60, rel=0.13)
    assert by_label(found, "wait_p95_seconds")["mail",] == pytest.approx(2, rel=0.13)
    assert by_label(found, "lost_attempts") == {("mail",): 4}
    assert by_label(found, "payload_most_bytes") == {("mail",): 700}
    assert by_label(found, "lane_utilisation") == {("fast",): pytest.approx(2 / 3)}
    assert by_label(found, "breaker_open")["email-service",] == 1
    assert by_label(found, "dead_letters") == {(): 1}
    assert by_label(found, "workers") == {(): 1}
    assert by_label(found, "recent_attempts") == {("mail",): 100}
    assert by_label(found, "paused_seconds") == {("kind", "render"): pytest.approx(7200, abs=1)}

    later = await measure(store, now=now + timedelta(minutes=10))
    assert by_label(later, "error_rate") == {}, "that was not lately"
    assert by_label(later, "breaker_open")["email-service",] == 0, "its time is over, and no job waits"


async def test_an_empty_store_measures_nothing_but_zeros(store: Store) -> None:
    found = await measure(store, broker=True)
    assert {sample.metric: sample.value for sample in found} == {
        name: 0 for name, metric in METRICS.items() if not metric.labels
    }


def _failed() -> Failed:
    return Failed(describe(Fail("never")), Fail, final=True)


def _worker() -> WorkerRecord:
    moment = datetime.now(UTC)
    return WorkerRecord(
        id=uuid4(), name="ada", host="here", pid=1, started_at=moment, seen_at=moment, kinds=["mail"],
        lanes={"fast": LaneRecord(slots=3, queues=("fast",), busy=2)},
    )  # fmt: skip
