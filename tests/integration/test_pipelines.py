"""A job in phases: their order, their results, and which of them are passed by."""

from datetime import UTC, datetime
from typing import Any

import pytest
from running_workers import eventually, final, working

from dutiful import Context, Dutiful, Fixed, Inject, Retry, State, UsageError
from dutiful.core.events import EventType, events_of
from dutiful.core.job import PhaseRecord
from dutiful.kind import Handle
from dutiful.store import Store
from dutiful.testing import Clock, app_on, inline

AT_ONCE = Retry(max_attempts=5, backoff=Fixed("0s"))
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


async def store_of(app: Dutiful) -> Store:
    return (await app.client()).store


async def phases_of(app: Dutiful, job: Handle[Any]) -> dict[str, PhaseRecord]:
    return {phase.name: phase for phase in await (await store_of(app)).progress.phases(job.id)}


def states(phases: dict[str, PhaseRecord]) -> dict[str, str]:
    return {name: phase.state.value for name, phase in phases.items()}


async def events(app: Dutiful, job: Handle[Any]) -> list[EventType]:
    (view,) = await (await store_of(app)).events.views([job.id])
    return [event.type for event in events_of(view)]


@pytest.mark.req("J27", "J29", "J36", "J37", "J38")
async def test_phases_run_in_order_and_hand_on_their_results(app: Dutiful) -> None:
    publish = app.pipeline("publish")
    ran: list[tuple[Any, ...]] = []

    @app.resource
    def db() -> str:
        return "the database"

    @publish.phase
    async def inventory(ctx: Context, build: int) -> list[datetime]:
        ran.append((ctx.phase, dict(ctx.payload), dict(ctx.results())))
        return [datetime(2030, 1, build, tzinfo=UTC)]

    @publish.phase
    def track(ctx: Context, inventory: list[datetime], db: str = Inject("db")) -> dict[str, Any]:
        ran.append((ctx.phase, inventory, db))
        with pytest.raises(UsageError, match="'upload'"):
            ctx.result("upload")
        return {"found": len(inventory)}

    @publish.phase
    async def upload(ctx: Context, build: int, track: dict[str, int], note: str = "none") -> Any:
        ran.append((ctx.phase, build, track, note))
        assert ctx.result("track") == track
        return ctx.results()

    async with working(app):
        job = await publish.enqueue(build=7)
        found = {"inventory": ["2030-01-07T00:00:00Z"], "track": {"found": 1}}
        assert await job.result("20s") == found
    assert ran == [
        ("inventory", {"build": 7}, {}),
        ("track", [datetime(2030, 1, 7, tzinfo=UTC)], "the database"),
        ("upload", 7, {"found": 1}, "none"),
    ]
    phases = await phases_of(app, job)
    assert states(phases) == {"inventory": "completed", "track": "completed", "upload": "completed"}
    assert {name: phase.result for name, phase in phases.items()} == {**found, "upload": found}


@pytest.mark.req("J28", "J31", "J32", "D36", "D37")
async def test_each_step_is_stored_before_the_next_one_is_taken(app: Dutiful) -> None:
    publish, seen = app.pipeline("publish"), []

    async def look(ctx: Context) -> None:
        record = await app.find(ctx.job_id)
        assert record is not None and record.progress is not None
        phases = await (await store_of(app)).progress.phases(ctx.job_id)
        seen.append(([(p.name, p.state.value) for p in phases], record.progress))

    @publish.phase
    async def download(ctx: Context) -> str:
        await look(ctx)
        ctx.progress(80, "nearly there")
        return "a file"

    @publish.phase
    async def upload(ctx: Context) -> None:
        await look(ctx)
        (view,) = await (await store_of(app)).events.views([ctx.job_id])
        completed = [e.data for e in events_of(view) if e.type is EventType.PHASE_COMPLETED]
        assert completed == [{"phase": "download", "position": 0, "result": "a file"}]

    async with working(app):
        job = await publish.enqueue()
        await job.result("20s")
    (first, begun), (second, reset) = seen
    assert first == [("download", "running")]
    assert second == [("download", "completed"), ("upload", "running")]
    assert (begun.phase, begun.percent, begun.overall) == ("download", 0, 0)
    assert (reset.phase, reset.percent, reset.overall, reset.message) == ("upload", 0, 50, None)
    end = (await job.record()).progress
    assert end is not None and (end.phase, end.percent, end.overall) == ("upload", 100, 100)
    assert (await events(app, job)).count(EventType.COMPLETED) == 1


@pytest.mark.req("J33", "J34", "J35")
async def test_the_whole_is_as_far_as_its_phases(app: Dutiful) -> None:
    publish, seen = app.pipeline("publish"), []

    def phase(name: str, percent: int) -> None:
        @publish.phase(name=name)
        async def report(ctx: Context) -> None:
            ctx.progress(percent)

            async def stored() -> Any:
                record = await app.find(ctx.job_id)
                return record and record.progress and record.progress.percent == percent and record.progress

            progress = await eventually(stored)
            seen.append((progress.phase, progress.overall))

    for name, percent in (("download", 50), ("process", 25), ("upload", 80)):
        phase(name, percent)
    async with working(app):
        await (await publish.enqueue()).result("20s")
    assert seen == [("download", 17), ("process", 42), ("upload", 93)]


