"""Pipelines that are cancelled, timed out, interrupted, lost, or whose store goes away."""

import asyncio
import threading
from typing import Any

import pytest
from faulty_store import faulty_store
from running_workers import eventually, final, working
from test_pipelines import events, phases_of, states, store_of

from dutiful import Cancel, Context, Dutiful, Fixed, Retry, ShutdownTimeout, State
from dutiful.core.events import EventType
from dutiful.core.outcome import Lost
from dutiful.core.retry.error_info import fingerprint
from dutiful.core.settle import Policy, decide
from dutiful.pipeline import Pipeline

sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
CANCELLED = {"first": "completed", "second": "cancelled", "third": "cancelled"}


class Scene:
    """A pipeline of three phases, the first in a thread; the second one waits until it is stopped or let go."""

    def __init__(self, app: Dutiful, **options: Any) -> None:
        self.app = app
        self.pipeline: Pipeline = app.pipeline("scene", **options)
        self.ran: list[str] = []
        self.waits = asyncio.Event()
        self.go = asyncio.Event()
        self.second_ended = asyncio.Event()
        self.pipeline.phase(self.first)
        self.pipeline.phase(self.second)
        self.pipeline.phase(self.third)

    def first(self) -> str:
        self.ran.append("first")
        return "kept"

    async def second(self) -> None:
        self.ran.append("second")
        self.waits.set()
        await self.go.wait()
        self.second_ended.set()

    async def third(self, first: str) -> str:
        self.ran.append("third")
        return first


@pytest.mark.req("J26", "J47", "J48", "J49", "J50")
async def test_a_cancelled_pipeline_stops_where_it_is(app: Dutiful) -> None:
    scene = Scene(app)
    async with working(app):
        job = await scene.pipeline.enqueue()
        await scene.waits.wait()
        scene.waits.clear()
        bystander = await scene.pipeline.enqueue()
        await scene.waits.wait()
        await job.cancel()
        record = await final(app, job)
        assert (await bystander.record()).state is State.RUNNING
        scene.go.set()
        assert await bystander.result("20s") == "kept"
    assert record.state is State.CANCELLED
    phases = await phases_of(app, job)
    assert states(phases) == CANCELLED
    assert record.finished_at is not None
    ended = [phase.ended_at for phase in phases.values()]
    assert all(at is not None and at <= record.finished_at for at in ended)
    assert phases["first"].result == "kept"
    assert (await events(app, job)).count(EventType.CANCELLED) == 1


@pytest.mark.req("J51", "J52")
async def test_a_pipeline_that_is_cancelled_between_phases_ends_once(app: Dutiful) -> None:
    scene = Scene(app)
    async with faulty_store(app) as (client, store), working(app, client):
        store.held = "second"
        job = await scene.pipeline.enqueue()
        await store.waits.wait()
        await job.cancel()
        await job.cancel()
        record = await final(app, job)
        store.go.set()
    assert record.state is State.CANCELLED
    assert scene.ran == ["first"]
    assert (await events(app, job)).count(EventType.CANCELLED) == 1
    assert {"second": "cancelled", "third": "cancelled"}.items() <= states(await phases_of(app, job)).items()


@sqlite
async def test_a_stop_waits_until_the_end_of_a_phase_is_stored(app: Dutiful) -> None:
    scene, slow = Scene(app), app.pipeline("slow")

    @slow.phase
    async def held() -> None: ...

    async with faulty_store(app) as (client, store), working(app, client) as worker:

        async def stop_requested() -> bool:
            return any(slot.stop for lane in worker.lanes for slot in lane.slots)

        job = await scene.pipeline.enqueue()
        await scene.waits.wait()
        store.held = "held"
        other = await slow.enqueue()
        await store.waits.wait()
        scene.go.set()  # its end is stored after what is held up there
        await scene.second_ended.wait()
        worker.cancel(job.id)  # the store knows of no request to cancel, and would refuse the end of the phase
        await eventually(stop_requested)
        store.go.set()
        record = await final(app, job)
        await other.result("20s")
    assert record.state is State.CANCELLED
    assert states(await phases_of(app, job)) == {"first": "completed", "second": "completed", "third": "cancelled"}


async def test_a_phase_that_ignores_its_cancellation_is_the_last(app: Dutiful) -> None:
    publish, begun, ran = app.pipeline("publish"), asyncio.Event(), []

    @publish.phase
    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done all the same"
        return ""

    @publish.phase
    async def second() -> None:
        ran.append("second")

    async with working(app):
        job = await publish.enqueue()
        await begun.wait()
        await job.cancel()
        record = await final(app, job)
    assert (record.state, ran) == (State.CANCELLED, [])
    assert states(await phases_of(app, job)) == {"stubborn": "cancelled", "second": "cancelled"}


@pytest.mark.req("J53", "J54")
async def test_a_pipeline_that_waits_is_cancelled_with_all_its_phases(app: Dutiful) -> None:
    scene = Scene(app)
    job = await scene.pipeline.options(delay="1h").enqueue()
    assert await job.cancel()
    assert not await job.cancel()
    assert list(states(await phases_of(app, job)).items()) == [
        ("first", "cancelled"),
        ("second", "cancelled"),
        ("third", "cancelled"),
    ]
    assert (await events(app, job)).count(EventType.CANCELLED) == 1


