"""Jobs that work through items: each ends in one list, and the job's end follows from them."""

import asyncio
import contextvars
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import msgspec
import pytest
from faulty_store import faulty_store
from running_workers import eventually, final, working
from test_progress import progress_of

from dutiful import Cancel, Context, Dutiful, Fixed, Items, JobCancelled, Progress, Retry, Skip, State, UsageError
from dutiful.core.job import Claim
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.error_info import make_error
from dutiful.testing import app_on
from dutiful.worker.executor.items import TrackedItems
from dutiful.worker.executor.progress import ProgressTracker

ONCE = Retry(max_attempts=1)
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


@pytest.mark.req("D38", "D40", "D41", "D42", "D43", "D45")
async def test_one_item_stops_no_other(app: Dutiful) -> None:
    begun, go, collected = asyncio.Event(), asyncio.Event(), []

    async def update(slug: str) -> None:
        begun.set()
        await go.wait()
        if slug == "bad":
            raise ValueError("torn HTML")
        if slug == "old":
            raise Skip("superseded by build 7")

    @app.job(retry=ONCE)
    async def editions(ctx: Context) -> str:
        items = await ctx.each(["bad", "old", "main", "v1"], update, concurrency=2)
        collected.append((items.completed, dict(items.failed), dict(items.skipped), items.in_progress))
        return "all seen"

    async with working(app):
        job = await editions.enqueue()
        await begun.wait()

        async def stored() -> Progress | None:
            return (await job.record()).progress

        start = await eventually(stored)
        assert start.items == {
            "total": 4, "in_progress": ["bad", "old", "main", "v1"], "completed": [], "skipped": [], "failed": [],
        }  # fmt: skip
        go.set()
        record = await final(app, job)
    assert (record.state, record.result) == (State.COMPLETED_WITH_ERRORS, "all seen")
    assert record.errors == [{"type": "ValueError", "message": "torn HTML", "item": "bad"}]
    end = await progress_of(job)
    assert end.items is not None and (end.percent, end.overall) == (100, 100)
    assert sorted(end.items.pop("completed")) == ["main", "v1"]
    assert end.items == {
        "total": 4,
        "in_progress": [],
        "skipped": [{"item": "old", "reason": "superseded by build 7"}],
        "failed": [{"item": "bad", "error": "ValueError: torn HTML"}],
    }
    assert collected[0][1:] == ({"bad": "ValueError: torn HTML"}, {"old": "superseded by build 7"}, ())


async def test_a_job_whose_items_all_failed_has_failed(app: Dutiful) -> None:
    async def fail(number: int) -> None:
        raise ValueError(f"no {number}")

    @app.job(retry=Retry(max_attempts=2, backoff=Fixed("0s")))
    async def editions(ctx: Context) -> None:
        await ctx.each(range(150), fail)

    async with working(app):
        record = await final(app, await editions.enqueue())
    assert (record.state, record.attempt) == (State.FAILED, 2)
    assert record.errors is not None and len(record.errors) == 101
    assert record.errors[0] == make_error("ItemsFailed", "every item has failed, 150 in all", ErrorClass.RETRYABLE)
    assert {error["item"] for error in record.errors[1:]} <= set(range(150))


@pytest.mark.req("D44")
@pytest.mark.parametrize("who", ["tasks", "threads"])
async def test_no_mark_of_many_at_once_is_lost(app: Dutiful, who: str) -> None:
    def mark(items: Items, number: int) -> None:
        items.start(1_000 + number)
        match number % 3:
            case 0:
                items.complete(number)
            case 1:
                items.fail(number, ValueError("no"))
            case _:
                items.skip(number, "why not")

    @app.job(name="tasks", retry=ONCE)
    async def by_tasks(ctx: Context) -> None:
        items = ctx.items(range(200))

        async def one(number: int) -> None:
            await asyncio.sleep(0)
            mark(items, number)

        await asyncio.gather(*(one(number) for number in range(200)))

    @app.job(name="threads", retry=ONCE)
    def by_threads(ctx: Context) -> None:
        items, barrier = ctx.items(range(200)), threading.Barrier(200)

        def one(number: int) -> None:
            barrier.wait()
            mark(items, number)

        with ThreadPoolExecutor(200) as pool:
            list(pool.map(one, range(200)))

    async with working(app):
        job = await app.enqueue(who)
        await final(app, job)
    items = (await progress_of(job)).items
    assert items is not None and items["total"] == 400
    assert sorted(items["completed"]) == list(range(0, 200, 3))
    assert sorted(item["item"] for item in items["failed"]) == list(range(1, 200, 3))
    assert sorted(item["item"] for item in items["skipped"]) == list(range(2, 200, 3))
    assert sorted(items["in_progress"]) == list(range(1_000, 1_200))


