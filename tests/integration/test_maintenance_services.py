"""What one elected worker does for all: promotion, rescue, retention, and the change of leader."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from running_workers import clocked, eventually, final, state, working

from dutiful import Dutiful, Fail, Fixed, Retry, State
from dutiful.client.client import Client
from dutiful.core.errors import DutifulError
from dutiful.core.job import Claim
from dutiful.core.settle import Policy
from dutiful.delivery.base import EVERYWHERE
from dutiful.kind import Handle
from dutiful.maintenance.promotion import Gates, Promoter
from dutiful.maintenance.retention import Retention
from dutiful.maintenance.runner import MaintenanceRunner
from dutiful.maintenance.sealer import Sealer
from dutiful.store import Store
from dutiful.store.claims import ClaimRequest, QueueLevel
from dutiful.store.control import PauseScope
from dutiful.store.leadership import Survey
from dutiful.testing import Clock
from suite.builders import KIND, enqueue_one, pause

DEAD = UUID(int=0xDEAD)


@pytest.fixture
async def clock() -> Clock:
    return Clock()


async def test_a_job_is_promoted_when_its_time_has_come(app: Dutiful, clock: Clock) -> None:
    @app.job
    async def later(name: str) -> str:
        return name

    async with clocked(app, clock) as client, working(app, client):
        hour = await later.options(delay="1h").enqueue("hour")
        day = await later.options(run_at=clock.now() + timedelta(days=1)).enqueue("day")
        clock.advance("59m")
        assert await (await later.enqueue("now")).result("20s") == "now"
        assert [await state(app, job) for job in (hour, day)] == [State.SCHEDULED] * 2
        clock.advance("2m")
        assert await hour.result("20s") == "hour"
        assert await state(app, day) is State.SCHEDULED
        clock.advance("1d")
        assert await day.result("20s") == "day"


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times that the clock of the gates shows, one after the other; the last of them for ever."""
    times: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: times.pop(0) if len(times) > 1 else times[0])
    monkeypatch.setattr("dutiful.maintenance.promotion.time", clock)
    return times


BLOCKED = Survey(leading=True, now=datetime.now(UTC), blocked=True)


@pytest.mark.req("L58")
async def test_probes_are_released_while_a_long_sweep_of_the_gates_is_not_repeated(
    store: Store, moments: list[float]
) -> None:
    moments += [0.0, 60.0]  # the sweep takes a minute
    gates = Gates(store)
    assert await gates.tick(BLOCKED) is None
    await store.breakers.put_kinds({KIND: "maps"})
    await store.breakers.open("maps", timedelta(seconds=1), now=BLOCKED.now - timedelta(minutes=1))
    job = await enqueue_one(store, now=BLOCKED.now)

    assert await gates.tick(BLOCKED) == EVERYWHERE

    assert await state_of(store, job) is State.READY


async def test_a_resume_takes_effect_while_a_long_sweep_of_the_gates_is_not_repeated(
    store: Store, moments: list[float]
) -> None:
    moments += [0.0, 60.0]
    gates = Gates(store)
    await pause(store, PauseScope.KIND, KIND, now=BLOCKED.now)
    job = await enqueue_one(store, now=BLOCKED.now)
    assert await gates.tick(BLOCKED) is None
    await store.control.resume(PauseScope.KIND, KIND)

    assert await gates.tick(BLOCKED) == EVERYWHERE

    assert await state_of(store, job) is State.READY


