"""Lanes that take some kinds, tags or tenants only: their slots are there for them, whatever else waits."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from running_workers import eventually, running

from dutiful import Context, Dutiful, Inject, LaneSettings, UsageError

pytestmark = pytest.mark.req("L101")
OTHERS = 30


class Jobs:
    """Two kinds; those of `slow` do not end before they may."""

    def __init__(self, app: Dutiful) -> None:
        self.go = asyncio.Event()
        self.ran: Counter[str | None] = Counter()

        @app.job
        async def slow(ctx: Context) -> None:
            self.ran["slow begins"] += 1
            await self.go.wait()
            self.ran["slow ends"] += 1

        @app.job(tags=["gpu", "large"])
        async def render(ctx: Context) -> None:
            self.ran["render"] += 1
            self.ran[ctx.tenant] += 1

        self.slow, self.render = slow, render

    async def until(self, what: str, count: int) -> None:
        async def look() -> bool:
            return self.ran[what] >= count

        await eventually(look)


@pytest.mark.parametrize("narrowed", [{"kinds": ("render",)}, {"tags": ("gpu",)}], ids=["kind", "tag"])
async def test_a_lane_by_kind_or_tag_has_slots_for_these_behind_any_others(app: Dutiful, narrowed: Any) -> None:
    app.configure(lanes=(LaneSettings("gpu", 1, **narrowed), LaneSettings("rest", 2, kinds=("slow",))))
    jobs = Jobs(app)
    async with app.opened():
        await jobs.slow.enqueue_many({} for _ in range(OTHERS))
        await jobs.render.enqueue_many({} for _ in range(3))
        async with running(app) as worker:
            await jobs.until("render", 3)
            assert jobs.ran["slow ends"] == 0
            await jobs.render.enqueue()
            await jobs.until("render", 4)
            assert {lane.name: lane.busy for lane in worker.lanes}["gpu"] == 0
            jobs.go.set()
            await jobs.until("slow ends", OTHERS)


async def test_a_lane_by_tenant_takes_no_other_jobs(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("acme", 1, tenants=("acme",)), LaneSettings("rest", 1, kinds=("slow",))))
    jobs = Jobs(app)
    async with app.opened() as client:
        await jobs.render.options(tenant="zeta").enqueue_many({} for _ in range(OTHERS))
        await jobs.render.options(tenant="acme").enqueue_many({} for _ in range(3))
        async with running(app):
            await jobs.until("acme", 3)
            (worker,) = await client.store.workers.all()
            assert worker.lanes["acme"].tenants == ("acme",) and worker.lanes["rest"].kinds == ("slow",)
    assert jobs.ran["zeta"] == 0


async def test_a_fair_lane_can_be_narrowed(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("gpu", 2, fair=True, kinds=("render",)),))
    jobs = Jobs(app)
    async with app.opened():
        await jobs.slow.options(tenant="acme").enqueue_many({} for _ in range(OTHERS))
        await jobs.render.options(tenant="acme").enqueue_many({} for _ in range(3))
        async with running(app):
            await jobs.until("render", 3)
    assert jobs.ran["slow begins"] == 0


@pytest.mark.parametrize(
    ("lane", "message"),
    [
        (LaneSettings("gpu", 1, kinds=("rendr",)), "lane 'gpu' names the kind 'rendr'; this worker runs: render, slow"),
        (LaneSettings("gpu", 1, tags=("cpu",)), "names the tag 'cpu'; the kinds of this worker have: gpu, large"),
        (
            LaneSettings("gpu", 1, tenants=("zeta",)),
            "names the tenant 'zeta', but this worker takes only",
        ),
    ],
)
async def test_a_worker_whose_lane_names_what_it_does_not_run_does_not_start(
    app: Dutiful, lane: LaneSettings, message: str
) -> None:
    app.configure(lanes=(lane,), claim_tenants=("acme",))
    Jobs(app)
    with pytest.raises(UsageError, match=message):
        async with running(app):
            pass


def test_tags_that_are_no_list_of_names_are_refused(app: Dutiful) -> None:
    with pytest.raises(UsageError, match="must be a list of names"):
        app.job(tags="gpu")


async def test_a_lane_by_resource_takes_the_kinds_whose_handlers_ask_for_it(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("gpu", 1, resources=("gpu",)), LaneSettings("rest", 2, kinds=("slow",))))
    jobs = Jobs(app)

    @app.resource
    def gpu() -> str:
        return "a device"

    @app.job
    async def train(device: str = Inject("gpu")) -> str:
        return device

    async with running(app):
        await jobs.slow.enqueue_many({} for _ in range(OTHERS))
        assert await (await train.enqueue()).result(60) == "a device"
        jobs.go.set()


async def test_a_resource_that_no_handler_asks_for_is_an_error(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("gpu", 1, resources=("tpu",)),))

    @app.resource
    def gpu() -> str:
        return "a device"

    @app.job
    async def train(device: str = Inject("gpu")) -> None: ...

    with pytest.raises(UsageError, match="lane 'gpu' names the resource 'tpu'; the kinds of this worker ask for: gpu"):
        async with running(app):
            pass


async def test_an_idle_lane_lends_slots_and_has_them_back_within_a_job(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("gpu", 3, tags=("gpu",), lend=2), LaneSettings("rest", 1, kinds=("long",))))
    jobs = Jobs(app)
    gate = asyncio.Semaphore(0)

    @app.job(name="long")
    async def long(ctx: Context) -> None:
        jobs.ran["long begins"] += 1
        await gate.acquire()
        jobs.ran["long ends"] += 1

    @app.job(tags=["gpu"])
    async def train(ctx: Context) -> None:
        jobs.ran["train begins"] += 1
        await jobs.go.wait()

    async with running(app) as worker:
        backlog = await long.enqueue_many({} for _ in range(10))
        await jobs.until("long begins", 3)
        lanes = {lane.name: lane for lane in worker.lanes}
        assert (lanes["gpu"].busy, lanes["rest"].busy) == (2, 1), "one slot is never lent"

        await train.enqueue_many({} for _ in range(3))
        await jobs.until("train begins", 1)
        assert jobs.ran["long begins"] == 3
        for ended in range(1, 8):  # each end gives a slot back to its lane, or lets the other's next begin
            gate.release()
            await jobs.until("long ends", ended)
        await jobs.until("train begins", 3)
        assert lanes["gpu"].busy == 3
        jobs.go.set()
        for _ in range(10):
            gate.release()
        await asyncio.gather(*(job.result(60) for job in backlog))


def test_a_lane_that_cannot_lend_is_refused() -> None:
    for lanes, message in (
        ("gpu=2:*:lend=3", "lends 3 of its 2 slots: it must be from 0 to these"),
        ("gpu=2:*:lend=1,fair", "is fair, and lends no slots"),
        ("gpu=2:*:lend=all", "has an option 'lend=all'; there are: .*lend=NUMBER"),
    ):
        with pytest.raises(UsageError, match=message):
            Dutiful(lanes=lanes).settings.lanes  # noqa: B018


async def test_a_job_that_no_lane_takes_says_so(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("gpu", 1, tags=("gpu",)),))

    @app.job(tags=["gpu"])
    async def render() -> None: ...

    @app.job
    async def other() -> None: ...

    async with app, app.embedded():
        waiting = await other.enqueue()
        await (await render.enqueue()).result("20s")
        why = await (await app.operator()).jobs.explain(waiting.id)
    assert "no lane of the live workers that serve its queue 'default' takes its kind" in why.sentence
    assert "--lane 'more=1:default'" in (why.remedy or "")
