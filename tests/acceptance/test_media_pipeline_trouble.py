"""The example media_pipeline when things go wrong: retries, fatal errors, cancellation, a killed process."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from media import Service, listening, seen, service, statuses

from dutiful import Context
from examples.media_pipeline.job import Status
from examples.media_pipeline.queue import Recoverable
from examples.media_pipeline.service import media_queue

sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


@pytest.fixture
async def media(app_url: str, tmp_path: Path) -> AsyncIterator[Service]:
    async with service(app_url, tmp_path) as made:
        yield made


@sqlite
@pytest.mark.req("J36", "J39", "J40", "J41", "J46")
async def test_a_retry_waits_as_pending_and_resumes_without_downloading_again(media: Service) -> None:
    media.origin.fail("products/dawn.png")
    async with media.queue(retry_delay=timedelta(seconds=1)) as queue, listening(queue) as listener:
        job_id = await queue.enqueue(media.order("dawn.ppm"))
        await listener.until("job:retrying", job_id)
        job = await seen(queue, job_id)
        assert job.status is Status.PENDING and job.scheduled_at is not None
        assert statuses(job) == {"download": "completed", "process": "completed", "upload": "failed"}
        kept = {phase.name: phase.result for phase in job.phases}
        await listener.until("job:completed", job_id)
        after = {phase.name: phase.result for phase in (await seen(queue, job_id)).phases}
    names = listener.names(job_id)
    assert names[names.index("job:retrying") :][:4] == [
        "job:retrying",
        "job:started",
        "job:phase:completed",
        "job:completed",
    ]
    assert (after["download"], after["process"]) == (kept["download"], kept["process"])
    assert (media.origin.gets["dawn.ppm"], media.origin.puts["dawn.png"]) == (1, 2)


@pytest.mark.req("J40", "J42", "J44")
async def test_an_error_is_final_unless_it_says_that_it_is_recoverable(media: Service) -> None:
    async with media.queue() as queue, listening(queue) as listener:
        job_id = await queue.enqueue(media.order("nowhere.ppm"))
        failed = await listener.until("job:failed", job_id)
        job = await seen(queue, job_id)
    assert "job:retrying" not in listener.names(job_id)
    assert (job.status, job.attempts, failed.data["errors"][0]["type"]) == (Status.FAILED, 1, "Refused")
    assert statuses(job) == {"download": "failed", "process": "pending", "upload": "pending"}


@sqlite
@pytest.mark.req("J3", "J43", "J45")
@pytest.mark.parametrize(
    ("backoff", "factors"), [("fixed", [1, 1, 1]), ("linear", [1, 2, 3]), ("exponential", [1, 2, 4])]
)
async def test_attempts_count_the_first_run_and_wait_as_the_backoff_says(
    media: Service, backoff: str, factors: list[int]
) -> None:
    async def work() -> None:
        raise Recoverable("not today")

    delay, due = timedelta(minutes=1), list[datetime | None]()
    queue = media.queue(work, backoff=backoff, retry_delay=delay, max_attempts=4, webhook_url=None)
    async with queue, listening(queue) as listener:
        job_id, operator = await queue.enqueue({}), await queue.app.operator()
        for retries in range(1, 4):
            await listener.until("job:retrying", job_id, times=retries)
            due.append((await seen(queue, job_id)).scheduled_at)
            await operator.jobs.retry(UUID(job_id))  # at once, instead of in some minutes
        await listener.until("job:failed", job_id)
        assert (await seen(queue, job_id)).attempts == 4
    assert listener.names(job_id) == ["job:enqueued", *3 * ["job:started", "job:retrying"], "job:started", "job:failed"]
    ends = [reported.at for reported in listener.events if reported.name == "job:retrying"]
    for factor, end, at in zip(factors, ends, due, strict=True):
        assert at is not None and (at - end) / delay == pytest.approx(factor, rel=0.12), "with a tenth of jitter"


@pytest.mark.req("J26", "J47", "J48", "J49", "J50", "J51")
async def test_only_the_named_running_job_is_cancelled_with_one_event(media: Service) -> None:
    media.origin.hold("files/dawn.ppm")
    async with media.queue() as queue, listening(queue) as listener:
        unwanted = await queue.enqueue(media.order("dawn.ppm"))
        sibling = await queue.enqueue(media.order("dawn.ppm", "sibling"))
        for job_id in (unwanted, sibling):
            await listener.until("job:started", job_id)
        assert await queue.cancel(unwanted)
        job = await seen(queue, unwanted)
        assert job.status is Status.CANCELLED, "as soon as cancel has returned"
        assert statuses(job) == {"download": "cancelled", "process": "cancelled", "upload": "cancelled"}
        assert not await queue.cancel(unwanted), "it has ended"
        await listener.until("job:cancelled", unwanted)
        media.origin.release("files/dawn.ppm")
        await listener.until("job:completed", sibling)
        await listener.until("job:webhook:delivered", unwanted)
    assert listener.names(unwanted) == ["job:enqueued", "job:started", "job:cancelled", "job:webhook:delivered"]
    assert set(media.origin.products) == {"sibling.png"}


@pytest.mark.req("J48", "J49", "J50", "J51")
@pytest.mark.parametrize("mode", ["async", "thread"])
async def test_a_phase_that_does_not_stop_does_not_delay_the_cancellation(media: Service, mode: str) -> None:
    running, go_on = threading.Event(), threading.Event()

    async def deaf() -> str:
        running.set()
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return "late"

    def blocked() -> str:
        running.set()
        go_on.wait(60)
        return "late"

    async def last() -> None: ...

    queue = media.queue(deaf if mode == "async" else blocked, last, webhook_url=None)
    async with queue, listening(queue) as listener:
        try:
            job_id = await queue.enqueue({})
            await asyncio.to_thread(running.wait, 20)
            assert await queue.cancel(job_id)
            job = await seen(queue, job_id)
        finally:
            go_on.set()
        await listener.until("job:cancelled", job_id)
    assert (job.status, set(statuses(job).values())) == (Status.CANCELLED, {"cancelled"})
    assert listener.names(job_id) == ["job:enqueued", "job:started", "job:cancelled"], "its result is refused"


@sqlite
@pytest.mark.req("J47")
async def test_a_second_cancel_waits_for_the_same_end(media: Service) -> None:
    signalled, go_on = asyncio.Event(), asyncio.Event()

    async def slow_to_stop() -> None:
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                signalled.set()

    queue = media.queue(slow_to_stop, cancel_grace=timedelta(minutes=1), webhook_url=None)
    async with queue, listening(queue) as listener:
        job_id = await queue.enqueue({})
        await listener.until("job:started", job_id)
        first = asyncio.create_task(queue.cancel(job_id))
        await asyncio.wait_for(signalled.wait(), 20)
        second = asyncio.create_task(queue.cancel(job_id))
        await asyncio.wait([second], timeout=0.1)
        early = second.done()
        go_on.set()
        assert all(await asyncio.gather(first, second))
        assert not early, "the job had not ended yet"
        assert (await seen(queue, job_id)).status is Status.CANCELLED


@pytest.mark.req("J48", "J51", "J52")
async def test_a_job_cancelled_between_two_phases_has_one_event(media: Service) -> None:
    async def first(ctx: Context) -> str:
        for _ in range(3):
            await queue.cancel(str(ctx.job_id))
        return "done"

    async def second() -> None:
        await asyncio.Event().wait()

    queue = media.queue(first, second)
    async with queue, listening(queue) as listener:
        job_id = await queue.enqueue({})
        await listener.until("job:webhook:delivered", job_id)
        job = await seen(queue, job_id)
    assert listener.names(job_id).count("job:cancelled") == 1
    assert job.status is Status.CANCELLED
    assert statuses(job)["second"] == "cancelled"
    assert statuses(job)["first"] in ("completed", "cancelled")


@sqlite
@pytest.mark.req("J53", "J54")
async def test_a_pending_job_is_cancelled_with_all_its_phases(media: Service) -> None:
    async with media.queue() as queue, listening(queue) as listener:
        job_id = await queue.enqueue(media.order(), scheduled_at=datetime.now(UTC) + timedelta(hours=1))
        assert await queue.cancel(job_id)
        await listener.until("job:webhook:delivered", job_id)
        job = await seen(queue, job_id)
    assert listener.names() == ["job:enqueued", "job:cancelled", "job:webhook:delivered"]
    assert set(statuses(job).values()) == {"cancelled"} and len(job.phases) == 3


@sqlite  # on Postgres it is detected only when the lease ends, and the term as leader
@pytest.mark.req("J6", "J10", "J11")
async def test_what_a_killed_process_left_active_is_failed_by_the_next_and_its_phases_are_kept(
    media: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUTIFUL_DATABASE_URL", media.database_url)
    media.origin.hold("products/dawn.png")
    queue = media_queue(media.folder)
    async with queue.app, listening(queue) as listener:
        job_id = await queue.enqueue(media.order("dawn.ppm"))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "examples.media_pipeline.worker_process",
            str(media.folder),
            cwd=Path(__file__).parents[2],
        )
        try:
            await listener.until("job:progress", job_id, phase="upload", percent=100)
            assert (await seen(queue, job_id)).status is Status.ACTIVE
        finally:
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        await queue.open()
        await listener.until("job:failed", job_id)
        job = await seen(queue, job_id)
        assert [each.status for each in await queue.jobs()] == [Status.FAILED]
        media.origin.release("products/dawn.png")
        await queue.shutdown()
    assert job.error is not None and job.error.startswith("WorkerLost")
    assert statuses(job) == {"download": "completed", "process": "completed", "upload": "interrupted"}
    assert "job:retrying" not in listener.names()