async def test_a_sweep_of_the_gates_is_repeated_as_long_as_it_finds_jobs(
    store: Store, moments: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dutiful.maintenance.promotion.BATCH", 2)
    jobs = [await enqueue_one(store, now=BLOCKED.now) for _ in range(6)]
    await pause(store, PauseScope.KIND, KIND, now=BLOCKED.now)
    gates = Gates(store)
    moments += [0.0, 0.1, 60.0]  # the second round takes a minute, and there is more to do

    assert await gates.tick(BLOCKED) is None, "no hint is sent for jobs that leave their queues"
    assert [await state_of(store, job) for job in jobs].count(State.BLOCKED) == 4
    assert await gates.tick(BLOCKED) is None

    assert [await state_of(store, job) for job in jobs] == [State.BLOCKED] * 6


async def test_jobs_released_one_by_one_come_a_few_to_the_second(store: Store, moments: list[float]) -> None:
    gates = Gates(store)
    moments += [0.0]

    async def release_one() -> bool:
        await pause(store, PauseScope.KIND, KIND, now=BLOCKED.now)
        await enqueue_one(store, now=BLOCKED.now)
        await store.control.resume(PauseScope.KIND, KIND)
        return await gates.tick(BLOCKED) == EVERYWHERE

    assert [await release_one() for _ in range(4)] == [True, True, True, False]
    moments[:] = [1.0]
    assert await gates.tick(BLOCKED) == EVERYWHERE, "jobs that had to wait are released a second later"


async def state_of(store: Store, job_id: UUID) -> State:
    record = await store.queries.job(job_id)
    assert record is not None
    return record.state


async def test_retention_deletes_old_breakers_whether_or_not_jobs_are_kept(store: Store) -> None:
    for keep in (None, timedelta(hours=1)):
        await store.breakers.open("typo", timedelta(seconds=1), now=datetime.now(UTC) - timedelta(days=31))
        await store.breakers.open("maps", timedelta(seconds=1), now=datetime.now(UTC) - timedelta(days=2))

        await Retention(store, keep).run_once()

        assert [one.breaker.name for one in await store.breakers.all()] == ["maps"]


async def test_a_service_that_fails_the_same_way_again_and_again_is_logged_once(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ticks = 0

    async def tick(self: Sealer, survey: Survey) -> None:
        nonlocal ticks
        ticks += 1
        raise DutifulError("this role may not seal" if ticks < 4 else "no role may seal")

    async def often() -> bool:
        return ticks > 6

    monkeypatch.setattr(Sealer, "tick", tick)
    async with working(app):
        await eventually(often)

    logged = [record.getMessage() for record in caplog.records if record.name == "dutiful.maintenance"]
    assert logged == ["sealer: this role may not seal", "sealer: no role may seal"]


async def test_a_leader_goes_on_leading_while_a_service_takes_long(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a survey for so long, the database would seem to have been away."""
    slow, surveys = asyncio.Event(), 0

    async def tick(self: Promoter, survey: Survey) -> None:
        nonlocal surveys
        surveys = 0
        slow.set()
        await asyncio.sleep(60)

    survey = MaintenanceRunner._survey

    async def count(self: MaintenanceRunner, worker_id: UUID) -> Survey:
        nonlocal surveys
        surveys += 1
        return await survey(self, worker_id)

    monkeypatch.setattr(Promoter, "tick", tick)
    monkeypatch.setattr(MaintenanceRunner, "_survey", count)

    @app.job
    async def nothing() -> None: ...

    async with app, working(app, await app.client()):
        await slow.wait()

        async def twice() -> bool:
            return surveys >= 2

        await eventually(twice)


@pytest.mark.req("D35")
async def test_the_jobs_of_a_dead_worker_come_back_when_their_leases_end(app: Dutiful, clock: Clock) -> None:
    @app.job
    async def victim() -> str:
        return "rescued"

    async with clocked(app, clock) as client:
        job = await victim.enqueue()
        await claim(client, "victim")
        async with working(app, client):
            await asyncio.gather(*[(await victim.enqueue()).result("20s") for _ in range(3)])
            assert await state(app, job) is State.RUNNING
            clock.advance("31s")
            await let_pass(clock, lambda: is_done(app, job))
    record = await final(app, job)
    assert (record.crashes, record.attempt) == (1, 1)


async def test_a_job_that_crashed_three_workers_is_a_dead_letter(app: Dutiful, clock: Clock) -> None:
    @app.job(retry=Retry(max_attempts=10, backoff=Fixed(0)))
    async def killer() -> None: ...

    @app.job(on_crash="fail")
    async def once() -> None: ...

    @app.job
    async def unwanted() -> None: ...

    @app.job
    async def other() -> None: ...

    app.configure(kinds="other")  # no worker here runs the others; their crashes are simulated
    async with clocked(app, clock) as client, working(app, client):
        jobs = [await kind.enqueue() for kind in (killer, once, unwanted)]

        async def die(*kinds: str) -> None:
            for kind in kinds:
                await claim(client, kind)
            clock.advance("31s")

        await claim(client, "unwanted")
        assert await jobs[2].cancel("not wanted")
        await die("killer", "once")
        await let_pass(clock, lambda: is_done(app, jobs[1]))
        records = [await final(app, jobs[1]), await final(app, jobs[2])]
        assert [record.state for record in records] == [State.FAILED, State.CANCELLED]
        for _ in range(2):
            await let_pass(clock, lambda: is_ready(app, jobs[0]))
            await die("killer")
        await let_pass(clock, lambda: is_done(app, jobs[0]))
        record = await final(app, jobs[0])
    assert (record.state, record.crashes) == (State.FAILED, 3) and record.errors is not None
    assert record.errors[0]["type"] == "WorkerLost" and "died 3 times" in record.errors[0]["message"]


async def let_pass(clock: Clock, look: Callable[[], Awaitable[bool]]) -> None:
    """Lets time go by until `look` is true, so slowly that it does not seem that there was no survey for long."""
    until = time.monotonic() + 60
    while not await look():
        assert time.monotonic() < until, "it was not true in time"
        clock.advance("1s")
        await asyncio.sleep(0.2)


async def is_done(app: Dutiful, job: Handle[Any]) -> bool:
    return (await state(app, job)).final


async def is_ready(app: Dutiful, job: Handle[None]) -> bool:
    return await state(app, job) is State.READY


async def claim(client: Client, kind: str) -> Claim:
    """Claims as a worker that dies before it settles."""
    ask = ClaimRequest(DEAD, "general", [QueueLevel("default", 100)], [kind], 1, timedelta(seconds=30), suspects=1)
    (claimed,) = await client.store.claims.claim(ask)
    return claimed


async def test_a_rescue_goes_on_past_a_job_whose_policy_fails(app: Dutiful, clock: Clock) -> None:
    @app.job
    async def odd() -> None: ...

    @app.job
    async def victim() -> str:
        return "rescued"

    odd._policy = Policy(max_crashes="3")  # type: ignore[arg-type]  # what no declaration would let through
    async with clocked(app, clock) as client:
        jobs = [await odd.enqueue(), await victim.enqueue()]
        await claim(client, "odd")
        await claim(client, "victim")
        clock.advance("31s")
        async with working(app, client):
            await let_pass(clock, lambda: is_done(app, jobs[1]))
            bad, good = [await final(app, job) for job in jobs]
    assert bad.state is State.FAILED and bad.errors is not None and bad.errors[0]["type"] == "TypeError"
    assert (good.result, good.crashes) == ("rescued", 1)


@pytest.mark.req("D126")
async def test_old_jobs_are_removed_and_dead_letters_stay(app: Dutiful, clock: Clock) -> None:
    @app.job
    async def work(what: str) -> str:
        if what == "fail":
            raise Fail("for good")
        return what

    async with clocked(app, clock) as client:
        async with working(app, client):
            done, failed, cancelled = [await work.enqueue(what) for what in ("done", "fail", "never")]
            await cancelled.cancel()
            waits = await work.options(delay="30d").enqueue("waits")
            await done.result("20s")
            await final(app, failed)
        clock.advance("8d")
        async with working(app, client):

            async def removed() -> bool:
                return [await app.find(job.id) for job in (done, failed, cancelled)] == [None, None, None]

            await eventually(removed)
            fresh = await work.enqueue("fresh")
            assert await fresh.result("20s") == "fresh" and await state(app, waits) is State.SCHEDULED
        assert (await client.store.queries.stats(timedelta(days=30))).dead_letters == 1


@pytest.mark.parametrize("app_url", ["postgres18", "pgbouncer"], indirect=True)
async def test_another_worker_leads_when_the_leader_stops(app: Dutiful) -> None:
    @app.job
    async def later() -> str:
        return "done"

    store = (await app.client()).store

    async def leader() -> UUID | None:
        return next((worker.id for worker in await store.workers.all() if worker.leading), None)

    async with working(app) as second, working(app) as first:
        old: UUID = await eventually(leader)
        assert old in (first.id, second.id)
        stopping, staying = (first, second) if old == first.id else (second, first)
        stopping.stop()

        async def handed_over() -> bool:
            return await leader() == staying.id

        await eventually(handed_over)
        job = await later.options(delay="10ms").enqueue()
        assert await job.result("20s") == "done"
