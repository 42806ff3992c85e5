"""Handlers that do not stop: their jobs end without them, and their slots run the next jobs."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any
from uuid import UUID

import apsw
import pytest
from running_workers import eventually, final, working
from test_pipelines import events, phases_of, states

from dutiful import BreakerOpen, Context, Dutiful, Fixed, JobRecord, Retry, State
from dutiful.concurrency.daemon_pool import LoopThreads
from dutiful.core.events import EventType
from dutiful.kind import Handle
from dutiful.observe.measure import measure
from dutiful.worker import Worker
from dutiful.worker.slots import Slots

ONCE = Retry(max_attempts=1)


class Pipe:
    """A system call that does not return until the test writes; no Python runs meanwhile."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        self.calls = 0

    def block(self) -> None:
        self.calls += 1
        os.read(self._reading, 1)

    def release(self) -> None:
        os.write(self._writing, b"x" * 8)

    def close(self) -> None:
        os.close(self._writing)


async def ignore_cancellation(go: asyncio.Event) -> None:
    while not go.is_set():
        with suppress(asyncio.CancelledError):
            await go.wait()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@asynccontextmanager
async def one_slot(app: Dutiful, **settings: Any) -> AsyncIterator[Worker]:
    given = {"lanes": "general=1:*", "timeout_grace": "0s", "cancel_grace": "0s", "heartbeat": "100ms", **settings}
    app.configure(**given)
    async with working(app) as worker:
        yield worker


async def outcomes(app: Dutiful, job: Handle[Any]) -> list[str]:
    return [attempt.outcome for attempt in await (await app.client()).store.queries.attempts(job.id)]


async def is_running(job: Handle[Any]) -> bool:
    return (await job.record()).state is State.RUNNING


async def linger(app: Dutiful, number: int) -> None:
    async def look() -> bool:
        workers = await (await app.client()).store.workers.all()
        return sum(lane.lingering for worker in workers for lane in worker.lanes.values()) == number

    await eventually(look)


async def settled(app: Dutiful, job: Handle[Any], outcome: str) -> JobRecord:
    async def look() -> JobRecord | None:
        return await job.record() if outcome in await outcomes(app, job) else None

    record: JobRecord = await eventually(look)
    return record


# --- timeouts


@pytest.mark.req("L59")
async def test_a_plain_function_in_a_system_call_is_timed_out_and_its_slot_is_free(app: Dutiful, pipe: Pipe) -> None:
    @app.job(timeout="100ms", retry=ONCE)
    def blocked() -> str:
        pipe.block()
        return "too late"

    @app.job
    def next_one() -> int:
        return 7

    async with one_slot(app):
        job = await blocked.enqueue()
        record = await final(app, job)
        assert await (await next_one.enqueue()).result("30s") == 7
        assert pipe.calls == 1
        await linger(app, 1)
        pipe.release()
        await linger(app, 0)
    assert record.state is State.FAILED and record.errors is not None
    assert record.errors[0]["type"] == "TimeoutExceeded"


@pytest.mark.req("L59")
async def test_a_thread_that_an_async_handler_leaves_behind_is_counted_and_keeps_no_other_waiting(
    app: Dutiful, pipe: Pipe
) -> None:
    @app.job(timeout="100ms", retry=ONCE)
    async def hangs() -> None:
        await asyncio.to_thread(pipe.block)

    @app.job(batch=2, timeout="100ms", retry=ONCE)
    async def hang_together(jobs: list[dict[str, Any]]) -> None:
        await asyncio.to_thread(pipe.block)

    @app.job
    async def goes_on() -> int:
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(pipe.block), 0.1)  # given up by itself, while the job continues
        return await asyncio.to_thread(lambda: 7)

    async with one_slot(app) as worker:
        asyncio.get_running_loop().set_default_executor(LoopThreads(worker.thread_left, size=1))
        for job in (await hangs.enqueue(), await hang_together.enqueue()):
            assert (await final(app, job)).state is State.FAILED
        await linger(app, 2)
        assert await (await goes_on.enqueue()).result("30s") == 7
        assert pipe.calls == 3
        pipe.release()
        await linger(app, 0)


