"""Hooks around attempts: where they run, what they see, and what they can do to an outcome."""

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import around_jobs
import pytest
from running_workers import eventually, final, working

from dutiful import Context, Dutiful, Fail, JobFailed, Retry, ShutdownTimeout, Snooze, State, UsageError, testing

pytestmark = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
ONCE = Retry(max_attempts=1)
MODES = ["loop", "thread"]
modes = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
def seen() -> list[str]:
    return []


@pytest.fixture
def noted(app: Dutiful, seen: list[str]) -> Dutiful:
    """The app with one hook, which notes what it sees."""

    @app.around_attempt
    def noting(ctx: Context) -> Iterator[None]:
        seen.append(f"before {ctx.phase or ctx.kind}")
        try:
            yield
        except BaseException as error:
            seen.append(type(error).__name__)
            raise
        finally:
            seen.append(f"after {ctx.phase or ctx.kind}")

    return app


def declare(app: Dutiful, seen: list[str], work: Callable[[], Any] = lambda: None, **options: Any) -> None:
    """Two kinds that do the same: `loop` and `thread`."""

    @app.job(name="loop", retry=ONCE, **options)
    async def on_loop() -> Any:
        seen.append("handler")
        return work()

    @app.job(name="thread", retry=ONCE, **options)
    def in_thread() -> Any:
        seen.append("handler")
        return work()


async def error_of(app: Dutiful, mode: str) -> tuple[str, str]:
    record = await final(app, await app.enqueue(mode))
    assert record.errors
    return record.errors[0]["type"], record.errors[0]["message"]


@modes
async def test_a_hook_surrounds_every_attempt(noted: Dutiful, seen: list[str], mode: str) -> None:
    declare(noted, seen)
    async with working(noted):
        await (await noted.enqueue(mode)).result("20s")
    assert seen == [f"before {mode}", "handler", f"after {mode}"]


async def test_a_hook_runs_in_the_thread_of_its_handler(app: Dutiful) -> None:
    threads: dict[str, set[int]] = {"loop": set(), "thread": set()}

    @app.around_attempt
    def noting(ctx: Context) -> Iterator[None]:
        threads[ctx.kind].add(threading.get_ident())
        yield
        threads[ctx.kind].add(threading.get_ident())

    @app.job
    async def loop() -> int:
        return threading.get_ident()

    @app.job
    def thread() -> int:
        return threading.get_ident()

    async with working(app):
        ran = {mode: {await (await app.enqueue(mode)).result("20s")} for mode in MODES}
    assert threads == ran and ran["loop"] == {threading.get_ident()} != ran["thread"]


async def test_a_hook_surrounds_the_handler_in_its_own_process(app: Dutiful, tmp_path: Path) -> None:
    app.kinds.update(around_jobs.app.kinds)
    app.configure(cpu_processes=1)
    notes = tmp_path / "notes"
    async with working(app):
        pid = await (await app.enqueue("in_child", {"notes": str(notes)})).result("20s")
        job = await app.enqueue("in_child", {"notes": str(notes), "fail": True})
        with pytest.raises(JobFailed):
            await job.result("20s")
        late = await app.enqueue("too_long_in_child", {"notes": str(notes)})
        assert (await final(app, late)).state is State.FAILED
    assert notes.read_text().splitlines()[:5] == [
        f"{what} in_child 1 in {pid}" for what in ("before", "after", "before", "Fail", "after")
    ]
    assert len(notes.read_text().splitlines()) == 6  # a process is killed, and cleans nothing up


async def test_a_hook_in_a_process_is_told_what_it_cannot_reach(app: Dutiful, tmp_path: Path) -> None:
    app.kinds.update(around_jobs.app.kinds)
    async with working(app):
        record = await final(app, await app.enqueue("reports", {"notes": str(tmp_path / "notes")}))
    assert record.errors and record.errors[0]["type"] == "UsageError"
    assert (
        record.errors[0]["message"] == "the process of a job has no ctx.progress: kind reports runs with process=True"
    )


async def test_every_phase_of_a_pipeline_is_surrounded(noted: Dutiful, seen: list[str]) -> None:
    publish = noted.pipeline("publish", retry=ONCE)

    @publish.phase
    async def render() -> int:
        return 1

    @publish.phase(when=lambda ctx: False)
    def left_out() -> None: ...

    @publish.phase
    def upload(render: int) -> int:
        return render + 1

    async with working(noted):
        assert await (await noted.enqueue("publish")).result("20s") == 2
    expected = ["before render", "after render", "before upload", "after upload"]
    assert seen == expected
    with testing.inline(noted):
        assert await (await noted.enqueue("publish")).result() == 2
    assert seen == expected * 2


