"""The example media_pipeline: a job's way from its enqueue to its end, as its users see it."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from media import SHELF, Service, listening, seen, service, statuses

from dutiful import Context
from examples.media_pipeline.job import Status
from examples.media_pipeline.media import make

WHOLE = [
    "job:enqueued",
    "job:started",
    "job:phase:completed",
    "job:phase:completed",
    "job:phase:completed",
    "job:completed",
    "job:webhook:delivered",
]
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


@pytest.fixture
async def media(app_url: str, tmp_path: Path) -> AsyncIterator[Service]:
    async with service(app_url, tmp_path) as made:
        yield made


@pytest.mark.req("J12", "J13", "J14", "J22", "J27", "J29", "J31", "J32", "J62", "J63", "J64", "J65", "J86")
async def test_a_picture_is_downloaded_processed_and_uploaded_with_an_event_for_every_step(media: Service) -> None:
    async with media.queue() as queue, listening(queue) as listener:
        job_id = await queue.enqueue(media.order("dawn.ppm"))
        assert (await seen(queue, job_id)).id == job_id, "it is stored by then"
        completed = await listener.until("job:completed", job_id)
        delivered = await listener.until("job:webhook:delivered", job_id)
        assert listener.names() == WHOLE
        assert [t.data["phase"] for t in listener.events if t.name == "job:phase:completed"] == [
            "download",
            "process",
            "upload",
        ]
        job = await seen(queue, job_id)

    assert "webhook" not in json.dumps(completed.data), "delivery has an event of its own"
    assert delivered.at >= completed.at
    assert (job.status, job.progress, job.webhook_sent) == (Status.COMPLETED, 100, True)
    assert media.origin.products == {"dawn.png": make(SHELF["dawn.ppm"], lambda _: None).body}
    (message,) = media.origin.messages.values()
    assert (message["type"], message["data"]["job_id"]) == ("job.completed", job_id)
    found = job.result["found"]
    assert (found["width"], found["height"], sum(found["histogram"]["red"])) == (60, 40, 2400)


@sqlite
@pytest.mark.req("J36")
async def test_a_table_is_summed_up(media: Service) -> None:
    async with media.queue() as queue, listening(queue) as listener:
        job_id = await queue.enqueue(media.order("weather.csv"))
        await listener.until("job:completed", job_id)
        phases = {phase.name: phase.result for phase in (await seen(queue, job_id)).phases}
    rows = [[float(cell) for cell in line.split(",")] for line in SHELF["weather.csv"].decode().splitlines()[1:]]
    wind = [row[2] for row in rows]
    columns = phases["process"]["found"]["columns"]
    assert columns["wind"]["mean"] == pytest.approx(sum(wind) / len(wind), abs=1e-6)
    assert (columns["wind"]["min"], columns["wind"]["max"]) == (min(wind), max(wind))
    assert phases["download"]["size"] == len(SHELF["weather.csv"])
    assert json.loads(media.origin.products["weather.json"]) == phases["process"]["found"]


@pytest.mark.req("J28", "J30", "J33", "J34", "J35", "J37", "J38")
async def test_overall_progress_counts_phases_and_is_stored_before_its_event(media: Service) -> None:
    gates = {name: asyncio.Event() for name in ("one", "two", "three")}

    async def one(ctx: Context) -> int:
        ctx.progress(50)
        await gates["one"].wait()
        return 1

    async def two(ctx: Context, one: int) -> int:
        ctx.progress(25)
        await gates["two"].wait()
        return one + 1

    async def three(ctx: Context) -> Any:
        assert ctx.result("two") == 2
        ctx.progress(80)
        await gates["three"].wait()
        return dict(ctx.results())

    async with media.queue(one, two, three) as queue, listening(queue) as listener:
        job_id = await queue.enqueue({})
        for phase, overall in (("one", 17), ("two", 42), ("three", 93)):
            await listener.until("job:progress", job_id, phase=phase, overall=overall)
            job = await seen(queue, job_id)
            assert (job.progress, statuses(job)[phase]) == (overall, "running"), "it was stored before its event"
            gates[phase].set()
        await listener.until("job:completed", job_id)
        assert (await seen(queue, job_id)).result == {"one": 1, "two": 2}
    reported = [reported.data["overall"] for reported in listener.events if reported.name == "job:progress"]
    assert reported == sorted(reported)


@sqlite
@pytest.mark.req("J15", "J20", "J24")
async def test_a_delayed_job_waits_as_pending_and_starts_when_it_is_due(media: Service) -> None:
    async def work() -> None: ...

    async with media.queue(work) as queue, listening(queue) as listener:
        due = datetime.now(UTC) + timedelta(seconds=0.7)
        job_id = await queue.enqueue({}, scheduled_at=due)
        job = await seen(queue, job_id)
        assert (job.status, job.scheduled_at) == (Status.PENDING, due)
        assert (await listener.until("job:started", job_id)).at >= due
        await listener.until("job:completed", job_id)


@pytest.mark.req("J16", "J86")
async def test_a_jobs_own_webhook_takes_the_place_of_the_queues(media: Service) -> None:
    async def work() -> None: ...

    async with media.queue(work) as queue, listening(queue) as listener:
        job_id = await queue.enqueue({}, webhook_url=f"{media.url}/hooks/gone")
        failed = await listener.until("job:webhook:failed", job_id)
        assert "410" in failed.data["error"]
        assert not (await seen(queue, job_id)).webhook_sent
        assert not media.origin.messages
        await queue.enqueue({})  # one without takes the queue's, which was not disabled by the other's answer
        await listener.until("job:webhook:delivered")
    assert len(media.origin.messages) == 1


@pytest.mark.req("J4", "J18", "J19", "J21", "J23", "J25")
async def test_no_more_run_at_once_than_there_is_room_for_and_none_starts_twice(media: Service) -> None:
    running: set[int] = set()
    started: list[int] = []
    most = 0

    async def work(n: int) -> None:
        nonlocal most
        started.append(n)
        running.add(n)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.discard(n)

    async with media.queue(work, concurrency=3, webhook_url=None) as queue, listening(queue) as listener:
        for n in range(25):
            await queue.enqueue({"n": n})
        await listener.until("job:completed", times=25)
    assert sorted(started) == list(range(25))
    assert most <= 3
    assert listener.names().count("job:started") == 25