async def test_an_outcome_that_comes_after_the_timeout_is_refused(app: Dutiful) -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    @app.job(timeout="100ms", retry=Retry(max_attempts=2, backoff=Fixed("1h")))
    async def stubborn() -> str:
        begun.set()
        await ignore_cancellation(go)
        return "too late"

    async with one_slot(app):
        job = await stubborn.enqueue()
        record = await settled(app, job, "timed_out")
        assert record.state is State.SCHEDULED
        go.set()
        record = await settled(app, job, "refused")
        await linger(app, 0)
    assert (record.state, record.result) == (State.SCHEDULED, None)
    assert await outcomes(app, job) == ["timed_out", "refused"]


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_thread_that_returns_after_its_timeout_is_refused(app: Dutiful) -> None:
    go: list[bool] = []

    @app.job(timeout="100ms", retry=ONCE)
    def swallows() -> str:
        while not go:
            with suppress(BaseException):
                while not go:
                    pass
        return "too late"

    async with one_slot(app):
        job = await swallows.enqueue()
        await final(app, job)
        go.append(True)
        record = await settled(app, job, "refused")
    assert (record.state, record.result) == (State.FAILED, None)


async def test_the_retry_of_a_job_may_run_while_its_first_attempt_still_hangs(app: Dutiful, pipe: Pipe) -> None:
    @app.job(timeout="100ms", retry=Retry(max_attempts=2, backoff=Fixed("0s")))
    def hangs_once() -> str:
        if pipe.calls == 0:
            pipe.block()
        return "second"

    async with one_slot(app):
        job = await hangs_once.enqueue()
        assert await job.result("30s") == "second"
        await linger(app, 1)
        pipe.release()
        await linger(app, 0)
    record = await job.record()
    assert (record.state, record.result) == (State.COMPLETED, "second")


async def test_a_pipeline_continues_without_an_optional_phase_that_hangs(app: Dutiful, pipe: Pipe) -> None:
    publish = app.pipeline("publish")

    @publish.phase(timeout="100ms", optional=True)
    def thumbnail() -> None:
        pipe.block()

    @publish.phase
    def upload() -> str:
        return "uploaded"

    async with one_slot(app):
        job = await publish.enqueue()
        record = await final(app, job)
        pipe.release()
        await linger(app, 0)
    assert (record.state, record.result) == (State.COMPLETED_WITH_ERRORS, "uploaded")
    assert states(await phases_of(app, job)) == {"thumbnail": "failed", "upload": "completed"}


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_phase_that_never_stops_is_tried_as_its_own_policy_says(app: Dutiful) -> None:
    publish, go, ran = app.pipeline("publish", retry=ONCE), asyncio.Event(), []

    @publish.phase(timeout="100ms", retry=Retry(max_attempts=2, backoff=Fixed("0s")))
    async def stubborn() -> None:
        ran.append(1)
        await ignore_cancellation(go)

    async with one_slot(app):
        record = await final(app, await publish.enqueue())
        go.set()
        await linger(app, 0)
    assert (record.state, len(ran)) == (State.FAILED, 2)
    assert record.errors is not None and record.errors[0]["phase"] == "stubborn"


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_breaker_learns_of_a_handler_that_never_stops(app: Dutiful) -> None:
    go = asyncio.Event()
    app.breaker("shop", failures=1, open_for="1h")

    @app.job(timeout="100ms", retry=ONCE, breaker="shop")
    async def stubborn() -> None:
        await ignore_cancellation(go)

    @app.job(retry=ONCE)
    async def calls(ctx: Context) -> str:
        try:
            async with ctx.breaker("shop"):
                return "passed"
        except BreakerOpen:
            return "rejected"

    async with one_slot(app):
        await final(app, await stubborn.enqueue())

        async def rejected() -> bool:
            return await (await calls.enqueue()).result("30s") == "rejected"

        await eventually(rejected)
        go.set()
        await linger(app, 0)


async def breaker_of(app: Dutiful, name: str) -> tuple[str, int]:
    (found,) = [one.breaker for one in await (await app.operator()).breakers.all() if one.breaker.name == name]
    return found.state, found.failures