async def test_a_condition_skips_a_phase(app: Dutiful) -> None:
    publish = app.pipeline("publish")

    @publish.phase
    async def look(ctx: Context, n: int) -> int:
        return n

    @publish.phase(when=lambda ctx: ctx.result("look") > 5)
    async def enlarge(look: int) -> int:
        return 10 * look

    @publish.phase
    async def summarise(look: int, enlarge: int = -1) -> list[int]:
        return [look, enlarge]

    async with working(app):
        small, large = await publish.enqueue(n=1), await publish.enqueue(n=6)
        assert await small.result("20s") == [1, -1]
        assert await large.result("20s") == [6, 60]
    phases = await phases_of(app, small)
    assert states(phases) == {"look": "completed", "enlarge": "skipped", "summarise": "completed"}
    assert phases["enlarge"].attempt == 0 and (await small.record()).progress is not None


async def test_a_pipeline_goes_on_without_an_optional_phase(app: Dutiful) -> None:
    publish, ran = app.pipeline("publish", retry=AT_ONCE), []

    @publish.phase(optional=True)
    async def thumbnails() -> None:
        ran.append("thumbnails")
        raise ValueError("no picture")

    @publish.phase(optional=True, retry=Retry(max_attempts=2, backoff=Fixed("0s")))
    async def captions() -> None:
        ran.append("captions")
        raise KeyError("no text")

    @publish.phase
    async def upload(ctx: Context, thumbnails: str | None, captions: str = "none") -> list[str | None]:
        ran.append("upload")
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return [thumbnails, captions]

    async with working(app):
        job = await publish.enqueue()
        assert await job.result("20s") == [None, "none"]
    # A phase that was given up is not begun again by what fails after it.
    assert ran == ["thumbnails", "captions", "captions", "upload", "upload", "upload"]
    record = await job.record()
    assert record.state is State.COMPLETED_WITH_ERRORS and record.errors is not None
    assert [(e["type"], e["phase"]) for e in record.errors] == [("ValueError", "thumbnails"), ("KeyError", "captions")]
    assert states(await phases_of(app, job)) == {"thumbnails": "failed", "captions": "failed", "upload": "completed"}


@sqlite
async def test_a_result_that_is_not_json_fails_the_phase_by_name(app: Dutiful) -> None:
    publish = app.pipeline("publish")

    @publish.phase
    async def first() -> Any:
        return object()

    @publish.phase
    async def second() -> None: ...

    async with working(app):
        record = await final(app, await publish.enqueue())
    assert record.state is State.FAILED and record.errors is not None
    assert "the result of phase first cannot be written as JSON" in record.errors[0]["message"]


async def test_only_the_last_phase_completes_the_job_itself(app: Dutiful) -> None:
    publish = app.pipeline("publish")

    @publish.phase
    async def first(ctx: Context) -> None:
        with pytest.raises(UsageError, match="phase first cannot complete the job: only the last phase can"):
            async with ctx.transaction():
                pass
        with pytest.raises(UsageError, match="only the last phase"):
            await ctx.complete_in(None)

    @publish.phase
    async def second(ctx: Context) -> None:
        ctx.progress(40)
        async with ctx.transaction() as transaction:
            transaction.complete("by itself")

    async with working(app):
        job = await publish.enqueue()
        assert await job.result("20s") == "by itself"
    assert states(await phases_of(app, job)) == {"first": "completed", "second": "completed"}
    progress = (await job.record()).progress
    assert progress is not None and (progress.percent, progress.overall) == (100, 100)


@sqlite
async def test_a_scheduled_pipeline_knows_its_phases(app: Dutiful) -> None:
    publish = app.pipeline("publish")

    @publish.phase
    async def only() -> int:
        return 1

    app.schedule(publish, every="1h")
    async with app_on(app, clock=Clock()) as kit:
        ran, *_ = await kit.drain(until="90m")
    assert ran.job.options is not None and ran.job.options["phases"] == ["only"]
    assert "scheduled_for" in ran.job.options and ran.job.result == 1


@sqlite
async def test_a_pipeline_runs_inline(app: Dutiful) -> None:
    publish = app.pipeline("publish")

    @publish.phase
    async def first(ctx: Context, n: int, db: str = Inject("db")) -> list[str]:
        ctx.progress(50, "half")
        return [db] * n

    @publish.phase(optional=True)
    def fails() -> None:
        raise ValueError("no")

    @publish.phase(when=lambda ctx: False)
    async def never() -> None: ...

    @publish.phase
    def last(ctx: Context, first: list[str], fails: str | None, never: int = 7) -> list[Any]:
        for item in (items := ctx.items(first[:1])).in_progress:
            items.complete(item)
        return [first, fails, never, ctx.phase]

    with inline(app, resources={"db": "base"}):
        expected = [["base", "base"], None, 7, "last"]
        assert await (await publish.enqueue(n=2)).result() == expected
        assert publish.sync.enqueue(n=2).result() == expected


@sqlite
async def test_a_pipeline_without_phases_stops_the_worker_before_it_starts(app: Dutiful) -> None:
    app.pipeline("publish")
    with pytest.raises(UsageError, match="pipeline publish has no phases yet"):
        async with working(app):
            pass
