"""Sleeps and waits for events inside a job, with real workers: they need no slot and spend no attempt."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from running_workers import clocked, eventually, final, working
from stepping import is_in, steps_of, waits

from dutiful import Context, Dutiful, EventTimeout, Fixed, Retry, State, StepState
from dutiful.declare.lane import LaneSettings
from dutiful.testing import Clock

AT_ONCE = Retry(max_attempts=5, backoff=Fixed("0s"))
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


async def test_a_sleep_needs_no_slot_and_spends_no_attempt(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("all", 1),))
    calls: list[str] = []

    @app.job
    async def slow(ctx: Context) -> int:
        await ctx.step("first", calls.append, "first")
        await ctx.sleep("1h", name="rest")
        await ctx.step("second", calls.append, "second")
        return ctx.attempt

    @app.job
    async def quick() -> str:
        return "done"

    clock = Clock()
    async with clocked(app, clock) as client, working(app, client):
        job = await slow.enqueue()
        await eventually(lambda: is_in(app, job, State.SCHEDULED))
        assert await (await quick.enqueue()).result("20s") == "done"
        explained = await (await app.operator()).jobs.explain(job.id)
        assert explained.code == "sleeps" and "'rest'" in explained.sentence
        clock.advance("1h")
        assert await job.result("20s") == 1

    assert calls == ["first", "second"]
    record = await app.find(job.id)
    assert record is not None and record.error is None


async def test_a_wait_ends_with_its_event_and_needs_no_slot(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("all", 1),))

    @app.job
    async def order(ctx: Context, n: int) -> Any:
        return await ctx.wait_for_event("paid", str(n), timeout="1h")

    async with working(app):
        jobs = [await order.enqueue(n=1), await order.enqueue(n=1), await order.enqueue(n=2)]
        for job in jobs:
            await waits(app, job)
        explained = await (await app.operator()).jobs.explain(jobs[0].id)
        assert explained.code == "event" and "'paid' with the key '1', until" in explained.sentence
        await app.send_event("paid", "1", {"amount": 5})
        assert [await job.result("20s") for job in jobs[:2]] == [{"amount": 5}] * 2
        assert await is_in(app, jobs[2], State.BLOCKED)
        assert await jobs[2].cancel()
        assert (await final(app, jobs[2])).state is State.CANCELLED


async def test_an_event_that_is_sent_first_is_found_without_a_wait(app: Dutiful) -> None:
    @app.job
    async def order(ctx: Context) -> Any:
        return [await ctx.wait_for_event("paid", "7", name=name) for name in ("a", "b")]

    async with app:
        await app.send_event("paid", "7", 1)
        await app.send_event("paid", "7", 2)
        async with working(app):
            job = await order.enqueue()
            assert await job.result("20s") == [1, 2]
    assert await (await app.client()).store.queries.attempts(job.id) == []


async def test_an_event_of_a_tenant_is_its_own(app: Dutiful) -> None:
    @app.job
    async def order(ctx: Context) -> Any:
        return await ctx.wait_for_event("paid", "7")

    async with working(app):
        job = await app.tenant("acme").enqueue(order)
        await waits(app, job)
        await app.send_event("paid", "7", "of no tenant")
        await app.tenant("globex").send_event("paid", "7", "of globex")
        await app.tenant("acme").send_event("paid", "7", "of acme")
        assert await job.result("20s") == "of acme"


async def test_a_wait_that_takes_too_long_raises(app: Dutiful) -> None:
    @app.job
    async def order(ctx: Context, handle: bool) -> str:
        try:
            await ctx.wait_for_event("paid", "7", timeout="1h")
        except EventTimeout:
            if not handle:
                raise
        return "not paid"

    clock = Clock()
    async with clocked(app, clock) as client, working(app, client):
        handled, unhandled = await order.enqueue(handle=True), await order.enqueue(handle=False)
        for job in (handled, unhandled):
            await waits(app, job)
        clock.advance("1h")
        assert await handled.result("20s") == "not paid"
        record = await final(app, unhandled)
    assert (record.state, record.attempt) == (State.FAILED, 1)
    assert record.error is not None and "no event 'paid' with the key '7' came within 1h" in record.error["message"]
    assert (await steps_of(app, handled))["paid"].state is StepState.TIMED_OUT


async def test_a_handler_that_swallows_the_wait_waits_all_the_same(app: Dutiful) -> None:
    later: list[str] = []

    @app.job
    async def order(ctx: Context) -> Any:
        try:
            return await ctx.wait_for_event("paid", "7")
        except BaseException:
            await ctx.step("later", later.append, "later")
        return "swallowed"

    async with working(app):
        job = await order.enqueue()
        await waits(app, job)
        await app.send_event("paid", "7", "came")
        assert await job.result("20s") == "came"
    assert later == []


@pytest.mark.parametrize("kind", ["sleep", "wait"])
@pytest.mark.parametrize("turned", [False, True])
async def test_the_first_of_several_waits_that_is_over_wakes_the_job(app: Dutiful, kind: str, turned: bool) -> None:
    over: list[str] = []

    @app.job
    async def order(ctx: Context) -> Any:
        async def short() -> str:
            if kind == "sleep":
                await ctx.sleep("1h", name="rest")
            else:
                with pytest.raises(EventTimeout):
                    await ctx.wait_for_event("paid", "7", timeout="1h")
            over.append(kind)
            return kind

        several = [short(), ctx.wait_for_event("sent", "7")]
        return sorted(await asyncio.gather(*(reversed(several) if turned else several)))

    clock = Clock()
    async with clocked(app, clock) as client, working(app, client):
        job = await order.enqueue()
        await waits(app, job)
        assert sorted(await steps_of(app, job)) == sorted(["rest" if kind == "sleep" else "paid", "sent"])
        clock.advance("1h")
        await eventually(lambda: asyncio.sleep(0, bool(over)))
        await waits(app, job)
        await app.send_event("sent", "7", "a")
        assert await job.result("20s") == ["a", kind]


async def test_a_sleep_until_a_time_keeps_the_time_that_is_stored(app: Dutiful) -> None:
    lengths: list[timedelta] = []
    clock = Clock()

    @app.job
    async def order(ctx: Context) -> str:
        lengths.append(until - clock.now())
        await ctx.sleep(lengths[-1], name="rest")
        return "rested"

    async with clocked(app, clock) as client, working(app, client):
        until = clock.now() + timedelta(hours=1)
        job = await order.enqueue()
        await eventually(lambda: is_in(app, job, State.SCHEDULED))
        clock.advance("2h")
        assert await job.result("20s") == "rested"
    assert lengths[-1] < timedelta(0)
