"""Optional phases: what a pipeline may go on without, and what it may not."""

import asyncio
from typing import Any

import pytest
from running_workers import final, working
from test_pipelines import AT_ONCE, phases_of, states

from dutiful import Context, Dutiful, Fixed, LockLost, Retry, State, UsageError

sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
ONCE = Retry(max_attempts=1)


@sqlite
@pytest.mark.parametrize("gracious", [True, False])
async def test_an_optional_phase_that_fell_with_its_pipeline_is_begun_again(app: Dutiful, gracious: bool) -> None:
    publish, ran = app.pipeline("publish", retry=AT_ONCE, timeout="300ms"), []

    @publish.phase(optional=True)
    async def thumbnails() -> str:
        ran.append("thumbnails")
        try:
            await asyncio.sleep(0 if len(ran) > 1 else 3600)
        except asyncio.CancelledError:
            if gracious:
                raise
            raise ValueError("in the middle of it") from None
        return "made"

    async with working(app):
        record = await final(app, await publish.enqueue())
    assert (record.state, record.result, ran) == (State.COMPLETED, "made", ["thumbnails"] * 2)


@sqlite
@pytest.mark.parametrize("own", [None, ONCE])
@pytest.mark.parametrize("grouped", [False, True])
async def test_a_lost_lock_is_no_reason_to_go_on_without_a_phase(
    app: Dutiful, own: Retry | None, grouped: bool
) -> None:
    publish, ran = app.pipeline("publish", retry=AT_ONCE), []

    @publish.phase(optional=True, retry=own)
    async def thumbnails() -> None:
        ran.append("thumbnails")
        if len(ran) == 1:
            lost = LockLost("its connection ended")
            raise ExceptionGroup("of its tasks", [lost]) if grouped else lost

    async with working(app):
        record = await final(app, await publish.enqueue())
    assert (record.state, len(ran)) == (State.COMPLETED, 2)


@sqlite
async def test_a_condition_that_is_asynchronous_is_refused(app: Dutiful) -> None:
    publish = app.pipeline("publish", retry=ONCE)

    async def never(ctx: Context) -> bool:
        return False

    @publish.phase(when=lambda ctx: never(ctx))
    async def enlarge() -> None: ...

    async with working(app):
        job = await publish.enqueue()
        record = await final(app, job)
    assert record.errors is not None and record.errors[0]["type"] == UsageError.__name__
    assert "when of phase enlarge gave an awaitable" in record.errors[0]["message"]


async def test_a_phase_that_waited_for_another_try_is_cancelled_with_its_pipeline(app: Dutiful) -> None:
    publish = app.pipeline("publish", retry=Retry(max_attempts=3, backoff=Fixed("1h")))

    @publish.phase(optional=True)
    async def thumbnails() -> None:
        raise ValueError("no picture")

    @publish.phase
    async def upload() -> None:
        raise ValueError("not yet")

    async with working(app):
        job: Any = await publish.enqueue()
        while (await job.record()).state is not State.SCHEDULED:  # noqa: ASYNC110 - no event shows it
            await asyncio.sleep(0.01)
        await job.cancel()
    assert states(await phases_of(app, job)) == {"thumbnails": "failed", "upload": "cancelled"}
