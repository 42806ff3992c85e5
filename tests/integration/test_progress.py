"""The progress of a job: stored soon, never often, and the last report always."""

import asyncio
from typing import Any

import msgspec
import pytest
from faulty_store import faulty_store
from running_workers import eventually, final, working

from dutiful import Context, Dutiful, Event, Progress, Retry, ShutdownTimeout, State
from dutiful.core.events import EventType, events_of
from dutiful.kind import Handle
from dutiful.worker.executor import progress as progress_module
from dutiful.worker.executor.progress import MESSAGE_LIMIT

ONCE = Retry(max_attempts=1)
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


async def progress_of(job: Handle[Any]) -> Progress:
    progress = (await job.record()).progress
    assert progress is not None
    return progress


@pytest.mark.req("J30", "J33", "D36", "D47")
@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_a_running_job_is_as_far_as_it_says(app: Dutiful, where: str) -> None:
    said, go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.job(name="loop")
    async def on_loop(ctx: Context) -> None:
        ctx.progress(12.5, "Cataloging 1,247 objects")
        said.set()
        await go.wait()

    @app.job(name="thread")
    def in_thread(ctx: Context) -> None:
        ctx.progress(12.5, "Cataloging 1,247 objects")
        loop.call_soon_threadsafe(said.set)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()

    async with working(app):
        job = await app.enqueue(where)
        await said.wait()

        async def stored() -> Progress | None:
            return (await job.record()).progress

        progress = await eventually(stored)
        assert (progress.percent, progress.overall, progress.message) == (12.5, 13, "Cataloging 1,247 objects")
        assert (progress.phase, progress.items) == (None, None)
        (view,) = await (await app.client()).store.events.views([job.id])
        assert [e.data["percent"] for e in events_of(view) if e.type is EventType.PROGRESS] == [12.5]
        go.set()
        await job.result("20s")


@pytest.mark.parametrize("mode", ["loop", "thread", "pipeline"])
async def test_what_looks_like_a_secret_is_stored_with_no_progress(app: Dutiful, mode: str) -> None:
    def report(ctx: Context) -> None:
        ctx.progress(10, "asking https://ada:hunter2@example.org with token=hunter2 " + "x" * 3_000)
        items = ctx.items(["one", "two"])
        items.fail("one", ValueError("password=hunter2"))
        items.skip("two", "api_key=hunter2")

    @app.job(name="loop")
    async def on_loop(ctx: Context) -> None:
        report(ctx)

    app.job(name="thread")(report)

    @app.pipeline("pipeline").phase
    async def only(ctx: Context) -> None:
        report(ctx)

    async with working(app):
        record = await final(app, await app.enqueue(mode))

    assert record.progress is not None and record.progress.message is not None
    shown = msgspec.json.encode([record.progress, record.errors]).decode()
    assert "hunter2" not in shown and shown.count("[redacted]") >= 4
    assert record.progress.message.startswith("asking https://ada:[redacted]@example.org with token=[redacted] xxx")
    assert len(record.progress.message) <= MESSAGE_LIMIT


@pytest.mark.parametrize("fails", [False, True])
async def test_the_last_report_is_stored_before_the_job_ends(app: Dutiful, fails: bool) -> None:
    @app.job(retry=ONCE)
    async def chatty(ctx: Context) -> None:
        for percent in range(100):
            ctx.progress(percent)
        ctx.progress(message="done")
        if fails:
            raise ValueError("at the very end")

    async with faulty_store(app) as (client, store):
        jobs = await chatty.enqueue_many({} for _ in range(20))
        async with working(app, client):
            for job in jobs:
                assert (await final(app, job)).state is (State.FAILED if fails else State.COMPLETED)
                progress = await progress_of(job)
                assert (progress.percent, progress.overall, progress.message) == (99, 99, "done")
        assert store.reports <= 20  # not one for each report


