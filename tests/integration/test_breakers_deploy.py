"""A release that removes or changes the breaker of a kind, beside workers of the release before."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest
from breaker_jobs import Service
from running_workers import eventually, final, state, working

from dutiful import Dutiful, State
from dutiful.client.client import Client
from dutiful.kind import Kind
from dutiful.operator import Operator

OLD = "grid"
new_breaker = pytest.mark.parametrize("new", [None, "better-grid"])


def release(
    url: str, breaker: str | None, service: Service, heartbeat: str = "100ms"
) -> tuple[Dutiful, Kind[..., None]]:
    """An app whose kind "analyse" has this breaker."""
    app = Dutiful(url, heartbeat=heartbeat)

    @app.job(breaker=breaker, timeout="1m")
    async def analyse(n: int) -> None:
        service.call(n)

    return app, analyse


async def beats(client: Client, times: int = 3) -> None:
    """Wait until the worker on this client has sent so many heartbeats, with all writes of the earlier ones done."""
    beat, left = client.store.workers.heartbeat, times
    enough = asyncio.Event()

    async def counted(*args: Any) -> None:
        nonlocal left
        await beat(*args)
        left -= 1
        if left == 0:
            enough.set()

    with patch.object(client.store.workers, "heartbeat", counted):
        await enough.wait()


def breaker_is(client: Client, name: str | None) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return (await client.store.breakers.kinds()).get("analyse") == name

    return look


@pytest.mark.req("L48", "L57")
@new_breaker
async def test_jobs_behind_a_breaker_are_released_when_the_last_worker_that_declares_it_is_gone(
    app: Dutiful, app_url: str, new: str | None
) -> None:
    theirs, ours = Service(), Service()
    (before, _), (after, analyse) = release(app_url, OLD, theirs, "10s"), release(app_url, new, ours)

    async with after.opened() as client, working(after, client):
        async with working(before):  # the fleet has the kind's old breaker again
            await Operator(client).breakers.open(OLD)
            jobs = await analyse.enqueue_many({"n": n} for n in range(20))
            await beats(client)
            assert (await client.store.breakers.kinds()).get("analyse") == OLD  # a living worker still declares it
            assert {await state(after, job) for job in jobs} == {State.BLOCKED}
        for job in jobs:
            record = await final(after, job)
            assert (record.state, record.attempt) == (State.COMPLETED, 1)
        assert (await client.store.breakers.kinds()).get("analyse") == new
    assert (theirs.calls, sorted(ours.calls)) == ([], list(range(20)))


@pytest.mark.req("L48", "L57")
@new_breaker
async def test_a_worker_that_shuts_down_blocks_no_jobs_by_a_breaker_that_only_it_declares(
    app: Dutiful, app_url: str, new: str | None
) -> None:
    service, begun, over = Service(), asyncio.Event(), asyncio.Event()
    (before, _), (after, analyse) = release(app_url, OLD, service), release(app_url, new, service)

    @before.job
    async def dig() -> None:
        begun.set()
        await over.wait()

    async with after.opened() as client, working(after, client), working(before) as older:
        digging = await dig.enqueue()
        await begun.wait()
        await Operator(client).breakers.open(OLD)
        job = await analyse.enqueue(n=1)
        older.stop()
        assert (await final(after, job)).attempt == 1
        assert await state(after, digging) is State.RUNNING
        over.set()
    assert service.calls == [1]


@pytest.mark.req("L48", "L57")
async def test_a_breaker_of_a_new_release_is_in_force_when_the_last_worker_without_it_is_gone(
    app: Dutiful, app_url: str
) -> None:
    service = Service()
    (before, _), (after, _) = release(app_url, None, service, "10s"), release(app_url, OLD, service)

    async with after.opened() as client, working(after, client):
        async with working(before):
            await beats(client)
            assert (await client.store.breakers.kinds()).get("analyse") is None
        await eventually(breaker_is(client, OLD))
