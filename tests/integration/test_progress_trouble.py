"""Items and reports that would bring down more than themselves."""

import asyncio
from collections.abc import Sequence
from enum import IntEnum
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from faulty_store import faulty_store
from running_workers import final, working
from test_progress import progress_of

from dutiful import Context, Dutiful, Fixed, LockLost, Retry, State
from dutiful.store.progress import PhaseMark, ProgressReport
from dutiful.worker.executor.progress import ProgressTracker, ProgressWriter

ONCE = Retry(max_attempts=1)
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


async def nothing(item: Any) -> None: ...


@sqlite
@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt()])
async def test_an_item_that_would_end_the_process_has_failed(app: Dutiful, ending: BaseException) -> None:
    async def leave(name: str) -> None:
        if name == "bad":
            raise ending

    @app.job(retry=ONCE)
    async def handler(ctx: Context) -> None:
        await ctx.each(["bad", "good"], leave)

    async with working(app):
        record = await final(app, await handler.enqueue())
    assert record.state is State.COMPLETED_WITH_ERRORS and record.errors is not None
    assert (record.errors[0]["type"], record.errors[0]["item"]) == (type(ending).__name__, "bad")


@sqlite
async def test_a_slot_that_waits_for_its_last_report_ends_with_its_worker(app: Dutiful) -> None:
    ended = asyncio.Event()

    @app.job
    async def handler(ctx: Context) -> None:
        ctx.progress(50)
        ended.set()

    async with faulty_store(app) as (client, store):
        store.away = True
        worker = app.make_worker(client)
        running = asyncio.create_task(worker.run())
        await handler.enqueue()
        await ended.wait()
        while not store.reports:  # noqa: ASYNC110 - no event shows it
            await asyncio.sleep(0.01)
        (slot,) = [slot for lane in worker.lanes for slot in lane.slots if slot.task and slot.started]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert slot.task is not None and slot.task.done()


@sqlite
async def test_names_of_the_users_own_classes_are_texts_and_numbers(app: Dutiful) -> None:
    class Slug(str):
        __slots__ = ()

    class Size(IntEnum):
        LARGE = 3

    @app.job(retry=ONCE)
    async def handler(ctx: Context) -> None:
        await ctx.each([Slug("main"), Size.LARGE], nothing)
        items = ctx.items([Slug("by hand")])
        items.fail(Slug("by hand"), Slug("why not"))
        items.start("good")
        items.complete(Slug("good"))
        async with ctx.lock(Slug("edition"), Slug("main")), ctx.lock("size", Size.LARGE):
            pass

    async with working(app):
        job = await handler.enqueue()
        record = await final(app, job)
    assert record.state is State.COMPLETED_WITH_ERRORS, record.errors
    assert record.errors == [{"type": "ItemFailed", "message": "why not", "item": "by hand"}]
    items = (await progress_of(job)).items
    assert items is not None and items["completed"] == ["good"]


class Fussy:
    """Cannot write one of the reports, and raises an unexpected error."""

    async def report(
        self, reports: Sequence[ProgressReport], marks: Sequence[PhaseMark] = (), **_: Any
    ) -> frozenset[int]:
        if any(report.message == "strange" for report in reports):
            raise TypeError("what is that?")
        return frozenset()


async def test_a_report_that_cannot_be_written_fails_no_other() -> None:
    reporter = ProgressWriter(Fussy(), lambda: None)  # type: ignore[arg-type]
    tracks = [ProgressTracker(Mock(job_id=uuid4(), claim_id=n), reporter) for n in range(5)]
    tracks[2].progress(50, "strange")

    answers = await asyncio.gather(*(reporter.write(track, ()) for track in tracks), return_exceptions=True)

    reporter.close()
    assert [type(answer) for answer in answers] == [type(None), type(None), TypeError, type(None), type(None)]


@sqlite
async def test_a_lost_lock_is_not_an_items_failure(app: Dutiful) -> None:
    tries: list[int] = []

    async def update(name: str) -> None:
        if name == "bad" and len(tries) == 1:
            raise LockLost("its connection ended")

    @app.job(retry=Retry(max_attempts=2, backoff=Fixed("0s")))
    async def handler(ctx: Context) -> None:
        tries.append(ctx.attempt)
        await ctx.each(["good", "bad"], update)

    async with working(app):
        record = await final(app, await handler.enqueue())
    assert (record.state, tries) == (State.COMPLETED, [1, 2])
