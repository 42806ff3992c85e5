"""`ctx.timeout(…)` around a part of a handler, on the event loop and in threads."""

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest
from running_workers import final, working
from test_lingering import ONCE, Pipe, ignore_cancellation, linger, one_slot, outcomes, pipe

from dutiful import Context, Dutiful, Fixed, Retry, State, TimeoutExceeded, UsageError
from dutiful.core.duration import Duration
from dutiful.worker.executor.timeouts import BlockTimeout

__all__ = ["pipe"]
TWICE = Retry(max_attempts=2, backoff=Fixed("1ms"))
PART = "a part of the handler ran longer than its timeout of "

pytestmark = pytest.mark.req("L59")


async def test_a_part_that_takes_too_long_is_a_timeout_of_the_job(app: Dutiful) -> None:
    @app.job(retry=TWICE)
    async def slow(ctx: Context) -> None:
        async with ctx.timeout("10ms"):
            await asyncio.Event().wait()

    @app.job(retry=TWICE)
    def slow_thread(ctx: Context) -> None:
        with ctx.timeout(0.01):
            while True:
                threading.Event().wait(0.001)

    async with working(app):
        for job in (await slow.enqueue(), await slow_thread.enqueue()):
            record = await final(app, job)
            assert (record.state, record.attempt) == (State.FAILED, 2)
            assert await outcomes(app, job) == ["timed_out"], "it was tried again, as after any timeout"
            (error,) = record.errors or [{}]
            assert (error["type"], error["message"], error["class"]) == ("TimeoutExceeded", f"{PART}10ms", "transient")


async def test_a_handler_may_go_on_without_the_part(app: Dutiful) -> None:
    @app.job
    async def fall_back(ctx: Context) -> str:
        with suppress(TimeoutExceeded):
            async with ctx.timeout("10ms"):
                await asyncio.Event().wait()
        await asyncio.sleep(0)
        return "from the cache"

    @app.job
    def fall_back_thread(ctx: Context) -> str:
        with suppress(TimeoutExceeded), ctx.timeout("10ms"):
            while True:
                threading.Event().wait(0.001)
        for _ in range(10_000):  # nothing is raised later
            pass
        return "from the cache"

    async with working(app):
        for job in (await fall_back.enqueue(), await fall_back_thread.enqueue()):
            assert await asyncio.wait_for(job.result(), 20) == "from the cache"


async def test_a_part_that_ends_in_time_leaves_nothing_behind(app: Dutiful) -> None:
    @app.job
    async def quick(ctx: Context) -> int:
        async with ctx.timeout("1h"), ctx.timeout("30s"):
            await asyncio.sleep(0)
        with pytest.raises(KeyError):
            async with ctx.timeout("1h"):
                raise KeyError
        return 1

    @app.job
    def quick_thread(ctx: Context) -> int:
        before = threading.active_count()
        for _ in range(20):
            with ctx.timeout("1h"), ctx.timeout("7d"):
                pass
        with pytest.raises(KeyError), ctx.timeout("1h"):
            raise KeyError
        while threading.active_count() > before:
            threading.Event().wait(0.001)
        return 1

    async with working(app):
        for job in (await quick.enqueue(), await quick_thread.enqueue()):
            assert await asyncio.wait_for(job.result(), 20) == 1


@pytest.mark.parametrize("inner", ["10ms", "1h"])
async def test_parts_are_nested_and_the_first_limit_holds(app: Dutiful, inner: str) -> None:
    outer = "1h" if inner == "10ms" else "10ms"
    seen: list[str] = []

    @app.job(retry=ONCE)
    async def nested(ctx: Context) -> None:
        async with ctx.timeout(outer):
            try:
                async with ctx.timeout(inner):
                    await asyncio.Event().wait()
            except TimeoutExceeded:
                seen.append("inner")
                raise

    @app.job(retry=ONCE)
    def nested_thread(ctx: Context) -> None:
        with ctx.timeout(outer):
            try:
                with ctx.timeout(inner):
                    while True:
                        threading.Event().wait(0.001)
            except TimeoutExceeded as error:
                seen.append("inner" if error.limit else "outer")
                raise

    async with working(app):
        for job in (await nested.enqueue(), await nested_thread.enqueue()):
            record = await final(app, job)
            assert record.errors is not None and record.errors[0]["message"] == f"{PART}10ms"
    assert seen == (["inner", "inner"] if inner == "10ms" else ["outer"])


async def test_a_part_that_swallows_its_end_is_timed_out_all_the_same(app: Dutiful) -> None:
    @app.job(retry=ONCE)
    async def swallows(ctx: Context) -> str:
        async with ctx.timeout("10ms"):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return "done"

    @app.job(retry=ONCE)
    def swallows_thread(ctx: Context) -> str:
        with ctx.timeout("10ms"), suppress(TimeoutExceeded):
            while True:
                threading.Event().wait(0.001)
        return "done"

    async with working(app):
        for job in (await swallows.enqueue(), await swallows_thread.enqueue()):
            record = await final(app, job)
            assert record.state is State.FAILED and record.errors is not None
            assert record.errors[0]["message"] == f"{PART}10ms"