@sqlite
async def test_a_talkative_job_is_written_down_now_and_then(app: Dutiful, monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("PAUSE", "LONGEST_PAUSE"):
        monkeypatch.setattr(progress_module, pause, 3600.0)

    @app.job
    async def talks(ctx: Context) -> None:
        for number in range(5_000):
            ctx.progress(number / 50)
            await asyncio.sleep(0)

    async with faulty_store(app) as (client, store), working(app, client):
        job = await talks.enqueue()
        await job.result("20s")
        assert store.reports == 2  # what it said first, and last
    assert (await progress_of(job)).percent == 4_999 / 50


@sqlite
async def test_progress_takes_a_small_part_of_the_time(app: Dutiful, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "PAUSE", 0.0)
    monkeypatch.setattr(progress_module, "SHARE", 1e9)
    monkeypatch.setattr(progress_module, "LONGEST_PAUSE", 3600.0)

    @app.job
    async def talks(ctx: Context) -> None:
        for number in range(100):
            ctx.progress(number)
            await asyncio.sleep(0.001)

    async with faulty_store(app) as (client, store), working(app, client):
        await (await talks.enqueue()).result("20s")
        assert store.reports == 2


@sqlite
async def test_a_plain_job_asks_for_nothing_and_writes_nothing(app: Dutiful) -> None:
    @app.job
    async def plain(ctx: Context) -> None: ...

    async with faulty_store(app) as (client, store), working(app, client):
        job = await plain.enqueue()
        await job.result("20s")
        assert (store.reports, store.reads) == (0, 0)
    assert (await job.record()).progress is None


@pytest.mark.parametrize("percent", [140, -1, float("nan"), "50", True])
@sqlite
async def test_a_percentage_that_cannot_be_is_refused_in_the_handler(app: Dutiful, percent: Any) -> None:
    @app.job(retry=ONCE)
    async def wrong(ctx: Context) -> None:
        ctx.progress(percent)

    async with working(app):
        record = await final(app, await wrong.enqueue())
    assert record.errors is not None and record.errors[0]["type"] == "UsageError"
    assert record.progress is None


@sqlite
async def test_a_message_is_text_of_a_bounded_length(app: Dutiful) -> None:
    @app.job(retry=ONCE)
    async def long(ctx: Context) -> None:
        ctx.progress(message="nul\0" + "x" * 10_000)

    @app.job(retry=ONCE)
    async def wrong(ctx: Context) -> None:
        ctx.progress(message=7)  # type: ignore[arg-type]

    async with working(app):
        job = await long.enqueue()
        await job.result("20s")
        record = await final(app, await wrong.enqueue())
    message = (await progress_of(job)).message
    assert message is not None and len(message) < 2_100 and "\0" not in message
    assert record.errors is not None and "must be a text" in record.errors[0]["message"]


@sqlite
async def test_an_outcome_outlives_a_store_that_takes_no_progress(app: Dutiful) -> None:
    said = asyncio.Event()

    @app.job
    async def says(ctx: Context) -> str:
        ctx.progress(50)
        said.set()
        return "done"

    async with faulty_store(app) as (client, store), working(app, client):
        store.away = True
        job = await says.enqueue()
        await said.wait()

        async def tried() -> bool:
            return store.reports > 1

        await eventually(tried)
        assert (await job.record()).state is State.RUNNING
        store.away = False
        assert await job.result("20s") == "done"
    assert (await progress_of(job)).percent == 50


@sqlite
async def test_a_worker_that_ends_takes_no_outcome_with_it(app: Dutiful) -> None:
    said = asyncio.Event()

    @app.job
    async def says(ctx: Context) -> str:
        ctx.progress(50)
        said.set()
        return "done"

    async with faulty_store(app) as (client, store):
        store.away = True
        try:
            async with working(app, client) as worker:
                job = await says.enqueue()
                await said.wait()
                worker.abort(cleanup=0.1)
        except ShutdownTimeout:
            pass
    record = await job.record()
    assert (record.state, record.result) == (State.COMPLETED, "done")


@sqlite
async def test_what_is_said_after_the_end_comes_too_late(app: Dutiful) -> None:
    kept: list[Context] = []

    @app.job
    async def leaves(ctx: Context) -> None:
        kept.append(ctx)
        ctx.progress(10)

    async with faulty_store(app) as (client, store), working(app, client):
        job = await leaves.enqueue()
        await job.result("20s")
        before = store.reports
        kept[0].progress(90)
        await (await leaves.enqueue()).result("20s")
        assert store.reports == before + 1
    assert (await progress_of(job)).percent == 10


@pytest.mark.req("J30", "J31")
async def test_progress_that_was_reported_before_a_phase_ends_is_emitted_before_its_end(app: Dutiful) -> None:
    publish = app.pipeline("publish")

    @publish.phase
    async def download(ctx: Context) -> None:
        for percent in range(81):
            ctx.progress(percent, "downloading")

    @publish.phase
    def process(ctx: Context) -> None:
        ctx.progress(25, "processing")

    async with working(app), app.events(kinds=["publish"]) as stream:
        job = await publish.enqueue()
        seen: list[tuple[str, Any, Any]] = []
        async for item in stream:
            assert isinstance(item, Event)
            seen.append((item.type.value, item.data.get("phase"), item.data.get("percent")))
            if item.type is EventType.COMPLETED:
                break
        (view,) = await (await app.client()).store.events.views([job.id])
    for phase, percent in (("download", 80), ("process", 25)):
        said, ended = ("progress", phase, percent), ("phase_completed", phase, None)
        assert seen.index(said) < seen.index(ended), seen
        assert seen.count(said) == seen.count(ended) == 1
        later = [(e.type.value, e.data.get("phase"), e.data.get("percent")) for e in events_of(view)]
        assert later.index(said) < later.index(ended)


@sqlite
async def test_a_chatty_handler_costs_a_few_writes(app: Dutiful) -> None:
    publish = app.pipeline("publish")

    @publish.phase
    async def chatty(ctx: Context) -> None:
        for number in range(20_000):
            ctx.progress(number / 200, f"number {number}")
            if number % 100 == 0:
                await asyncio.sleep(0)

    async with faulty_store(app) as (client, store), working(app, client):
        await (await publish.enqueue()).result("60s")
        assert store.reports < 50