@pytest.mark.parametrize("mode", ["thread", "loop"])
@pytest.mark.req("L48", "L59")
async def test_a_call_that_hangs_in_a_block_of_a_breaker_has_failed(app: Dutiful, pipe: Pipe, mode: str) -> None:
    go = asyncio.Event()
    app.breaker("mail", failures=2, open_for="1h")

    @app.job(timeout="100ms", retry=ONCE)
    def thread(ctx: Context) -> None:
        with ctx.breaker("mail"):
            pipe.block()

    @app.job(timeout="100ms", retry=ONCE)
    async def loop(ctx: Context) -> None:
        async with ctx.breaker("mail"):
            await ignore_cancellation(go)

    @app.job(retry=ONCE)
    def next_one(ctx: Context) -> None:
        with ctx.breaker("mail"):
            raise AssertionError("it is open")

    async def failures(number: int) -> None:
        async def look() -> bool:
            return (await breaker_of(app, "mail"))[1] == number

        await eventually(look)

    async with one_slot(app):
        try:
            for number in (1, 2):
                await final(app, await app.enqueue(mode))
                await failures(number)
            waits = await next_one.enqueue()
            await eventually(lambda: _blocked(waits))
        finally:
            pipe.release()
            go.set()
        await linger(app, 0)
    assert await breaker_of(app, "mail") == ("open", 2), "what comes later is not counted again"
    assert (await waits.record()).attempt == 0


async def _blocked(job: Handle[Any]) -> bool:
    return (await job.record()).state is State.BLOCKED


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_call_that_hangs_and_was_cancelled_says_nothing_of_its_service(app: Dutiful, pipe: Pipe) -> None:
    app.breaker("mail", failures=1, open_for="1h")

    @app.job(retry=ONCE)
    def hangs(ctx: Context) -> None:
        with ctx.breaker("mail"):
            pipe.block()

    async with one_slot(app):
        job = await hangs.enqueue()

        async def begun() -> bool:
            return pipe.calls == 1

        try:
            await eventually(begun)
            await job.cancel()
            assert (await final(app, job)).state is State.CANCELLED
        finally:
            pipe.release()
        await linger(app, 0)
    assert await breaker_of(app, "mail") == ("closed", 0)


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_handler_that_stops_within_its_grace_keeps_its_own_outcome(app: Dutiful) -> None:
    begun, cleaned = asyncio.Event(), []

    @app.job(timeout="100ms", retry=ONCE)
    async def tidy() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.3)
            cleaned.append(True)

    async with one_slot(app, timeout_grace="30s"):
        record = await final(app, await tidy.enqueue())
    assert (record.state, cleaned) == (State.FAILED, [True])


# --- cancellation


def blocks_in_a_thread(app: Dutiful, begun: asyncio.Event, pipe: Pipe, go: asyncio.Event) -> Any:
    loop = asyncio.get_running_loop()

    def handler() -> str:
        loop.call_soon_threadsafe(begun.set)
        pipe.block()
        return "too late"

    return handler


def never_stops(app: Dutiful, begun: asyncio.Event, pipe: Pipe, go: asyncio.Event) -> Any:
    async def handler() -> str:
        begun.set()
        await ignore_cancellation(go)
        return "too late"

    return handler


def swallows_and_returns(app: Dutiful, begun: asyncio.Event, pipe: Pipe, go: asyncio.Event) -> Any:
    async def handler() -> str:
        begun.set()
        with suppress(asyncio.CancelledError):
            await go.wait()
        return "done all the same"

    return handler


