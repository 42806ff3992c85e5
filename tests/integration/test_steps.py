"""Steps inside a job with real workers: results are kept, waits need no slot, and nothing is lost between attempts."""

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from running_workers import final, working
from stepping import steps_of, waits

from dutiful import Context, Dutiful, Fixed, Retry, State, StepState, StoreUnavailable, UsageError
from dutiful.client.client import Client
from dutiful.declare.lane import LaneSettings
from dutiful.store import Store
from dutiful.store.steps import StepMark, StepWait, Unstored
from dutiful.testing import inline

AT_ONCE = Retry(max_attempts=5, backoff=Fixed("0s"))
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


@dataclass
class Charge:
    id: int
    at: datetime


async def test_a_retry_skips_the_steps_that_are_done(app: Dutiful) -> None:
    calls: list[str] = []

    async def charge(order: int) -> Charge:
        calls.append(f"charge {order}")
        return Charge(order, datetime(2030, 1, 1, tzinfo=UTC))

    def ship(order: int, *, fast: bool) -> tuple[int, bool]:
        assert threading.current_thread() is not threading.main_thread()
        calls.append("ship")
        return order, fast

    @app.job(retry=AT_ONCE)
    async def order(ctx: Context, n: int) -> Any:
        charged = await ctx.step("charge", charge, n)
        shipped = await ctx.step("ship", ship, n, fast=True)
        assert charged == Charge(7, datetime(2030, 1, 1, tzinfo=UTC)) and shipped == (7, True)
        if ctx.attempt < 3:
            raise RuntimeError("not yet")
        return await ctx.step("none", partial(calls.append, "none"))

    async with working(app):
        job = await order.enqueue(n=7)
        assert await job.result("20s") is None

    assert calls == ["charge 7", "ship", "none"]
    steps = await steps_of(app, job)
    assert [(s.name, s.position, s.code.rsplit(".")[-1]) for s in steps.values()] == [
        ("charge", 0, "charge"), ("ship", 1, "ship"), ("none", 2, ["list", "append"][-1]),
    ]  # fmt: skip
    assert steps["charge"].result == {"id": 7, "at": "2030-01-01T00:00:00Z"}


async def test_a_blocking_handler_has_steps(app: Dutiful) -> None:
    calls: list[str] = []

    def charge(n: int) -> Charge:
        calls.append("charge")
        return Charge(n, datetime(2030, 1, 1, tzinfo=UTC))

    async def other() -> None: ...

    @app.job(retry=AT_ONCE)
    def order(ctx: Context, n: int) -> Any:
        charged = ctx.step_sync("charge", charge, n)
        with pytest.raises(UsageError, match="cannot await"):
            _ = ctx.step_sync("other", other)
        ctx.sleep_sync("0s", name="rest")
        paid = ctx.wait_for_event_sync("paid", str(n))
        if ctx.attempt == 1:
            raise RuntimeError("not yet")
        return [charged.id, paid]

    async with working(app):
        job = await order.enqueue(n=7)
        await waits(app, job)
        app.send_event_sync("paid", "7", {"amount": 5})
        assert await job.result("20s") == [7, {"amount": 5}]
    app.close_sync()
    assert calls == ["charge"]


async def test_a_step_that_fails_is_called_again(app: Dutiful) -> None:
    calls: list[int] = []

    async def flaky() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("once")
        return len(calls)

    @app.job(retry=AT_ONCE)
    async def order(ctx: Context) -> int:
        return await ctx.step("flaky", flaky)

    async with working(app):
        assert await (await order.enqueue()).result("20s") == 2


async def test_steps_may_run_at_once(app: Dutiful) -> None:
    async def double(n: int) -> int:
        return 2 * n

    @app.job(retry=AT_ONCE)
    async def order(ctx: Context) -> list[int]:
        found = await asyncio.gather(*(ctx.step(f"double {n}", double, n) for n in range(20)))
        if ctx.attempt == 1:
            raise RuntimeError("not yet")
        return list(found)

    async with working(app):
        assert await (await order.enqueue()).result("20s") == [2 * n for n in range(20)]


@sqlite
async def test_a_name_that_is_used_twice_is_an_error(app: Dutiful) -> None:
    calls: list[int] = []

    @app.job(retry=Retry(max_attempts=1))
    async def order(ctx: Context) -> None:
        await ctx.step("charge", calls.append, 1)
        await ctx.step("charge", calls.append, 1)

    async with working(app):
        job = await order.enqueue()
        record = await final(app, job)
    assert record.state is State.FAILED and record.error is not None
    assert "step 'charge' is used twice" in record.error["message"]
    assert calls == [1]


@sqlite
@pytest.mark.parametrize("change", ["function", "arguments", "kind"])
async def test_a_step_that_was_stored_by_other_code_is_an_error(app: Dutiful, change: str) -> None:
    calls: list[str] = []

    def charge(n: int) -> None:
        calls.append("charge")

    def refund(n: int) -> None:
        calls.append("refund")

    @app.job(retry=Retry(max_attempts=2, backoff=Fixed("0s")))
    async def order(ctx: Context) -> None:
        if ctx.attempt == 1:
            await ctx.step("charge", charge, 1)
            raise RuntimeError("the code is changed now")
        match change:
            case "function":
                await ctx.step("charge", refund, 1)
            case "arguments":
                await ctx.step("charge", charge, 2)
            case _:
                await ctx.sleep("1s", name="charge")

    async with working(app):
        job = await order.enqueue()
        record = await final(app, job)
    assert record.state is State.FAILED and record.error is not None
    assert record.error["message"].startswith("step 'charge' was stored as ") and "rename" in record.error["message"]
    assert calls == ["charge"]
    assert (await steps_of(app, job))["charge"].state is StepState.DONE


