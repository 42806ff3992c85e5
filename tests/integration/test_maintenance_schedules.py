"""Schedules: each firing is made once, by whichever worker leads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime, timedelta

import pytest
from running_workers import EVERYWHERE, clocked, eventually, working

from dutiful import CatchUp, Dutiful, State, UsageError
from dutiful.core.job import JobRecord
from dutiful.maintenance.scheduler import Scheduler
from dutiful.store import Store
from dutiful.store.leadership import Survey
from dutiful.store.queries import JobFilter
from dutiful.store.schedules import ScheduleRecord
from dutiful.testing import Clock

TEN = timedelta(minutes=10)
ran: list[str] = []


@pytest.fixture
async def tick(app: Dutiful) -> AsyncIterator[Dutiful]:
    """The app with a kind `tick` that notes that it ran."""

    @app.job(queue="ticks", priority=7)
    async def tick(note: str = "") -> None:
        ran.append(note)

    ran.clear()
    yield app


async def only(store: Store) -> ScheduleRecord:
    (record,) = await store.schedules.all()
    return record


async def made(store: Store) -> list[JobRecord]:
    """The jobs of schedules, oldest firing first."""
    jobs = await store.queries.jobs(JobFilter(kind="tick", limit=1_000))
    return sorted(jobs, key=moment_of)


def moment_of(job: JobRecord) -> datetime:
    assert job.options is not None
    return datetime.fromisoformat(job.options["scheduled_for"])


async def past_due(app: Dutiful, store: Store, clock: Clock) -> datetime:
    """Declares the schedules as a worker does; then no worker runs for a while. Returns the first firing missed."""
    await store.schedules.put(app.schedule_records(clock.now()))
    first = (await only(store)).next_at
    clock.move_to(first + 2.5 * TEN)
    return first


@pytest.mark.req("L71")
@pytest.mark.parametrize("app_url", EVERYWHERE, indirect=True)
@pytest.mark.req("L101")
async def test_three_workers_make_each_firing_of_a_cron_expression_once(tick: Dutiful) -> None:
    clock = Clock()
    tick.schedule(tick.kind("tick"), "5-59/10 * * * *", payload={"note": "cron"}, tenant="acme")
    async with AsyncExitStack() as stack:
        for _ in range(3):
            client = await stack.enter_async_context(clocked(tick, clock))
            await stack.enter_async_context(working(tick, client))

        async def declared() -> bool:
            return bool(await client.store.schedules.all())

        await eventually(declared)
        first = (await only(client.store)).next_at
        assert (first.minute % 10, first.second) == (5, 0), "as the expression says"
        for n in range(3):
            clock.move_to(first + n * TEN)

            async def fired(count: int = n + 1) -> bool:
                # Settled, because a lease that is still held would end as the clock moves on.
                return sum(job.state is State.COMPLETED for job in await made(client.store)) >= count

            await eventually(fired)
        jobs = await made(client.store)
        record = await only(client.store)
    assert [moment_of(job) for job in jobs] == [first, first + TEN, first + 2 * TEN] and ran == ["cron"] * 3
    assert {(j.queue, j.priority, j.tenant, j.created_by) for j in jobs} == {("ticks", 7, "acme", "schedule tick")}
    assert record.next_at == first + 3 * TEN and record.last_job_id == jobs[-1].id


async def test_of_schedulers_that_fire_at_once_one_wins(tick: Dutiful) -> None:
    clock = Clock()
    tick.schedule(tick.kind("tick"), every="10m", catch_up="all")
    async with clocked(tick, clock) as one, clocked(tick, clock) as two, clocked(tick, clock) as three:
        first = await past_due(tick, one.store, clock)
        survey = Survey(True, clock.now(), next_fire_at=first)
        stores = [one.store, two.store, three.store]
        await asyncio.gather(*(Scheduler(store, tick.new_id).tick(survey) for store in stores))
        assert [moment_of(job) for job in await made(one.store)] == [first, first + TEN, first + 2 * TEN]


@pytest.mark.parametrize(("catch_up", "firings"), [("skip", []), ("one", [2]), ("all", [0, 1, 2])])
async def test_firings_that_were_missed_are_made_up_for_as_the_schedule_says(
    tick: Dutiful, catch_up: str, firings: list[int]
) -> None:
    clock = Clock()
    tick.schedule(tick.kind("tick"), every="10m", catch_up=catch_up)
    async with clocked(tick, clock) as client:
        first = await past_due(tick, client.store, clock)
        async with working(tick, client):

            async def caught_up() -> bool:
                return (await only(client.store)).next_at == first + 3 * TEN

            await eventually(caught_up)
        assert [moment_of(job) for job in await made(client.store)] == [first + n * TEN for n in firings]


async def test_a_disabled_schedule_does_not_fire_until_it_is_enabled(tick: Dutiful) -> None:
    clock = Clock()
    tick.schedule(tick.kind("tick"), every="10m")
    async with clocked(tick, clock) as client:
        await past_due(tick, client.store, clock)
        assert await client.store.schedules.enable("tick", False)
        await Scheduler(client.store, tick.new_id).tick(Survey(True, clock.now(), next_fire_at=clock.now()))
        assert await made(client.store) == []
        async with working(tick, client):  # declaring it again does not enable it
            await (await tick.kind("tick").options(queue="other").enqueue()).result("20s")
            assert not (await only(client.store)).enabled
            assert await client.store.schedules.enable("tick", True)

            async def fired() -> bool:
                return len(ran) == 2

            await eventually(fired)


async def test_a_changed_expression_is_reckoned_anew_and_an_unchanged_one_is_not(tick: Dutiful, app_url: str) -> None:
    clock = Clock()
    tick.schedule(tick.kind("tick"), every="10m", name="report")
    async with clocked(tick, clock) as client:
        first = await past_due(tick, client.store, clock)
        await client.store.schedules.put(tick.schedule_records(clock.now()))
        assert (await only(client.store)).next_at == first

        newer = Dutiful(app_url)

        @newer.job(name="tick")
        async def changed() -> None: ...

        newer.schedule(changed, "0 3 * * *", name="report", timezone="Europe/Helsinki", catch_up=CatchUp.SKIP)
        await client.store.schedules.put(newer.schedule_records(clock.now()))
        record = await only(client.store)
    assert (record.expression, record.timezone, record.catch_up) == ("0 3 * * *", "Europe/Helsinki", "skip")
    assert record.next_at > clock.now() and record.job["queue"] == "default"


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_what_a_schedule_cannot_do_is_refused_when_it_is_declared(tick: Dutiful) -> None:
    kind = tick.kind("tick")
    with pytest.raises(UsageError, match="either a cron expression or every"):
        tick.schedule(kind)
    with pytest.raises(UsageError, match="either a cron expression or every"):
        tick.schedule(kind, "* * * * *", every="1m")
    with pytest.raises(UsageError, match="not a cron expression"):
        tick.schedule(kind, "every day")
    with pytest.raises(UsageError, match="timezone 'Mars/Olympus' is unknown"):
        tick.schedule(kind, "0 3 * * *", timezone="Mars/Olympus")
    with pytest.raises(UsageError, match="skip, one, all"):
        tick.schedule(kind, "0 3 * * *", catch_up="some")
    with pytest.raises(UsageError, match="field 'note'"):
        tick.schedule(kind, "0 3 * * *", payload={"note": 5})
    with pytest.raises(UsageError, match="a schedule has no option 'unique'"):
        tick.schedule(kind, "0 3 * * *", unique="x")
    tick.schedule(kind, "0 3 * * *")
    with pytest.raises(UsageError, match="there is a schedule 'tick' already"):
        tick.schedule(kind, "0 4 * * *")
    assert list(tick.schedules) == ["tick"]