@modes
async def test_hooks_run_inline_and_in_a_drain(noted: Dutiful, seen: list[str], mode: str) -> None:
    declare(noted, seen)
    expected = [f"before {mode}", "handler", f"after {mode}"]
    with testing.inline(noted):
        await noted.enqueue(mode)
        assert seen == expected
        await asyncio.to_thread(noted.kind(mode).sync.enqueue)
        assert seen == expected * 2
    await noted.close()
    async with testing.app_on(noted) as kit:
        await noted.enqueue(mode)
        await kit.drain()
    assert seen == expected * 3


@modes
async def test_hooks_are_nested_in_the_order_of_their_declaration(app: Dutiful, seen: list[str], mode: str) -> None:
    for name in ("outer", "inner"):

        def noting(ctx: Context, name: str = name) -> Iterator[None]:
            seen.append(f"before {name}")
            yield
            seen.append(f"after {name}")

        app.around_attempt(noting)
    declare(app, seen)
    async with working(app):
        await (await app.enqueue(mode)).result("20s")
    assert seen == ["before outer", "before inner", "handler", "after inner", "after outer"]


async def test_an_async_hook_surrounds_async_handlers_only(app: Dutiful, seen: list[str]) -> None:
    @app.around_attempt
    async def noting(ctx: Context) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        seen.append(f"before {ctx.kind}")
        yield
        await asyncio.sleep(0)
        seen.append(f"after {ctx.kind}")

    declare(app, seen)
    async with working(app):
        for mode in MODES:
            await (await app.enqueue(mode)).result("20s")
    with testing.inline(app):
        await app.enqueue("loop")
    assert seen == ["before loop", "handler", "after loop", "handler", "before loop", "handler", "after loop"]


@modes
async def test_a_hook_that_fails_before_the_handler_fails_the_attempt(app: Dutiful, seen: list[str], mode: str) -> None:
    @app.around_attempt
    def outer(ctx: Context) -> Iterator[None]:
        try:
            yield
        finally:
            seen.append("cleaned up")

    @app.around_attempt
    def refusing(ctx: Context) -> Iterator[None]:
        if ctx.attempt == 1:
            raise ConnectionError("no session")
        yield

    declare(app, seen)
    async with working(app):
        assert await error_of(app, mode) == ("ConnectionError", "no session")
    assert seen == ["cleaned up"]


@modes
async def test_a_hook_that_fails_after_the_handler_fails_the_attempt(app: Dutiful, seen: list[str], mode: str) -> None:
    @app.around_attempt
    def failing(ctx: Context) -> Iterator[None]:
        yield
        raise ConnectionError("not flushed")

    declare(app, seen)
    async with working(app):
        assert await error_of(app, mode) == ("ConnectionError", "not flushed")
    assert seen == ["handler"]


def fail() -> None:
    raise ValueError("no luck")


