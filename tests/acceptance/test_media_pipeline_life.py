"""The example media_pipeline as a whole: how it opens, streams, keeps, forgets and shuts down."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from media import DEADLINE, Service, listening, seen, service

from dutiful import Context, JobRecord, ShutdownTimeout, UsageError
from dutiful.worker import worker as worker_module
from examples.media_pipeline.config import Config
from examples.media_pipeline.job import Status
from examples.media_pipeline.queue import NAMES, JobQueue
from examples.media_pipeline.story import NEW

SECOND = timedelta(seconds=1)
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


@pytest.fixture
async def media(app_url: str, tmp_path: Path) -> AsyncIterator[Service]:
    async with service(app_url, tmp_path) as made:
        yield made


async def work() -> str:
    return "done"


async def no_listeners(queue: JobQueue) -> bool:
    """Whether all listeners are gone."""
    client = await queue.app.client()
    return not client.watcher.streams and not await client.store.events.has_listeners()


# --- opening


def has_log(database_url: str) -> bool:
    return Path(f"{database_url.removeprefix('sqlite:///')}-wal").exists()


@pytest.mark.req("J1", "J2", "J3", "J4", "J5", "J6", "J7", "J8", "J9")
async def test_it_opens_in_a_fixed_order(media: Service, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "dutiful.startup"):
        async with media.queue(work, stale_after=SECOND, delete_after=2 * SECOND):
            if media.database_url.startswith("sqlite"):
                assert has_log(media.database_url), "a write-ahead log"
    said = [record.message for record in caplog.records if record.name == "dutiful.startup"]
    assert said == [
        "settings read",
        "store open",
        "retry policies of 1 kinds",
        "worker made",
        "webhooks: media",
        "recovered",
        "services: promoter, rescuer, gates, limits, events, scheduler, retention, webhooks, reviewer, sealer, rollup, "
        "alerts",
        "first claim",
    ]


@pytest.mark.req("J1", "J44")
def test_a_config_has_defaults_and_is_checked_before_anything_is_opened(tmp_path: Path) -> None:
    config = Config(phases=[work], database_url=f"sqlite:///{tmp_path}/jobs.db")
    assert (config.max_attempts, config.backoff, config.stale_after, config.webhook_url) == (
        3,
        "exponential",
        None,
        None,
    )
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"phases": []}, "phases is empty"),
        ({"backoff": "random"}, "fixed, linear or exponential"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"webhook_url": "https://example.org/hook"}, "needs a secret"),
        ({"webhook_url": "http://127.0.0.1/hook", "webhook_secrets": [NEW]}, "loopback"),
        ({"stale_after": 2 * SECOND, "delete_after": SECOND, "webhook_url": "https://example.org"}, "longer than"),
    ]
    for changes, phrase in wrong:
        with pytest.raises(UsageError, match=phrase):
            JobQueue(replace(config, **changes))
    assert not list(tmp_path.iterdir())


# --- streams


@pytest.mark.req("J55", "J56", "J57", "J58", "J59", "J60", "J61")
async def test_a_stream_begins_with_the_snapshot_goes_on_with_events_and_pings_and_leaves_no_trace(
    media: Service,
) -> None:
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    async with media.queue(wait, ping=timedelta(seconds=0.2)) as queue:
        job_id = await queue.enqueue({})
        async with aclosing(queue.create_event_stream(snapshot=True)) as stream:
            first = await anext(stream)
            assert first.name == "snapshot"
            assert [job["id"] for job in first.data["jobs"]] == [job_id]
            async for reported in stream:
                if reported.name == "ping":
                    break
        before = await seen(queue, job_id)
        assert await no_listeners(queue)
        async with aclosing(queue.create_event_stream()) as stream:  # without a snapshot, only what is new
            assert (await anext(stream)).name == "ping"
            gate.set()
            received = [reported.name async for reported in _until(stream, "job:webhook:delivered")]
        assert [name for name in received if name not in ("ping", "job:progress")] == [
            "job:phase:completed",
            "job:completed",
            "job:webhook:delivered",
        ]
        assert before.status is Status.ACTIVE
        assert await no_listeners(queue)


@sqlite
@pytest.mark.req("J58")
async def test_pings_come_while_events_do(media: Service) -> None:
    stop = asyncio.Event()

    async def chatty(ctx: Context) -> None:
        percent = 0.0
        while not stop.is_set():
            percent = (percent + 1) % 100
            ctx.progress(percent)
            await asyncio.sleep(0.02)

    # Progress is stored about four times a second, so the stream is never silent for as long as a ping takes.
    async with media.queue(chatty, ping=timedelta(seconds=0.6)) as queue:
        await queue.enqueue({})
        async with aclosing(queue.create_event_stream()) as stream:
            names: list[str] = []
            async with asyncio.timeout(DEADLINE):
                while names.count("ping") < 3:
                    names.append((await anext(stream)).name)
        stop.set()
    assert names.count("job:progress") >= 2


async def _until(stream: AsyncIterator[Any], name: str) -> AsyncIterator[Any]:
    async with asyncio.timeout(DEADLINE):
        async for reported in stream:
            yield reported
            if reported.name == name:
                return


@pytest.mark.req("J86")
def test_every_event_has_a_name() -> None:
    assert sorted(NAMES.values()) == sorted(
        [
            "job:enqueued",
            "job:started",
            "job:progress",
            "job:phase:completed",
            "job:completed",
            "job:retrying",
            "job:failed",
            "job:cancelled",
            "job:webhook:delivered",
            "job:webhook:failed",
            "job:stale",
            "job:deleted",
        ]
    )


# --- webhooks and retention


@sqlite
async def test_a_receiver_changes_over_to_a_new_secret_without_losing_a_message(media: Service) -> None:
    async with media.queue(work) as queue, listening(queue) as listener:
        await queue.enqueue({})
        await listener.until("job:webhook:delivered")
        media.origin.rotate(NEW)
        await queue.enqueue({})
        await listener.until("job:webhook:delivered", times=2)
    assert (len(media.origin.messages), media.origin.refused) == (2, 0)


@pytest.mark.req("J68", "J69", "J70", "J71", "J72", "J73", "J74", "J75", "J76")
async def test_jobs_become_stale_and_are_deleted_after_their_callbacks(media: Service) -> None:
    story: list[str] = []

    def on_stale(job: JobRecord) -> None:
        story.append(f"on_stale {job.id}")

    async def on_delete(job: JobRecord) -> None:
        story.append(f"on_delete {job.id}")

    held = asyncio.Event()

    async def hold(wait: bool) -> None:
        if wait:
            await held.wait()

    queue = media.queue(hold, stale_after=SECOND, delete_after=6 * SECOND, on_stale=on_stale, on_delete=on_delete)
    async with queue, listening(queue) as listener:
        active = await queue.enqueue({"wait": True})
        job_id = await queue.enqueue({"wait": False})
        await listener.until("job:stale", job_id)
        assert story == [f"on_stale {job_id}"]
        assert (await seen(queue, job_id)).status is Status.STALE
        await listener.until("job:deleted", job_id)
        assert story == [f"on_stale {job_id}", f"on_delete {job_id}"]
        assert await queue.get(job_id) is None
        assert (await seen(queue, active)).status is Status.ACTIVE, "only what has ended"
        held.set()
        await listener.until("job:completed", active)
    assert listener.names(job_id)[-2:] == ["job:stale", "job:deleted"]


@sqlite
@pytest.mark.req("J73", "J76")
async def test_a_job_becomes_stale_before_it_is_deleted_also_without_a_time_for_that(media: Service) -> None:
    async with media.queue(work, delete_after=SECOND, webhook_url=None) as queue, listening(queue) as listener:
        job_id = await queue.enqueue({})
        await listener.until("job:deleted", job_id)
    assert listener.names(job_id)[-2:] == ["job:stale", "job:deleted"]


@pytest.mark.req("J67")
async def test_a_job_that_is_deleted_while_its_webhook_is_under_way_does_no_harm(
    media: Service, caplog: pytest.LogCaptureFixture
) -> None:
    media.origin.hold("hooks")
    async with media.queue(work, stale_after=SECOND, delete_after=SECOND) as queue, listening(queue) as listener:
        job_id = await queue.enqueue({})
        await listener.until("job:deleted", job_id)
        assert not media.origin.messages
        media.origin.release("hooks")
        another = await queue.enqueue({})
        await listener.until("job:webhook:delivered", another)
    assert {message["data"]["job_id"] for message in media.origin.messages.values()} == {job_id, another}
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# --- shutdown


@pytest.mark.req("J17", "J66", "J77", "J78", "J79", "J82", "J83", "J84")
async def test_shutdown_lets_jobs_and_webhooks_end_and_starts_nothing_new(media: Service) -> None:
    running, release = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        running.set()
        await release.wait()

    queue = media.queue(slow)
    await queue.open()
    watcher = (await queue.app.client()).watcher
    async with listening(queue) as listener:
        media.origin.hold("hooks")
        job_id = await queue.enqueue({})
        await asyncio.wait_for(running.wait(), DEADLINE)
        due = datetime.now(UTC) + timedelta(milliseconds=100)
        delayed = await queue.enqueue({}, scheduled_at=due)
        closing = asyncio.create_task(queue.shutdown("20s"))
        await asyncio.sleep(0)  # it was notified
        late = await queue.enqueue({})
        await asyncio.sleep((due - datetime.now(UTC)).total_seconds() + 0.2)  # now a timer would have rung
        release.set()
        await listener.until("job:completed", job_id)
        assert not closing.done(), "the webhook is under way"
        media.origin.release("hooks")
        assert watcher.streams
        await asyncio.wait_for(closing, DEADLINE)
        assert not watcher.streams, "though the listener has not left"
    async with queue.app:  # a fresh look at what was stored
        job = await seen(queue, job_id)
        assert (job.status, job.webhook_sent) == (Status.COMPLETED, True)
        assert [(await seen(queue, other)).status for other in (late, delayed)] == [Status.PENDING] * 2
        assert await no_listeners(queue)


@sqlite
@pytest.mark.req("J80", "J81", "J84", "J85")
async def test_a_deaf_handler_delays_the_error_but_not_the_cleanup(
    media: Service, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        worker_module, "CLEANUP_SECONDS", 0.5
    )  # of the second drain, which needs less than the usual five seconds
    story: list[str] = []
    in_vain: list[asyncio.Task[Any]] = []
    cancel_all = worker_module._cancel_all

    async def cancel_and_note(tasks: Sequence[asyncio.Task[Any]]) -> None:
        await cancel_all(tasks)
        in_vain.extend(task for task in tasks if not task.done())

    monkeypatch.setattr(worker_module, "_cancel_all", cancel_and_note)
    running = {True: asyncio.Event(), False: asyncio.Event()}
    the_end = asyncio.Event()
    request.addfinalizer(the_end.set)

    async def phase(deaf: bool) -> None:
        running[deaf].set()
        while not the_end.is_set():
            try:
                await the_end.wait()
            except asyncio.CancelledError:
                story.append("deaf" if deaf else "polite")
                if not deaf:
                    raise

    queue = media.queue(phase)
    await queue.open()
    jobs = [await queue.enqueue({"deaf": deaf}) for deaf in (True, False)]
    for event in running.values():
        await asyncio.wait_for(event.wait(), DEADLINE)
    with pytest.raises(ShutdownTimeout, match="2 jobs were interrupted"):
        await queue.shutdown("0.1s")
    assert {"deaf", "polite"} <= set(story)
    assert in_vain == [], "the second drain was all the time that the deaf one had"
    async with queue.app:
        assert [(await seen(queue, job_id)).status for job_id in jobs] == [Status.PENDING] * 2, "back in line"
        store = (await queue.app.client()).store
        assert [worker.kinds for worker in await store.workers.all()] == [[]], "it claims nothing, but one runs on"
        the_end.set()
        async with asyncio.timeout(DEADLINE):
            while await store.workers.all():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