@sqlite
async def test_a_phase_cancels_its_job(app: Dutiful) -> None:
    publish = app.pipeline("publish")

    @publish.phase(optional=True)
    def first() -> Cancel:
        return Cancel("not wanted")

    @publish.phase
    async def second() -> None: ...

    async with working(app):
        record = await final(app, await publish.enqueue())
    assert record.state is State.CANCELLED
    assert record.errors is not None and record.errors[0]["message"] == "not wanted"


@pytest.mark.parametrize("where", ["loop", "thread"])
@sqlite
async def test_a_phase_has_a_timeout_of_its_own(app: Dutiful, where: str) -> None:
    publish, ran = app.pipeline("publish", retry=Retry(max_attempts=1), timeout="1h"), []

    async def on_loop(ctx: Context) -> None:
        ran.append("slow")
        await asyncio.Event().wait()

    def in_thread(ctx: Context) -> None:
        ran.append("slow")
        while True:
            ctx.check()
            threading.Event().wait(0.01)

    slow = on_loop if where == "loop" else in_thread
    publish.phase(name="optional", timeout="100ms", optional=True)(slow)

    @publish.phase
    async def between(ctx: Context) -> None:
        await asyncio.sleep(0)  # what stopped the phase before does not reach it
        ran.append("between")

    publish.phase(name="needed", timeout="100ms", retry=Retry(max_attempts=2, backoff=Fixed("0s")))(slow)
    async with working(app):
        record = await final(app, await publish.enqueue())
    assert ran == ["slow", "between", "slow", "slow"]
    assert (record.state, record.attempt) == (State.FAILED, 1)
    assert record.errors is not None and record.errors[0] == {
        "type": "TimeoutExceeded",
        "message": "ran longer than its timeout of 100ms",
        "class": "transient",
        "fingerprint": fingerprint("TimeoutExceeded", "ran longer than its timeout of 100ms"),
        "phase": "needed",
    }


@sqlite
async def test_the_jobs_own_timeout_spans_its_phases(app: Dutiful) -> None:
    publish = app.pipeline("publish", timeout="200ms", retry=Retry(max_attempts=1))

    @publish.phase(timeout="1h", optional=True)
    async def slow() -> None:
        await asyncio.Event().wait()

    async with working(app):
        record = await final(app, await publish.enqueue())
    assert record.state is State.FAILED
    assert record.errors is not None and "200ms" in record.errors[0]["message"]


@pytest.mark.req("J39")
async def test_an_interrupted_pipeline_goes_on_elsewhere(app: Dutiful) -> None:
    scene = Scene(app, retry=Retry(max_attempts=1))
    with pytest.raises(ShutdownTimeout):
        async with working(app) as worker:
            job = await scene.pipeline.enqueue()
            await scene.waits.wait()
            worker.abort(cleanup=5)
    phases = await phases_of(app, job)
    assert states(phases) == {"first": "completed", "second": "interrupted"}
    assert (phases["second"].attempt, (await job.record()).attempt) == (0, 0)
    scene.go.set()
    async with working(app):
        assert await job.result("20s") == "kept"
    assert scene.ran == ["first", "second", "second", "third"]


async def test_a_lost_claim_cannot_go_on_with_its_pipeline(app: Dutiful) -> None:
    publish, ran = app.pipeline("publish"), []

    @publish.phase
    async def first(ctx: Context) -> None:
        ran.append("first")
        if len(ran) > 1:
            return
        record = await app.find(ctx.job_id)
        store = await store_of(app)
        assert record is not None and record.worker_id is not None
        (held,) = await store.claims.held_by(record.worker_id)
        # Another worker takes it for dead, and its job away.
        assert await store.claims.settle([decide(held, Lost(), Policy(), 5, lambda low, high: low)]) == []

    @publish.phase
    async def second() -> str:
        ran.append("second")
        return "once"

    async with working(app):
        assert await (await publish.enqueue()).result("20s") == "once"
    assert ran == ["first", "first", "second"]


@sqlite
async def test_a_phase_begins_when_the_store_is_back(app: Dutiful) -> None:
    scene = Scene(app)
    async with faulty_store(app) as (client, store), working(app, client):
        store.away = True
        job = await scene.pipeline.enqueue()

        async def tried() -> bool:
            return store.reports > 1

        await eventually(tried)
        assert scene.ran == []
        store.away = False
        scene.go.set()
        assert await job.result("20s") == "kept"


@sqlite
async def test_many_pipelines_share_their_round_trips(app: Dutiful) -> None:
    publish = app.pipeline("publish")
    for number in range(4):

        @publish.phase(name=f"step {number}")
        async def step() -> None:
            await asyncio.sleep(0)

    async with faulty_store(app) as (client, store):
        jobs = await publish.enqueue_many({} for _ in range(50))
        async with working(app, client):
            for job in jobs:
                await job.result("20s")
        assert store.reports < 50 * 5 / 2