async def test_a_part_that_does_not_stop_is_left_and_its_slot_is_free(app: Dutiful, pipe: Pipe) -> None:
    go = asyncio.Event()

    @app.job(retry=ONCE)
    def blocked(ctx: Context) -> None:
        with ctx.timeout("10ms"):
            pipe.block()

    @app.job(retry=ONCE)
    async def stubborn(ctx: Context) -> None:
        async with ctx.timeout("10ms"):
            await ignore_cancellation(go)

    @app.job
    async def other() -> int:
        return 7

    async with one_slot(app):
        for kind in (blocked, stubborn):
            record = await final(app, await kind.enqueue())
            assert record.state is State.FAILED and record.errors is not None
            assert (record.errors[0]["type"], "10ms" in record.errors[0]["message"]) == ("TimeoutExceeded", True)
            assert await asyncio.wait_for((await other.enqueue()).result(), 20) == 7
        await linger(app, 2)
        pipe.release()
        go.set()
        await linger(app, 0)


async def test_a_cancellation_inside_a_part_cancels_the_job(app: Dutiful) -> None:
    running = threading.Event()

    @app.job
    async def waits(ctx: Context) -> None:
        async with ctx.timeout("1h"):
            running.set()
            await asyncio.Event().wait()

    @app.job
    def waits_thread(ctx: Context) -> None:
        with ctx.timeout("1h"):
            running.set()
            while True:
                threading.Event().wait(0.001)

    @app.job(timeout="50ms", retry=ONCE)
    async def short(ctx: Context) -> None:
        async with ctx.timeout("1h"):
            await asyncio.Event().wait()

    async with working(app):
        for kind in (waits, waits_thread):
            running.clear()
            job = await kind.enqueue()
            await asyncio.to_thread(running.wait, 20)
            await job.cancel()
            assert (await final(app, job)).state is State.CANCELLED
        record = await final(app, await short.enqueue())
        assert record.errors is not None and "its timeout of 50ms" in record.errors[0]["message"]


async def test_a_phase_whose_part_takes_too_long_fails_by_its_own_policy(app: Dutiful) -> None:
    line = app.pipeline("line", retry=ONCE)

    @line.phase(retry=TWICE, optional=True)
    async def enrich(ctx: Context) -> None:
        async with ctx.timeout("1ms"):
            await asyncio.Event().wait()

    @line.phase
    async def publish(ctx: Context) -> str:
        return "published"

    async with working(app):
        record = await final(app, await line.enqueue())
    assert record.state is State.COMPLETED_WITH_ERRORS and record.errors is not None
    assert (record.errors[0]["phase"], record.errors[0]["message"]) == ("enrich", f"{PART}1ms")


async def test_what_makes_no_sense_is_refused(app: Dutiful) -> None:
    entered: list[str] = []

    @app.job
    async def wrong(ctx: Context) -> None:
        bad: list[Any] = [0, -1, "soon", None, True, float("nan")]
        for length in bad:
            with pytest.raises(UsageError, match=r"ctx\.timeout"):
                ctx.timeout(length)
        with pytest.raises(UsageError, match="async with"), ctx.timeout("1s"):
            entered.append("entered")
        once = ctx.timeout("1h")
        async with once:
            pass
        with pytest.raises(UsageError, match="make one for each block"):
            async with once:
                entered.append("entered")

    async with working(app):
        await asyncio.wait_for((await wrong.enqueue()).result(), 20)
    assert entered == []


def limited(length: Duration) -> BlockTimeout:
    return BlockTimeout(length, 9, lambda _: None, lambda: None)


def test_in_a_thread_the_error_always_says_which_limit_is_over() -> None:
    """Also where it is raised while the block is entered or left, which is what a load makes of short limits."""
    over, busy = threading.Event(), threading.Thread(target=lambda: [None for _ in iter(over.is_set, True)])
    busy.start()
    try:
        for turn in range(100):
            try:
                with limited("1h"), limited((turn % 20 + 1) / 100_000):
                    sum(range(turn * 20))
            except TimeoutExceeded as error:
                assert error.limit is not None
    finally:
        over.set()
        busy.join()


def test_a_part_that_is_interrupted_on_its_way_out_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter may raise in __exit__ before its first line."""

    def interrupted(*_: object) -> None:
        raise TimeoutExceeded

    before = threading.active_count()
    with monkeypatch.context() as patched:
        patched.setattr(BlockTimeout, "__exit__", interrupted)
        with suppress(TimeoutExceeded), limited("1h"):
            pass

    while threading.active_count() > before:
        threading.Event().wait(0.001)
