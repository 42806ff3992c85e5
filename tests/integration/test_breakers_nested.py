"""Breakers inside breakers, and several at once in one job: each call counts, and none waits for itself."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from breaker_jobs import Service, breaker_of
from running_workers import clocked, eventually, final, state, working

from dutiful import Context, Dutiful, Retry, State
from dutiful.client.client import Client
from dutiful.core.breaker.state import BreakerState
from dutiful.operator import Operator
from dutiful.testing import Clock
from dutiful.worker.breakers import client as breaker_client

ONCE = Retry(max_attempts=1)
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime.now(UTC) + timedelta(days=1))


@pytest.fixture
async def client(app: Dutiful, clock: Clock) -> AsyncIterator[Client]:
    app.configure(lease="1d")
    async with clocked(app, clock) as client:
        yield client


@pytest.mark.req("L48", "L57")
@pytest.mark.parametrize("around", ["kind", "block"])
async def test_inner_calls_are_rejected_once_the_breaker_is_open_and_handled_failures_count(
    app: Dutiful, around: str
) -> None:
    service = Service(failing=True)
    app.breaker("grid", failures=3, open_for="1h")

    async def call_often(ctx: Context) -> None:
        for n in range(9):
            try:
                async with ctx.breaker("grid"):
                    service.call(n)
            except ConnectionError:
                pass

    @app.job(breaker="grid")
    async def kind(ctx: Context) -> None:
        await call_often(ctx)

    @app.job
    async def block(ctx: Context) -> None:
        async with ctx.breaker("grid"):
            await call_often(ctx)

    async with working(app):
        job = await app.enqueue(around)

        async def waits() -> bool:
            return await state(app, job) in (State.SCHEDULED, State.BLOCKED)

        await eventually(waits)
        assert service.calls == [0, 1, 2]
        found = await breaker_of(await app.client(), "grid")
        assert (found.state, found.failures, found.trips) == (BreakerState.OPEN, 3, 1)


@sqlite
async def test_the_outer_result_counts_only_if_there_was_no_inner_one(app: Dutiful) -> None:
    app.breaker("grid", failures=9)

    @app.job(retry=ONCE)
    async def analyse(ctx: Context, well: bool, inside: bool) -> None:
        async with ctx.breaker("grid"):
            if inside:
                try:
                    async with ctx.breaker("grid"), ctx.breaker("grid"):
                        if not well:
                            raise ConnectionError
                except ConnectionError:
                    return
            raise ConnectionError

    async with working(app):
        counted = []
        for well, inside in [(False, False), (False, True), (True, True)]:
            await final(app, await analyse.enqueue(well=well, inside=inside))
            counted.append((await breaker_of(await app.client(), "grid")).failures)
    assert counted == [1, 2, 0]


async def test_a_probe_keeps_its_place_while_its_inner_calls_succeed(
    app: Dutiful, clock: Clock, client: Client
) -> None:
    seen: list[int] = []
    app.breaker("grid", failures=1, open_for="10m", probes=2)

    @app.job(breaker="grid")
    async def analyse(ctx: Context) -> None:
        for _ in range(3):
            async with ctx.breaker("grid"):
                pass
            (found,) = await client.store.breakers.all()
            seen.append(found.probing + found.breaker.successes)

    app.configure(lanes="one=1")
    async with working(app, client):
        await Operator(client).breakers.open("grid", new=True)
        jobs = [await analyse.enqueue(), await analyse.enqueue()]
        clock.advance("11m")
        for job in jobs:
            assert (await final(app, job)).state is State.COMPLETED
        assert (await breaker_of(client, "grid")).state is BreakerState.CLOSED
    assert seen == [1, 1, 1, 2, 2, 2]


@sqlite
async def test_a_call_waits_for_a_probe_of_its_job_but_not_for_ever(
    app: Dutiful, clock: Clock, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker_client, "PROBE_WAIT", 0.05)

    @app.job
    def pooled(ctx: Context) -> None:
        def one(n: int) -> None:
            with ctx.breaker("grid"):  # in a thread without the context of the block around it
                pass

        with ctx.breaker("grid"), ThreadPoolExecutor(2) as pool:
            list(pool.map(one, range(2)))

    @app.job
    async def crossed(ctx: Context) -> None:
        entered: set[str] = set()
        both = asyncio.Event()

        async def call(first: str, second: str) -> None:
            async with ctx.breaker(first):
                entered.add(first)
                if len(entered) == 2:
                    both.set()
                await both.wait()
                async with ctx.breaker(second):
                    pass

        await asyncio.gather(call("x", "y"), call("y", "x"))

    async with working(app, client):
        for name in ("grid", "x", "y"):
            await Operator(client).breakers.open(name, new=True)
        clock.advance("61s")
        for job in [await pooled.enqueue(), await crossed.enqueue()]:
            assert (await final(app, job)).state is State.COMPLETED
        for name in ("grid", "x", "y"):
            assert (await breaker_of(client, name)).state is BreakerState.CLOSED