@pytest.mark.req("D44")
def test_every_report_shows_each_item_once_while_threads_mark_them() -> None:
    class NoWriter:
        def changed(self, tracker: ProgressTracker) -> None: ...

        async def flush(self, tracker: ProgressTracker) -> None: ...

    claimed = Claim(
        job_id=UUID(int=1), claim_id=1, attempt=1, crashes=0, seq=0, kind="", queue="", payload="{}", priority=0,
        max_attempts=1, tenant=None, correlation_id=None, parent_id=None, subject=None, options=None,
    )  # fmt: skip
    tracker, total, threads = ProgressTracker(claimed, NoWriter()), 20_000, 4
    items = TrackedItems(tracker, range(total), lambda: False)

    def mark(first: int) -> None:
        for number in range(first, total, threads):
            items.fail(number, "no")

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that the threads come in each other's way
    try:
        with ThreadPoolExecutor(threads) as pool:
            marking = [pool.submit(mark, first) for first in range(threads)]
            while not all(done.done() for done in marking):
                shown = msgspec.json.decode(tracker.report().items or "")
                assert len(shown["in_progress"]) + len(shown["failed"]) == total
    finally:
        sys.setswitchinterval(usual)
    assert len(items.failed) == total


@sqlite
async def test_only_so_many_items_are_worked_on_at_once(app: Dutiful) -> None:
    running, most, tasks = 0, 0, set()

    async def work(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        tasks.add(asyncio.current_task())
        await asyncio.sleep(0)
        running -= 1

    @app.job
    async def many(ctx: Context) -> int:
        return len((await ctx.each(range(1_000), work, concurrency=4)).completed)

    async with working(app):
        assert await (await many.enqueue()).result("20s") == 1_000
    assert (most, len(tasks)) == (4, 4)


@sqlite
async def test_items_are_called_by_what_they_are_or_where_they_stand(app: Dutiful) -> None:
    async def work(item: Any) -> None: ...

    @app.job
    async def names(ctx: Context) -> list[Any]:
        own = await ctx.each(["a", 7], work)
        placed = await ctx.each([{"slug": "x"}, {"slug": "y"}], work)
        named = await ctx.each([{"slug": "x"}, {"slug": "y"}], work, name=lambda item: str(item["slug"]))
        return [sorted(map(str, own.completed)), sorted(placed.completed), sorted(named.completed)]

    async with working(app):
        assert await (await names.enqueue()).result("20s") == [["7", "a"], [0, 1], ["x", "y"]]


@sqlite
async def test_a_cancelled_job_cancels_its_items(app: Dutiful) -> None:
    begun, cancelled = asyncio.Event(), []

    async def wait(number: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    @app.job
    async def waits(ctx: Context) -> None:
        await ctx.each(range(10), wait, concurrency=3)

    async with working(app):
        job = await waits.enqueue()
        await begun.wait()
        await job.cancel()
        assert (await final(app, job)).state is State.CANCELLED
    assert sorted(cancelled) == [0, 1, 2]
    items = (await progress_of(job)).items
    assert items is not None and items["in_progress"] == list(range(10))


@sqlite
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_an_item_that_cancels_itself_leaves_no_other_undone(app: Dutiful, concurrency: int) -> None:
    async def work(number: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        match number:
            case 2:
                task.cancel()
            case 4:
                task.cancel()
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    raise TimeoutError from None
            case 6:
                task.cancel()
                return  # the next one is not to meet it
            case 8:
                (cancelled := asyncio.get_running_loop().create_future()).cancel()
                await cancelled
            case 9:
                raise JobCancelled("another job, whose result it waited for")
        await asyncio.sleep(0)

    @app.job(retry=ONCE)
    async def handler(ctx: Context) -> list[int]:
        items = await ctx.each(range(12), work, concurrency=concurrency)
        assert items.in_progress == ()
        return sorted(map(int, items.failed))

    async with working(app):
        record = await final(app, await handler.enqueue())
    assert (record.state, record.result) == (State.COMPLETED_WITH_ERRORS, [2, 4, 8, 9])


@sqlite
async def test_an_item_at_which_a_blocking_handler_was_cancelled_has_not_failed(app: Dutiful) -> None:
    begun = threading.Event()

    @app.job
    def handler(ctx: Context) -> None:
        with ctx.items(["a", "b"]).working("a"):
            begun.set()
            while True:
                time.sleep(0.01)

    async with working(app):
        job = await handler.enqueue()
        await asyncio.to_thread(begun.wait, 20)
        await job.cancel()
        assert (await final(app, job)).state is State.CANCELLED
    items = (await progress_of(job)).items
    assert items is not None and (items["in_progress"], items["failed"]) == (["a", "b"], [])


@sqlite
@pytest.mark.parametrize("grouped", [False, True])
async def test_an_item_that_speaks_for_its_job_ends_it(app: Dutiful, grouped: bool) -> None:
    async def work(number: int) -> None:
        if number == 3:
            cancel = Cancel("it is not wanted")
            raise ExceptionGroup("of its tasks", [ValueError("no"), cancel]) if grouped else cancel

    @app.job
    async def gives_up(ctx: Context) -> None:
        await ctx.each(range(10), work, concurrency=2)

    async with working(app):
        record = await final(app, await gives_up.enqueue())
    assert record.state is State.CANCELLED
    assert record.errors is not None and record.errors[0]["message"] == "it is not wanted"


@sqlite
async def test_items_see_the_context_of_their_handler(app: Dutiful) -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")
    seen = []

    @app.job
    async def child() -> None: ...

    async def work(number: int) -> None:
        seen.append(tenant.get())
        await child.enqueue()

    @app.job
    async def parent(ctx: Context) -> None:
        tenant.set("acme")
        await ctx.each(range(3), work)

    async with app_on(app) as kit:
        job = await parent.enqueue()
        await kit.drain()
        assert {made.parent_id for made in await kit.enqueued("child")} == {job.id}
    assert seen == ["acme"] * 3


def blocking(number: int) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (lambda ctx: ctx.each([1, 1], blocking), "there is an item 1 already"),
        (lambda ctx: ctx.each([1], blocking, concurrency=0), "concurrency 0 must be"),
        (lambda ctx: ctx.each([True], blocking), "must be a number, or a text"),
    ],
)
@sqlite
async def test_what_cannot_be_worked_through_is_refused(app: Dutiful, wrong: Callable[..., Any], problem: str) -> None:
    @app.job
    async def handler(ctx: Context) -> None:
        with pytest.raises(UsageError, match=problem):
            await wrong(ctx)

    async with working(app):
        await (await handler.enqueue()).result("20s")


@sqlite
async def test_a_blocking_function_is_not_taken_for_an_async_one(app: Dutiful) -> None:
    @app.job(retry=ONCE)
    async def handler(ctx: Context) -> None:
        await ctx.each([1, 2], blocking, concurrency=1)  # type: ignore[arg-type]

    async with working(app):
        record = await final(app, await handler.enqueue())
    assert record.state is State.FAILED and record.errors is not None and len(record.errors) == 1
    assert record.errors[0]["type"] == UsageError.__name__ and "takes an async function" in record.errors[0]["message"]


@sqlite
async def test_a_blocking_handler_marks_its_items_block_by_block(app: Dutiful) -> None:
    @app.job(retry=ONCE)
    def handler(ctx: Context) -> int:
        items = ctx.items(["good", "old", "bad"])
        for name in items.in_progress:
            try:
                with items.working(name):
                    if name == "old":
                        raise Skip("old")
                    if name == "bad":
                        raise ValueError("bad")
            except ValueError:
                assert list(items.failed) == ["bad"]  # marked first, then raised
        return len(items.completed)

    async with working(app):
        record = await final(app, await handler.enqueue())
    assert (record.state, record.result) == (State.COMPLETED_WITH_ERRORS, 1)


@pytest.mark.req("D37", "J39")
async def test_items_of_a_phase_that_was_completed_count_once(app: Dutiful) -> None:
    publish, worked, seen = app.pipeline("publish", retry=Retry(max_attempts=3, backoff=Fixed("0s"))), [], []

    async def work(slug: str) -> None:
        worked.append(slug)
        if slug == "bad":
            raise ValueError("no")

    @publish.phase
    async def editions(ctx: Context) -> None:
        await ctx.each(["good", "bad"], work)

    @publish.phase
    async def dashboard(ctx: Context) -> None:
        record = await app.find(ctx.job_id)
        assert record is not None and record.progress is not None
        seen.append((record.progress.phase, record.progress.items))
        if ctx.attempt == 1:
            raise ValueError("not yet")

    async with working(app):
        record = await final(app, await publish.enqueue())
    assert sorted(worked) == ["bad", "good"]
    assert seen == [("dashboard", None)] * 2
    assert record.state is State.COMPLETED_WITH_ERRORS
    assert record.errors == [{"type": "ValueError", "message": "no", "item": "bad", "phase": "editions"}]


@sqlite
async def test_a_phase_whose_items_all_failed_is_tried_again(app: Dutiful) -> None:
    publish, tried = app.pipeline("publish", retry=Retry(max_attempts=3, backoff=Fixed("0s"))), []

    async def work(slug: str) -> None:
        tried.append(slug)
        if len(tried) < 3:
            raise ValueError("no")

    @publish.phase
    async def editions(ctx: Context) -> int:
        return len((await ctx.each(["a", "b"], work)).completed)

    @publish.phase
    async def dashboard(editions: int) -> int:
        return editions

    async with working(app):
        record = await final(app, await publish.enqueue())
    assert (record.state, record.result, record.attempt) == (State.COMPLETED, 2, 2)


@sqlite
async def test_a_hundred_thousand_items_are_written_down_now_and_then(app: Dutiful) -> None:
    async def work(number: int) -> None: ...

    @app.job
    async def huge(ctx: Context) -> None:
        await ctx.each(range(100_000), work, concurrency=8)

    async with faulty_store(app) as (client, store), working(app, client):
        job = await huge.enqueue()
        await job.result("60s")
        assert store.reports < 50
    items = (await progress_of(job)).items
    assert items is not None and len(items["completed"]) == 100_000
