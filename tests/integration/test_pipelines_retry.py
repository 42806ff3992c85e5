"""A job in phases that is tried again: what it passes by, what it begins anew, and how often."""

from datetime import UTC, datetime

import pytest
from running_workers import eventually, final, working
from test_pipelines import AT_ONCE, events, phases_of, sqlite, states, store_of

from dutiful import Context, Dutiful, Fixed, Retry, Snooze, State
from dutiful.core.events import EventType
from dutiful.testing import app_on


@pytest.mark.req("J39", "J40", "J41")
async def test_a_retry_passes_by_what_was_completed(app: Dutiful) -> None:
    publish, ran = app.pipeline("publish", retry=AT_ONCE), []

    @publish.phase
    async def download() -> dict[str, int]:
        ran.append("download")
        return {"size": 3}

    @publish.phase
    def process(ctx: Context, download: dict[str, int]) -> int:
        ran.append("process")
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return download["size"]

    @publish.phase
    async def upload(process: int) -> int:
        ran.append("upload")
        return process

    async with working(app):
        job = await publish.enqueue()
        assert await job.result("20s") == 3
    assert ran == ["download", "process", "process", "process", "upload"]
    phases = await phases_of(app, job)
    assert [phase.attempt for phase in phases.values()] == [1, 3, 1]
    assert states(phases) == {"download": "completed", "process": "completed", "upload": "completed"}
    types = await events(app, job)
    assert types.count(EventType.RETRYING) == 2
    assert types.count(EventType.PHASE_COMPLETED) == 3


@pytest.mark.req("D118", "D119")
async def test_a_pipeline_that_restarts_begins_with_its_first_phase(app: Dutiful) -> None:
    publish, ran, seen = app.pipeline("publish", retry=AT_ONCE, on_retry="restart"), [], []

    @publish.phase
    async def download(ctx: Context) -> int:
        ran.append("download")
        record = await app.find(ctx.job_id)
        assert record is not None and record.progress is not None
        seen.append((record.progress.phase, record.progress.overall, record.progress.message))
        seen.append(states(await phases_of(app, record)))  # type: ignore[arg-type]
        ctx.progress(99, "downloaded")
        return ctx.attempt

    @publish.phase
    async def upload(ctx: Context, download: int) -> int:
        ran.append("upload")
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return download

    async with working(app):
        assert await (await publish.enqueue()).result("20s") == 2
    assert ran == ["download", "upload", "download", "upload"]
    assert seen == [("download", 0, None), {"download": "running"}] * 2


@pytest.mark.req("J40", "J42", "J46")
async def test_a_failed_phase_waits_with_its_job_and_fails_with_it(app: Dutiful) -> None:
    publish = app.pipeline("publish", retry=Retry(max_attempts=2, backoff=Fixed("1h")))

    @publish.phase
    async def download() -> None:
        raise ValueError("no such file")

    @publish.phase
    async def upload() -> None: ...

    async with working(app):
        job = await publish.enqueue()

        async def waits() -> bool:
            return (await job.record()).state is State.SCHEDULED

        await eventually(waits)
        record, phases = await job.record(), await phases_of(app, job)
        assert record.run_at is not None and record.run_at > datetime.now(UTC)
        assert states(phases) == {"download": "failed"}
        error = phases["download"].error
        assert error is not None and (error["type"], error["message"]) == ("ValueError", "no such file")
        await (await store_of(app)).control.run_now(job.id)
        record = await final(app, job)
    assert record.state is State.FAILED
    assert record.errors is not None and record.errors[0]["phase"] == "download"
    types = await events(app, job)
    assert (types.count(EventType.RETRYING), types.count(EventType.FAILED)) == (1, 1)
    assert (await phases_of(app, job))["download"].attempt == 2


@pytest.mark.req("J44")
@sqlite
async def test_a_kind_says_whether_an_error_is_fatal(app: Dutiful) -> None:
    async def fails() -> None:
        raise ValueError("no")

    app.pipeline("lenient", retry=Retry(backoff=Fixed("1h"))).phase(fails)
    app.pipeline("strict", retry=Retry(max_attempts=1)).phase(fails)
    async with app_on(app) as kit:
        for name in ("lenient", "strict"):
            await app.enqueue(name)
        assert {ran.kind: ran.state for ran in await kit.drain()} == {
            "lenient": State.SCHEDULED,
            "strict": State.FAILED,
        }


@sqlite
async def test_a_phase_with_a_policy_of_its_own_is_tried_as_often_as_that_says(app: Dutiful) -> None:
    publish = app.pipeline("publish", retry=Retry(max_attempts=2, backoff=Fixed("0s")))
    strictly: list[int] = []

    @publish.phase(retry=Retry(max_attempts=3, backoff=Fixed("0s")))
    async def flaky(ctx: Context, times: int) -> int:
        assert ctx.phase_attempt is not None and ctx.attempt == 1
        if ctx.phase_attempt < times:
            raise ValueError("not yet")
        return ctx.phase_attempt

    @publish.phase
    async def strict(ctx: Context, fails: bool) -> None:
        strictly.append(ctx.attempt)
        if fails:
            raise ValueError("never")

    async with working(app):
        assert (await final(app, await publish.enqueue(times=3, fails=False))).state is State.COMPLETED
        assert (await final(app, await publish.enqueue(times=4, fails=False))).state is State.FAILED
        assert strictly == [1]
        record = await final(app, await publish.enqueue(times=3, fails=True))
    # The tries of the first phase were its own: the pipeline has both of its attempts for the second.
    assert (record.state, record.attempt, strictly) == (State.FAILED, 2, [1, 1, 2])
    assert record.errors is not None and record.errors[0]["phase"] == "strict"


async def test_a_snoozed_phase_is_begun_again_and_has_spent_nothing(app: Dutiful) -> None:
    publish, ran = app.pipeline("publish"), []

    @publish.phase
    async def first() -> None:
        ran.append("first")

    @publish.phase(retry=Retry(max_attempts=1))
    async def second() -> Snooze | None:
        ran.append("second")
        return Snooze("1h") if len(ran) == 2 else None

    async with working(app):
        job = await publish.enqueue()

        async def waits() -> bool:
            return (await job.record()).state is State.SCHEDULED

        await eventually(waits)
        phases = await phases_of(app, job)
        assert states(phases) == {"first": "completed", "second": "interrupted"}
        assert phases["second"].attempt == 0
        await (await store_of(app)).control.run_now(job.id)
        await job.result("20s")
    assert ran == ["first", "second", "second"]