@pytest.mark.req("J48", "J49", "J50", "J51", "J52")
@pytest.mark.parametrize("make", [blocks_in_a_thread, never_stops, swallows_and_returns])
async def test_a_cancelled_job_ends_whatever_its_handler_does(
    app: Dutiful, pipe: Pipe, make: Callable[..., Any]
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    publish = app.pipeline("publish")
    publish.phase(name="first")(make(app, begun, pipe, go))

    @publish.phase
    async def second() -> None: ...

    async with one_slot(app):
        job = await publish.enqueue()
        await begun.wait()
        assert await job.cancel("not wanted")
        record = await final(app, job)
        follower = await publish.options(delay="1h").enqueue()
        pipe.release()
        go.set()
        await linger(app, 0)
        assert not await job.cancel()
        await follower.cancel()
    assert (record.state, record.result) == (State.CANCELLED, None)
    assert record.errors == [{"type": "Cancelled", "message": "not wanted"}]
    assert states(await phases_of(app, job)) == {"first": "cancelled", "second": "cancelled"}
    assert (await events(app, job)).count(EventType.CANCELLED) == 1
    assert (await events(app, job)).count(EventType.PHASE_COMPLETED) == 0


@pytest.mark.req("J48", "J49")
async def test_a_handler_that_returns_before_its_worker_knows_of_the_cancel_is_cancelled(app: Dutiful) -> None:
    publish = app.pipeline("publish")

    @publish.phase
    async def first(ctx: Context) -> str:
        assert await app.cancel(ctx.job_id, "not wanted")
        return "done"

    @app.job
    def single(ctx: Context) -> str:
        asyncio.run_coroutine_threadsafe(app.cancel(ctx.job_id), loop).result(30)
        return "done"

    loop = asyncio.get_running_loop()
    async with one_slot(app):
        jobs = [await publish.enqueue(), await single.enqueue()]
        records = [await final(app, job) for job in jobs]
    assert [(record.state, record.result) for record in records] == [(State.CANCELLED, None)] * 2
    assert states(await phases_of(app, jobs[0])) == {"first": "cancelled"}


@pytest.mark.req("J47")
@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_handler_that_cleans_up_after_a_cancel_is_not_interrupted_again(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch, in_thread: bool
) -> None:
    cleans, cleaned, requests = threading.Event(), threading.Event(), 0
    enough, ask = asyncio.Event(), Slots.cancel

    def asked(slots: Slots, job_id: UUID) -> None:
        nonlocal requests
        ask(slots, job_id)
        requests += cleans.is_set()
        if requests == 3:
            enough.set()

    async def tidy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleans.set()
            await enough.wait()
            cleaned.set()

    def tidy_thread() -> None:
        try:
            while True:
                time.sleep(0.01)
        finally:
            cleans.set()
            while not enough.is_set():
                time.sleep(0.01)
            cleaned.set()

    monkeypatch.setattr(Slots, "cancel", asked)
    kind = app.job(tidy_thread if in_thread else tidy)
    async with one_slot(app, cancel_grace="1m"):
        job = await kind.enqueue()
        await eventually(lambda: is_running(job))
        assert await job.cancel("not wanted")
        record = await final(app, job)
    assert record.state is State.CANCELLED and cleaned.is_set()


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_writes_of_a_transaction_that_ends_after_a_cancel_are_not_kept(app: Dutiful) -> None:
    @app.job(retry=ONCE)
    async def pays(ctx: Context) -> None:
        async with ctx.transaction() as transaction:
            await transaction.execute("CREATE TABLE paid (id INTEGER)")
            await app.cancel(ctx.job_id)

    async with one_slot(app, cancel_grace="1h"):
        record = await final(app, await pays.enqueue())
    assert record.state is State.CANCELLED
    with closing(apsw.Connection(app.settings.database_url.removeprefix("sqlite:///"))) as db:
        assert list(db.execute("SELECT name FROM sqlite_master WHERE name = 'paid'")) == []


# --- what is seen of them


@pytest.mark.req("L59")
async def test_lingering_handlers_are_counted_and_shown(
    app: Dutiful, pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(timeout="100ms", retry=ONCE)
    def blocked() -> None:
        pipe.block()

    with caplog.at_level(logging.WARNING, "dutiful.worker"):
        async with one_slot(app, lingering_limit=2):
            client = await app.client()
            job = await blocked.enqueue()
            await final(app, job)
            await linger(app, 1)
            assert "handlers that linger here: 1" in caplog.text
            assert "setting lingering_limit" not in caplog.text
            counts = [one.value for one in await measure(client.store) if one.metric == "lingering_handlers"]
            assert counts == [1]
            operator = await app.operator("ada")

            async def blockers() -> list[Any]:
                """What the drain waits for; at first that may be the next heartbeat."""
                drain = await operator.fleet.drain(kinds=["blocked"])
                assert not drain.safe
                return list(drain.blockers)

            (blocker,) = await eventually(blockers)
            assert blocker.job_id == job.id and "runs on without a claim" in blocker.remedy
            pipe.release()
            await linger(app, 0)


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_worker_says_when_handlers_pile_up_and_works_on(
    app: Dutiful, pipe: Pipe, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(timeout="100ms", retry=ONCE)
    def blocked() -> None:
        pipe.block()

    @app.job
    async def fine() -> str:
        return "fine"

    with caplog.at_level(logging.ERROR, "dutiful.worker"):
        async with one_slot(app, lingering_limit=3) as worker:
            for _ in range(4):
                await final(app, await blocked.enqueue())
            assert await (await fine.enqueue()).result("30s") == "fine"
            assert caplog.text.count("setting lingering_limit: 3") == 1
            assert not worker.replaced
            pipe.release()
            await linger(app, 0)
    assert pipe.calls == 4
