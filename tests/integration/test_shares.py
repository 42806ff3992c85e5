"""Fair lanes with real workers: a tenant's jobs start though another's backlog and long jobs are there before them."""

import asyncio
from collections import Counter
from typing import Any

from running_workers import eventually, running

from dutiful import Context, Dutiful
from dutiful.declare.lane import LaneSettings

FLOOD = 60


class Gated:
    """A kind whose jobs do not end before they may, and who runs how many."""

    def __init__(self, app: Dutiful) -> None:
        self.running: Counter[str | None] = Counter()
        self.started: list[str | None] = []
        self.go: dict[str | None, asyncio.Semaphore] = {}

        @app.job(timeout="never", on_crash="fail")  # so that nothing is claimed ahead
        async def work(ctx: Context) -> None:
            self.running[ctx.tenant] += 1
            self.started.append(ctx.tenant)
            await self.gate(ctx.tenant).acquire()
            self.running[ctx.tenant] -= 1

        self.kind = work

    def gate(self, tenant: str | None) -> asyncio.Semaphore:
        return self.go.setdefault(tenant, asyncio.Semaphore(0))

    async def enqueue(self, count: int, tenant: str | None, **options: Any) -> list[Any]:
        return [await self.kind.options(tenant=tenant, **options).enqueue() for _ in range(count)]

    def release(self, tenant: str | None, count: int) -> None:
        for _ in range(count):
            self.gate(tenant).release()

    async def until(self, **running: int) -> None:
        async def look() -> bool:
            return {k: v for k, v in self.running.items() if v} == {k: v for k, v in running.items() if v}

        try:
            await eventually(look)
        except AssertionError:
            raise AssertionError(f"{running} are to run, and {dict(self.running)} do") from None

    async def until_started(self, count: int) -> None:
        async def look() -> bool:
            return len(self.started) >= count

        await eventually(look)


async def test_a_tenant_that_comes_new_finds_a_slot_though_another_floods_the_lane(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("all", 4, fair=True),))
    jobs = Gated(app)
    await jobs.enqueue(FLOOD, "flood")

    async with running(app):
        await jobs.until(flood=3)
        quiet = await jobs.enqueue(2, "quiet")
        await jobs.until(flood=3, quiet=1)
        jobs.release("flood", 1)  # its slot is kept for the next tenant that comes
        await jobs.until(flood=2, quiet=1)
        new = await jobs.enqueue(1, "new")
        await jobs.until(flood=2, quiet=1, new=1)
        jobs.release("new", 1)
        await new[0].result(60)
        assert jobs.running["flood"] == 2, "the slot is kept again"
        jobs.release("quiet", 2)
        for job in quiet:
            await job.result(60)
        await jobs.until(flood=3)
        jobs.release("flood", FLOOD)
        await jobs.until_started(FLOOD + 3)
    assert Counter(jobs.started) == {"flood": FLOOD, "quiet": 2, "new": 1}


async def test_tenants_have_slots_by_their_weights_and_a_change_is_noticed_while_it_runs(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("all", 8, fair=True, reserve=0),))
    jobs = Gated(app)
    for tenant in ("acme", "zeta"):
        await jobs.enqueue(FLOOD, tenant)

    async with running(app), app:
        await jobs.until(acme=4, zeta=4)
        await (await app.operator()).shares.set("acme", 3)
        for _ in range(20):  # until it has looked again, and for some turns more
            jobs.release("zeta", 1)
            await jobs.until_started(len(jobs.started) + 1)
        await jobs.until(acme=6, zeta=2)
        for tenant in ("acme", "zeta"):
            jobs.release(tenant, FLOOD)
        await jobs.until_started(2 * FLOOD)


async def test_a_tenants_own_jobs_start_by_priority_and_those_without_a_tenant_have_a_share(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("all", 1, fair=True),))
    order: list[str] = []

    @app.job
    async def note(name: str) -> None:
        order.append(name)

    async with app.opened():
        for name, tenant, priority in (
            ("a1", "acme", 100), ("a2", "acme", 100), ("a0", "acme", 10),
            ("z1", "zeta", 500), ("z2", "zeta", 500), ("n1", None, 100), ("n2", None, 100),
        ):  # fmt: skip
            await note.options(tenant=tenant, priority=priority).enqueue(name=name)
        async with running(app):
            await eventually(lambda: _complete(order, 7))
    for names in (["a0", "a1", "a2"], ["z1", "z2"], ["n1", "n2"]):
        assert [name for name in order if name in names] == names
    assert {name[0] for name in order[:3]} == {"a", "z", "n"}, "one of each comes first"


async def _complete(order: list[str], count: int) -> bool:
    return len(order) == count


async def test_short_jobs_of_many_tenants_all_run_in_a_fair_lane(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("all", 5, fair=True),))
    done: Counter[str | None] = Counter()

    @app.job
    async def note(ctx: Context) -> None:
        done[ctx.tenant] += 1

    async with app.opened():
        for n in range(30):
            await note.options(tenant=f"t{n}").enqueue_many({} for _ in range(10))
        await note.options(tenant="flood").enqueue_many({} for _ in range(1_000))
        async with running(app):
            await eventually(lambda: _total(done, 1_300))
    assert done["flood"] == 1_000 and done["t7"] == 10


async def _total(done: Counter[str | None], count: int) -> bool:
    return done.total() == count
