"""Waiting for what came of a job."""

import asyncio
from typing import Any

import pytest
from running_workers import EVERYWHERE, eventually, state, working

from dutiful import (
    Context,
    Dutiful,
    JobCancelled,
    JobFailed,
    JobNotFound,
    ResultTimeout,
    Retry,
    State,
    StoreUnavailable,
)


@pytest.mark.req("W28")
@pytest.mark.parametrize("app_url", EVERYWHERE, indirect=True)
async def test_a_caller_that_waits_gets_the_result(app: Dutiful) -> None:
    @app.job
    async def describe(n: int) -> dict[str, Any]:
        return {"n": n, "list": [1.5, None, "ä"], "deep": {"yes": True}}

    async with working(app):
        job = await describe.enqueue(3)
        assert await job.result("20s") == {"n": 3, "list": [1.5, None, "ä"], "deep": {"yes": True}}
        assert await job.result() == await (await app.client()).result(job.id)
        assert await state(app, job) is State.COMPLETED


async def test_many_can_wait_at_once_each_for_its_own(app: Dutiful) -> None:
    @app.job
    async def square(n: int) -> int:
        return n * n

    async with working(app):
        jobs = await square.enqueue_many([{"n": n} for n in range(100)])
        answers = await asyncio.gather(*(job.result("20s") for job in jobs), jobs[7].result("20s"))
    assert answers == [*(n * n for n in range(100)), 49]


async def test_a_wait_that_is_over_leaves_the_job_alone(app: Dutiful) -> None:
    @app.job
    async def idle() -> str:
        return "in the end"

    job = await idle.enqueue()
    with pytest.raises(ResultTimeout, match=f"{job.public_id}.*continues"):
        await job.result("50ms")
    assert await state(app, job) is State.READY
    async with working(app):
        assert await job.result("20s") == "in the end"


@pytest.mark.req("W29")
async def test_the_error_of_a_failed_job_is_raised(app: Dutiful) -> None:
    @app.job(retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise LookupError("no such order")

    async with working(app):
        job = await fails.enqueue()
        with pytest.raises(JobFailed, match="LookupError: no such order") as caught:
            await job.result("20s")
    assert caught.value.state == State.FAILED and caught.value.error is not None
    assert caught.value.error["type"] == "LookupError" and "no such order" in str(caught.value.error["traceback"])


async def test_a_waiting_job_can_be_cancelled_and_its_waiters_hear_why(app: Dutiful) -> None:
    @app.job
    async def idle(ctx: Context) -> None: ...

    job = await idle.enqueue()
    waiting = asyncio.create_task(job.result("20s"))
    assert await job.cancel("not needed any more") is True
    with pytest.raises(JobCancelled, match="not needed any more"):
        await waiting
    assert await job.cancel("again") is False and await state(app, job) is State.CANCELLED


async def test_a_job_that_never_was_is_not_found(app: Dutiful) -> None:
    stranger = app.new_id()
    assert await app.find(stranger) is None
    client = await app.client()
    with pytest.raises(JobNotFound):
        await app.cancel(stranger)
    with pytest.raises(JobNotFound):
        await client.result(stranger)
    with pytest.raises(JobNotFound):
        await client.get(stranger)


async def test_a_caller_that_waits_while_the_app_is_closed_gets_an_error(app: Dutiful) -> None:
    @app.job
    async def idle() -> None: ...

    job = await idle.enqueue()
    waiting = asyncio.create_task(job.result())
    client = await app.client()

    async def registered() -> bool:  # which shows nowhere else: a wait is neither a call nor a row
        return bool(client._waiter._waiters)

    await eventually(registered)
    await app.close()
    async with asyncio.timeout(20):
        with pytest.raises(StoreUnavailable, match=f"the app was closed before job {job.public_id} was final"):
            await waiting