@modes
@pytest.mark.parametrize("with_async", [False, True])
async def test_a_hook_cannot_swallow_an_error(app: Dutiful, seen: list[str], mode: str, with_async: bool) -> None:
    def swallowing(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ValueError:
            seen.append("swallowed")

    async def swallowing_async(ctx: Context) -> AsyncIterator[None]:
        try:
            yield
        except ValueError:
            seen.append("swallowed")

    app.around_attempt(swallowing_async if with_async else swallowing)
    declare(app, seen, fail)
    async with working(app):
        record = await final(app, await app.enqueue(mode))
    assert record.errors and record.errors[0]["message"] == "no luck"
    assert "swallowing" not in record.errors[0]["traceback"] and "in fail" in record.errors[0]["traceback"]
    assert seen == (["handler"] if with_async and mode == "thread" else ["handler", "swallowed"])


@modes
async def test_a_hook_may_replace_an_error(app: Dutiful, seen: list[str], mode: str) -> None:
    @app.around_attempt
    def translating(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise Snooze("2h") from error

    declare(app, seen, fail)
    async with working(app):
        job = await app.enqueue(mode)

        async def snoozed() -> bool:
            record = await app.find(job.id)
            return record is not None and record.state is State.SCHEDULED

        await eventually(snoozed)


def never(ctx: Context) -> Iterator[None]:
    if ctx.attempt > 1:
        yield


def twice(ctx: Context) -> Iterator[None]:
    yield
    yield


async def never_async(ctx: Context) -> AsyncIterator[None]:
    if ctx.attempt > 1:
        yield


async def twice_async(ctx: Context) -> AsyncIterator[None]:
    yield
    yield


@pytest.mark.parametrize(
    ("mode", "hook", "problem"),
    [
        *((mode, never, "the hook never around attempts ended before its yield") for mode in MODES),
        *((mode, twice, "the hook twice around attempts yielded a second time") for mode in MODES),
        ("loop", never_async, "the hook never_async around attempts ended before its yield"),
        ("loop", twice_async, "the hook twice_async around attempts yielded a second time"),
    ],
)
async def test_a_hook_yields_exactly_once(app: Dutiful, seen: list[str], mode: str, hook: Any, problem: str) -> None:
    app.around_attempt(hook)
    declare(app, seen)
    async with working(app):
        assert await error_of(app, mode) == ("UsageError", f"{problem}: it has to yield exactly once")


@modes
async def test_a_hook_cleans_up_after_whatever_stops_its_handler(noted: Dutiful, seen: list[str], mode: str) -> None:
    @noted.job(name="loop", retry=ONCE)
    async def on_loop() -> None:
        seen.append("handler")
        await asyncio.Event().wait()

    @noted.job(name="thread", retry=ONCE)
    def in_thread() -> None:
        seen.append("handler")
        while True:
            time.sleep(0.005)

    raised = {"loop": ["CancelledError"] * 3, "thread": ["JobCancelled", "TimeoutExceeded", "ClaimLost"]}[mode]

    def story(error: str) -> list[str]:
        return [f"before {mode}", "handler", error, f"after {mode}"]

    async def running() -> bool:
        return seen[-1:] == ["handler"]

    with pytest.raises(ShutdownTimeout):  # of the last one, which is interrupted
        async with working(noted) as worker:
            job = await noted.enqueue(mode)
            await eventually(running)
            await job.cancel()
            assert (await final(noted, job)).state is State.CANCELLED
            assert seen == story(raised[0])
            seen.clear()
            noted.kind(mode)._timeout = timedelta(milliseconds=100)
            late = await noted.enqueue(mode)
            assert (await final(noted, late)).state is State.FAILED
            assert seen == story(raised[1])
            seen.clear()
            noted.kind(mode)._timeout = None
            released = await noted.enqueue(mode)
            await eventually(running)
            worker.abort()
    assert (await released.record()).state is State.READY
    assert seen == story(raised[2])


def test_only_a_generator_of_the_context_is_a_hook(app: Dutiful) -> None:
    def plain(ctx: Context) -> None: ...

    def without() -> Iterator[None]:
        yield

    @contextmanager
    def managed(ctx: Context) -> Iterator[None]:
        yield

    for wrong, problem in [
        (plain, "give it a function of the context that yields once"),
        (7, "give it a function of the context that yields once"),
        (managed, "leave @contextmanager out"),
        (without, "no function of the context: too many positional arguments"),
    ]:
        with pytest.raises(UsageError, match=problem):
            app.around_attempt(wrong)  # type: ignore[type-var]


@modes
async def test_what_a_hook_sets_is_seen_by_its_handler_and_not_by_the_next(app: Dutiful, mode: str) -> None:
    mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="clean")
    before: list[str] = []

    @app.around_attempt
    def marking(ctx: Context) -> Iterator[None]:
        before.append(mark.get())
        mark.set("marked")
        yield
        assert mark.get() == "marked by the handler"

    def work() -> str:
        value = mark.get()
        mark.set("marked by the handler")
        return value

    app.configure(lanes="one=1:*")
    declare(app, [], work)
    async with working(app):
        assert [await (await app.enqueue(mode)).result("20s") for _ in range(2)] == ["marked", "marked"]
    assert before == ["clean", "clean"]


@modes
async def test_what_the_handler_raises_keeps_its_meaning(noted: Dutiful, seen: list[str], mode: str) -> None:
    def work() -> None:
        raise Fail("for good")

    declare(noted, seen, work)
    async with working(noted):
        assert await error_of(noted, mode) == ("Fail", "for good")
    assert seen == [f"before {mode}", "handler", "Fail", f"after {mode}"]