@sqlite
async def test_bad_names_and_results_are_errors(app: Dutiful) -> None:
    problems: list[str] = []

    async def too_much() -> str:
        return "x" * 2_000_000

    @app.job
    async def order(ctx: Context) -> None:
        for attempt in (
            ctx.step("", too_much),
            ctx.step("large", too_much),
            ctx.step("odd", lambda: object()),
            ctx.sleep("soon", name="rest"),
            ctx.wait_for_event("paid", ""),
            ctx.wait_for_event("paid", 7),  # type: ignore[arg-type]
        ):
            with pytest.raises(UsageError) as caught:
                await attempt
            problems.append(str(caught.value))

    async with working(app):
        job = await order.enqueue()
        await job.result("20s")
    assert [word in text for word, text in zip(
        ("step", "more than the limit", "cannot be written", "sleep 'soon'", "key ''", "key 7"), problems, strict=True
    )] == [True] * 6  # fmt: skip
    assert await steps_of(app, job) == {}
    wrong: list[dict[str, Any]] = [{"name": ""}, {"key": "\0"}, {"data": object()}, {"keep": "long"}, {"tenant": "*"}]
    for bad in wrong:
        with pytest.raises(UsageError):
            await app.send_event(**({"name": "paid", "key": "7"} | bad))


async def test_a_phase_has_steps_of_its_own(app: Dutiful) -> None:
    publish, calls = app.pipeline("publish", retry=AT_ONCE), list[str]()

    @publish.phase
    async def first(ctx: Context) -> None:
        await ctx.step("call", calls.append, "first")
        await ctx.wait_for_event("go", "7")

    @publish.phase
    def second(ctx: Context) -> None:
        ctx.step_sync("call", calls.append, "second")
        if ctx.attempt == 1:
            raise RuntimeError("not yet")

    async with working(app):
        job = await publish.enqueue()
        await waits(app, job)
        await app.send_event("go", "7")
        await job.result("20s")
    assert calls == ["first", "second"]
    assert sorted(await steps_of(app, job)) == ["first/call", "first/go", "second/call"]


class StepsAway:
    """A store whose steps can be away, and count their calls."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = False
        self.refused = asyncio.Event()
        self.calls: list[str] = []
        self.written: list[int] = []

    @property
    def steps(self) -> "StepsAway":
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def all(self, job_id: Any) -> Any:
        return await self._store.steps.all(job_id)

    async def load(self, job_ids: Any) -> Any:
        self._check("load")
        return await self._store.steps.load(job_ids)

    async def put(self, marks: list[StepMark]) -> Unstored:
        self._check("put")
        self.written.append(len(marks))
        return await self._store.steps.put(marks)

    async def wait(self, wait: StepWait) -> Any:
        self._check("wait")
        return await self._store.steps.wait(wait)

    async def deliver(self, limit: int) -> Any:
        return await self._store.steps.deliver(limit)

    def _check(self, call: str) -> None:
        self.calls.append(call)
        if self.away:
            self.refused.set()
            raise StoreUnavailable("the store is away")


async def test_steps_wait_for_a_store_that_is_away(app: Dutiful) -> None:
    calls: list[str] = []

    @app.job
    async def order(ctx: Context) -> Any:
        await ctx.step("first", calls.append, "first")
        store.away = True
        asyncio.get_running_loop().create_task(back())
        await ctx.step("second", calls.append, "second")
        return await ctx.wait_for_event("paid", "7")

    async def back() -> None:
        await store.refused.wait()
        store.away = False

    async with app.opened() as client:
        store = StepsAway(client.store)
        async with working(app, Client(store, client.delivery)):  # type: ignore[arg-type]
            job = await order.enqueue()
            await waits(app, job)
            await app.send_event("paid", "7", "came")
            assert await job.result("20s") == "came"
    assert calls == ["first", "second"]


@sqlite
async def test_steps_of_many_jobs_are_stored_together_and_other_jobs_read_none(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("all", 50),))
    began, go = asyncio.Semaphore(0), asyncio.Event()

    async def meet() -> None:
        began.release()
        await go.wait()

    @app.job
    async def order(ctx: Context) -> None:
        await ctx.step("meet", meet)

    @app.job
    async def plain() -> None: ...

    async with app.opened() as client:
        store = StepsAway(client.store)
        async with working(app, Client(store, client.delivery)):  # type: ignore[arg-type]
            await (await plain.enqueue()).result("20s")
            assert store.calls == []
            jobs = await order.enqueue_many([{}] * 50)
            for _ in jobs:
                await began.acquire()
            go.set()
            for job in jobs:
                await job.result("20s")
    assert sum(store.written) == 50
    assert len(store.written) <= 5


@sqlite
async def test_there_are_no_steps_in_inline_mode(app: Dutiful) -> None:
    @app.job
    async def order(ctx: Context) -> None:
        await ctx.step("charge", list)

    with inline(app), pytest.raises(UsageError, match="inline"):
        await order.enqueue()


@sqlite
async def test_a_claim_that_was_lost_between_two_steps_stores_nothing_more(app: Dutiful) -> None:
    seen: list[str] = []

    async def take_away(job_id: Any) -> None:
        store = (await app.client()).store
        held = await store.claims.held(job_id)
        assert held is not None
        if len(seen) == 1:
            await (await app.operator()).jobs.release(job_id, "for the test")

    @app.job
    async def order(ctx: Context) -> int:
        seen.append("attempt")
        await ctx.step("first", take_away, ctx.job_id)
        return len(seen)

    async with working(app):
        job = await order.enqueue()
        assert await job.result("20s") == 2
    assert (await steps_of(app, job))["first"].ended_at is not None
    assert timedelta(0) <= datetime.now(UTC) - (await steps_of(app, job))["first"].started_at
