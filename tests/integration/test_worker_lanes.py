"""Which job runs where and when: lanes, order, pauses, kinds that a worker does not know."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from running_workers import EVERYWHERE, eventually, final, state, working

from dutiful import Context, Dutiful, Fixed, Retry, State, UnknownKind
from dutiful.kind import Kind
from dutiful.store.control import Pause, PauseScope

everywhere = pytest.mark.parametrize("app_url", EVERYWHERE, indirect=True)


class Plug:
    """A job that holds its slot until it is pulled."""

    def __init__(self, app: Dutiful, queue: str = "default") -> None:
        self.running = 0
        self.full = asyncio.Event()
        self.pulled = asyncio.Event()
        self.slots = 1

        @app.job(name=f"plug {queue}", queue=queue)
        async def plug() -> None:
            self.running += 1
            if self.running >= self.slots:
                self.full.set()
            await self.pulled.wait()

        self.kind = plug

    async def fill(self, slots: int, more: int = 0) -> None:
        """Enqueue until `slots` run, and `more` that wait behind them."""
        self.slots = slots
        await self.kind.enqueue_many([{}] * (slots + more))
        await asyncio.wait_for(self.full.wait(), 20)


@pytest.fixture
async def note(app: Dutiful) -> AsyncIterator["Kind[[str], None]"]:
    @app.job
    async def note(name: str) -> None:
        ORDER.append(name)

    ORDER.clear()
    yield note


ORDER: list[str] = []


@pytest.mark.req("L2", "L3", "L5")
async def test_slow_work_cannot_hold_up_the_fast_lane(app: Dutiful) -> None:
    slow = Plug(app)

    @app.job(queue="fast")
    async def quick(n: int) -> int:
        return n

    async with working(app):
        await slow.fill(5, more=20)  # every general slot, and a queue behind them
        jobs = await quick.enqueue_many([{"n": n} for n in range(10)])
        assert [await job.result("20s") for job in jobs] == list(range(10))
        assert slow.running == 5
        slow.pulled.set()


@pytest.mark.req("L3")
async def test_the_general_lane_takes_any_kind_and_the_fast_lane_only_its_own(app: Dutiful) -> None:
    fast, other = Plug(app, "fast"), Plug(app, "anything")
    async with working(app) as worker:
        await fast.fill(8, more=5)  # three in the fast lane, five in the general one
        assert {lane.name: lane.busy for lane in worker.lanes} == {"fast": 3, "general": 5}
        fast.pulled.set()
        await other.fill(5, more=5)
        assert {lane.name: lane.busy for lane in worker.lanes} == {"fast": 0, "general": 5}
        other.pulled.set()


@pytest.mark.req("W21")
@everywhere
async def test_lower_priority_numbers_run_first_and_equals_in_order_of_arrival(
    app: Dutiful, note: Kind[[str], None]
) -> None:
    app.configure(lanes="one=1:*")
    for name, priority in [("c1", 200), ("b1", 100), ("a1", 5), ("b2", 100), ("c2", 200), ("a2", 5), ("z", 0)]:
        await note.options(priority=priority).enqueue(name)
    async with working(app):
        last = await note.options(priority=1_000).enqueue("last")
        await last.result("20s")
    assert ORDER == ["z", "a1", "a2", "b1", "b2", "c1", "c2", "last"]


async def test_a_scheduled_job_runs_when_it_is_due_and_not_before(app: Dutiful, note: Kind[[str], None]) -> None:
    async with working(app):
        far = await note.options(delay="1h").enqueue("far")
        soon = await note.options(delay="150ms").enqueue("soon")
        record = await final(app, soon)
    assert record.started_at is not None and record.run_at is not None and record.started_at >= record.run_at
    assert ORDER == ["soon"] and await state(app, far) is State.SCHEDULED


async def test_a_dependent_job_runs_after_all_that_it_needs(app: Dutiful, note: Kind[[str], None]) -> None:
    gate = Plug(app)
    async with working(app):
        needed = await gate.kind.enqueue()
        also = await note.enqueue("also needed")
        third = await note.options(depends_on=[needed, also]).enqueue("third")
        await also.result("20s")
        assert await state(app, third) is State.BLOCKED
        gate.pulled.set()
        await third.result("20s")
    assert ORDER == ["also needed", "third"]


async def test_a_job_whose_need_failed_is_cancelled(app: Dutiful, note: Kind[[str], None]) -> None:
    needed = await note.options(delay="1h").enqueue("never")
    waits = await note.options(depends_on=needed).enqueue("neither")
    await needed.cancel()
    async with working(app):
        record = await final(app, waits)
    assert record.state is State.CANCELLED and record.errors is not None and ORDER == []
    assert "it depends on" in record.errors[0]["message"]


@everywhere
async def test_a_kind_that_the_worker_does_not_know_is_left_for_others(
    app: Dutiful, note: Kind[[str], None], app_url: str
) -> None:
    newer = Dutiful(app_url)

    @newer.job
    async def unheard_of() -> None: ...

    async with newer:
        stranger = await unheard_of.options(priority=0).enqueue()
        async with working(app):
            jobs = await note.enqueue_many([{"name": str(n)} for n in range(20)])
            for job in jobs:
                await job.result("20s")
        record = await newer.find(stranger.id)
    assert record is not None and (record.state, record.attempt) == (State.READY, 0)


@pytest.mark.req("L67")
async def test_a_worker_can_take_a_subset_of_kinds(app: Dutiful, note: Kind[[str], None]) -> None:
    @app.job
    async def other() -> None: ...

    app.configure(kinds="note")
    waits = await other.enqueue()
    async with working(app):
        await (await note.enqueue("mine")).result("20s")
    assert await state(app, waits) is State.READY


async def test_a_subset_with_a_kind_that_is_not_there_is_refused(app: Dutiful, note: Kind[[str], None]) -> None:
    app.configure(kinds="note,nope")
    with pytest.raises(UnknownKind, match="'nope'; this app has: note"):
        async with working(app):
            pass


@pytest.mark.req("L94")
@pytest.mark.parametrize(
    ("scope", "name"), [(PauseScope.QUEUE, "default"), (PauseScope.KIND, "note"), (PauseScope.LANE, "general")]
)
async def test_what_is_paused_does_not_start_until_it_is_resumed(
    app: Dutiful, note: Kind[[str], None], scope: PauseScope, name: str
) -> None:
    @app.job(queue="fast")
    async def other() -> str:
        return "runs"

    app.configure(poll="200ms")
    store = (await app.client()).store
    before = await note.enqueue("before the pause")
    assert await store.control.pause(Pause(scope, name, datetime.now(UTC), "ops"))
    after = await note.enqueue("after the pause")
    async with working(app):
        for _ in range(3):
            assert await (await other.enqueue()).result("20s") == "runs"
        assert ORDER == [] and not (await state(app, before)).final and not (await state(app, after)).final
        assert await store.control.resume(scope, name)
        await before.result("20s")
        await after.result("20s")
    assert sorted(ORDER) == ["after the pause", "before the pause"]


@everywhere
async def test_a_job_may_enqueue_others_and_wait_for_them(app: Dutiful) -> None:
    @app.job
    async def leaf(n: int) -> int:
        return n

    @app.job
    async def tree(depth: int) -> int:
        if depth == 0:
            return 1
        inner = await asyncio.gather(*(tree.options(priority=100 - depth).enqueue(depth - 1) for _ in range(2)))
        leaves = await leaf.enqueue_many([{"n": 1}] * 2)
        return sum([await job.result("20s") for job in inner]) + sum([await job.result("20s") for job in leaves])

    async with working(app):
        assert await (await tree.enqueue(1)).result("20s") == 4


@pytest.mark.req("W24")
@everywhere
async def test_workers_share_the_work_and_run_nothing_twice(app: Dutiful) -> None:
    ran: list[int] = []

    @app.job
    async def count(n: int) -> None:
        ran.append(n)
        await asyncio.sleep(0)

    await count.enqueue_many([{"n": n} for n in range(600)])
    client = await app.client()
    async with working(app), working(app), working(app):
        rest = await count.enqueue_many([{"n": n} for n in range(600, 1_000)])

        async def all_done() -> bool:
            return len(await client.store.queries.outcomes([job.id for job in rest])) == len(rest) and len(ran) >= 1_000

        await eventually(all_done)
        seen = await client.store.workers.all()
    assert sorted(ran) == list(range(1_000)) and len(seen) == 3
    assert await client.store.workers.all() == []


async def test_a_worker_gets_a_hint_of_a_job_without_polling(app: Dutiful, note: Kind[[str], None]) -> None:
    app.configure(poll="1h")
    async with working(app):
        for n in range(3):
            await (await note.enqueue(str(n))).result("20s")
        many = await note.enqueue_many([{"name": "many"}] * 3)
        for job in many:
            await job.result("20s")
    assert ORDER == ["0", "1", "2", "many", "many", "many"]


async def test_a_job_in_a_new_queue_is_hinted_at_too(app: Dutiful, note: Kind[[str], None]) -> None:
    app.configure(poll="1h")
    async with working(app):
        await (await note.options(queue="never seen", priority=3).enqueue("there")).result("20s")
    assert ORDER == ["there"]


async def test_a_job_to_be_tried_again_at_once_does_not_wait_for_a_poll(app: Dutiful) -> None:
    app.configure(poll="1h")

    @app.job(retry=Retry(max_attempts=20, backoff=Fixed(0)))
    async def shaky(ctx: Context) -> int:
        if ctx.attempt < 20:
            raise LookupError("not yet")
        return ctx.attempt

    async with working(app):
        assert await (await shaky.enqueue()).result("20s") == 20


async def test_a_retry_that_is_due_soon_does_not_wait_for_a_poll(app: Dutiful) -> None:
    app.configure(poll="1h")

    @app.job(retry=Retry(max_attempts=5, backoff=Fixed("10ms")))
    async def shaky(ctx: Context) -> int:
        if ctx.attempt < 5:
            raise LookupError("not yet")
        return ctx.attempt

    async with working(app):
        assert await (await shaky.enqueue()).result("20s") == 5


async def test_a_jobs_own_number_of_attempts_is_heeded(app: Dutiful) -> None:
    @app.job(retry=Retry(max_attempts=5, backoff=Fixed(0)))
    async def shaky() -> None:
        raise LookupError("never")

    async with working(app):
        records = [await final(app, await shaky.options(max_attempts=n).enqueue()) for n in (1, 3)]
    assert [(record.state, record.attempt) for record in records] == [(State.FAILED, 1), (State.FAILED, 3)]
