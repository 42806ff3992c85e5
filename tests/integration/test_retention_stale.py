"""Finished jobs grow stale, then go: in order, with callbacks and events, and never before their time."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from running_workers import clocked, eventually

from dutiful import Dutiful, EventType, JobRecord, Scope, Unique, UsageError, factory
from dutiful.client.client import Client
from dutiful.events import Subscription
from dutiful.maintenance import retention
from dutiful.maintenance.retention import Retention
from dutiful.options import Options
from dutiful.store.retention import RetentionStep
from dutiful.testing import Clock, app_on

HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def finished(app: Dutiful, client: Client, count: int = 1) -> list[JobRecord]:
    """Jobs that have ended at the clock's time."""
    kind = app.kind("work")
    jobs = kind.prepare_many(Options(), [{}] * count)
    await client.submit_many(jobs)
    for job in jobs:
        assert (await client.cancel(job.id, "over")).changed
    return [await client.get(job.id) for job in jobs]


@pytest.fixture
def worked(app: Dutiful) -> Dutiful:
    @app.job
    async def work() -> None: ...

    return app


@pytest.mark.req("J68", "J69", "J70", "J71", "J72", "J73", "J74", "J75", "J76")
async def test_a_job_becomes_stale_and_is_deleted_each_callback_before_its_event(worked: Dutiful, clock: Clock) -> None:
    story: list[str] = []

    def on_stale(job: JobRecord) -> None:
        story.append(f"on_stale {job.state}")

    async def on_delete(job: JobRecord) -> None:
        story.append(f"on_delete {job.state} {job.stale_at is not None}")

    async with clocked(worked, clock) as client:
        service = Retention(
            client.store,
            2 * HOUR,
            HOUR,
            on_stale=[on_stale],
            on_delete=[on_delete],
            notify=client.delivery.notify_watchers,
        )
        (job,) = await finished(worked, client)

        wanted = Subscription(jobs=frozenset({job.id}), types=frozenset({EventType.STALE, EventType.DELETED}))
        async with client.watcher.subscribe(wanted, snapshot=False) as stream:

            async def follow() -> None:
                async for item in stream:
                    story.append(f"event {item.type}")

            following = asyncio.create_task(follow())
            await service.run_once()
            assert story == [], "nothing is due yet"
            clock.advance("61m")
            await service.run_once()
            await eventually(lambda: _has(story, "event stale"))
            record = await client.find(job.id)
            assert record is not None and record.stale_at == clock.now(), "stale, but still there"
            clock.advance("61m")
            await service.run_once()
            await eventually(lambda: _has(story, "event deleted"))
            following.cancel()
            assert await client.find(job.id) is None
    assert story == ["on_stale cancelled", "event stale", "on_delete cancelled True", "event deleted"]


async def _has(story: list[str], line: str) -> bool:
    return line in story


@pytest.mark.req("J73", "J76")
async def test_only_what_is_stale_is_deleted(worked: Dutiful, clock: Clock) -> None:
    """A job past both cutoffs that was never marked stale waits for the mark first."""
    async with clocked(worked, clock) as client:
        (job,) = await finished(worked, client)
        clock.advance("3h")
        assert (await client.store.retention.delete(2 * HOUR, 10, None, stale_only=True)).count == 0
        assert (
            await client.store.retention.delete(2 * HOUR, 10, None, stale_only=True, sent=True, tombstones=True)
        ).jobs == []
        await Retention(client.store, 2 * HOUR, HOUR).run_once()
        assert await client.find(job.id) is None, "one pass marks it and then deletes it"


@pytest.mark.req("J71", "J74")
async def test_a_callback_that_fails_stops_nothing(
    worked: Dutiful, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def angry(job: JobRecord) -> None:
        raise RuntimeError("no")

    async with clocked(worked, clock) as client:
        jobs = await finished(worked, client, 3)
        clock.advance("3h")
        await Retention(client.store, 2 * HOUR, HOUR, on_stale=[angry], on_delete=[angry]).run_once()
        assert [await client.find(job.id) for job in jobs] == [None, None, None]
    logged = [record for record in caplog.records if "angry failed for job" in record.message]
    assert sorted(vars(one)["correlation_id"] for one in logged) == sorted(str(job.id) for job in jobs * 2)


def _stop(job: JobRecord) -> None:
    raise StopIteration


def _exit(job: JobRecord) -> None:
    raise SystemExit(3)


async def _exit_async(job: JobRecord) -> None:
    raise SystemExit(3)


async def _await_the_cancelled(job: JobRecord) -> None:
    (cancelled := asyncio.get_running_loop().create_future()).cancel()
    await cancelled


async def _cancel_itself(job: JobRecord) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.req("J71", "J74")
@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("callback", [_stop, _exit, _exit_async, _await_the_cancelled, _cancel_itself])
async def test_a_callback_that_ends_in_an_odd_way_stops_nothing(
    worked: Dutiful, clock: Clock, callback: retention.Callback, caplog: pytest.LogCaptureFixture
) -> None:
    async with clocked(worked, clock) as client, asyncio.timeout(20):
        jobs = await finished(worked, client, 3)
        clock.advance("3h")
        await Retention(client.store, 2 * HOUR, on_delete=[callback]).run_once()
        assert [await client.find(job.id) for job in jobs] == [None, None, None]
        assert await client.store.retention.unsent(10) == []
    assert sum("failed for job" in record.message for record in caplog.records) == 3


@pytest.mark.req("J75")
async def test_a_watcher_that_joins_during_a_pass_gets_the_rest_of_it(
    worked: Dutiful, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 1)
    async with clocked(worked, clock) as client:
        jobs = await finished(worked, client, 3)
        clock.advance("3h")
        retain = client.store.retention.delete

        async def then_watch(*args: Any, **options: Any) -> RetentionStep:
            try:
                return await retain(*args, **options)
            finally:
                await client.store.events.listen(uuid4(), HOUR)

        monkeypatch.setattr(client.store.retention, "delete", then_watch, raising=False)
        await Retention(client.store, HOUR).run_once()
        assert [await client.find(job.id) for job in jobs] == [None] * 3
        assert len(await client.store.events.tombstones([job.id for job in jobs])) == 2


@pytest.mark.req("J71", "J74")
async def test_callbacks_of_many_jobs_cost_a_commit_a_slice_and_each_comes_before_its_commit(
    worked: Dutiful, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SLICE", 2)
    monkeypatch.setattr(retention, "SLICE_TIME", 3600.0)
    story: list[str] = []
    async with clocked(worked, clock) as client:
        await finished(worked, client, 5)
        clock.advance("3h")
        store = client.store
        mark_sent = store.retention.mark_sent

        async def marked(stale: Sequence[UUID], deleted: Sequence[UUID]) -> None:
            story.append(f"commit of {len(deleted)}")
            await mark_sent(stale, deleted)

        monkeypatch.setattr(store.retention, "mark_sent", marked)
        await Retention(store, 2 * HOUR, on_delete=[lambda job: story.append("callback")]).run_once()
    assert story == ["callback", "callback", "commit of 2"] * 2 + ["callback", "commit of 1"]


@pytest.mark.req("J71", "J74")
async def test_a_callback_is_awaited_however_it_is_made(worked: Dutiful, clock: Clock) -> None:
    called: list[str] = []

    async def note(name: str) -> None:
        await asyncio.sleep(0)
        called.append(name)

    class Noted:
        async def __call__(self, job: JobRecord) -> None:
            await note("object")

    worked.on_delete(Noted())
    worked.on_delete(lambda job: note("lambda"))
    with pytest.raises(UsageError, match="on_stale got 'archive': give it a function"):
        worked.on_stale("archive")  # type: ignore[type-var]
    async with clocked(worked, clock) as client:
        await finished(worked, client)
        clock.advance("3h")
        await Retention(client.store, 2 * HOUR, on_delete=worked.delete_callbacks).run_once()
    assert called == ["object", "lambda"]


async def test_what_belongs_to_no_job_goes_even_where_jobs_stay_for_good(sqlite_path: Path) -> None:
    app = Dutiful(f"sqlite:///{sqlite_path}", retention="never")

    @app.job
    async def work() -> None: ...

    clock = Clock()
    async with clocked(app, clock) as client:
        job = await work.options(unique=Unique("a", Scope.WINDOW, window=HOUR)).enqueue()
        assert await job.cancel()
        clock.advance("2h")
        await factory.make_retention(app, client).run_once()
        with closing(sqlite3.connect(sqlite_path)) as db:
            assert db.execute("SELECT count(*) FROM dutiful_unique_key").fetchone() == (0,)
        assert await client.find(job.id) is not None


@pytest.mark.req("J71", "J74", "J76")
async def test_callbacks_that_a_dead_process_owed_are_called_by_the_next(worked: Dutiful, clock: Clock) -> None:
    called: list[str] = []
    async with clocked(worked, clock) as client:
        (job,) = await finished(worked, client)
        clock.advance("3h")
        await client.store.retention.mark_stale(HOUR, 10, None, sent=False)  # and then it died
        await Retention(
            client.store,
            2 * HOUR,
            HOUR,
            on_stale=[lambda job: called.append("stale")],
            on_delete=[lambda job: called.append("deleted")],
        ).run_once()
        assert called == ["stale", "deleted"]
        assert await client.find(job.id) is None


@pytest.mark.req("J68")
async def test_live_jobs_and_young_ones_are_left_alone(worked: Dutiful, clock: Clock) -> None:
    async with clocked(worked, clock) as client:
        kind = worked.kind("work")
        waiting = kind.prepare(Options(), {})
        await client.submit(waiting)
        (old,) = await finished(worked, client)
        clock.advance("3h")
        (young,) = await finished(worked, client)
        await Retention(client.store, 2 * HOUR, HOUR).run_once()
        assert await client.find(old.id) is None
        assert await client.find(waiting.id) is not None
        record = await client.find(young.id)
        assert record is not None and record.stale_at is None


async def test_retention_of_an_app_goes_by_its_settings() -> None:
    app = Dutiful(stale_after="1h", retention="2h")
    gone: list[str] = []

    @app.job
    async def work() -> None: ...

    @app.on_delete
    def remember(job: JobRecord) -> None:
        gone.append(job.kind)

    clock = Clock()
    async with app_on(app, clock=clock) as kit:
        await work.enqueue()
        await kit.drain()
        clock.advance("3h")
        await kit.run_retention()
    assert gone == ["work"]


@pytest.mark.req("J72", "J75", "J76")
@pytest.mark.parametrize("watched", ["the job", "everything"])
async def test_a_job_that_is_stale_and_deleted_between_two_polls_sends_both_events(
    worked: Dutiful, clock: Clock, watched: str
) -> None:
    received: list[str] = []
    async with clocked(worked, clock) as client:
        (job,) = await finished(worked, client)
        clock.advance("3h")
        store = client.store
        types = frozenset({EventType.STALE, EventType.DELETED})
        wanted = Subscription(jobs=frozenset({job.id}) if watched == "the job" else None, types=types)
        async with client.watcher.subscribe(wanted, snapshot=False) as stream:
            await eventually(store.events.has_listeners)
            await store.retention.mark_stale(HOUR, 10, None, sent=True)
            await store.retention.delete(2 * HOUR, 10, None, stale_only=True, sent=True, tombstones=True)
            client.delivery.notify_watchers()
            while len(received) < 2:
                received.append((await asyncio.wait_for(anext(stream), 20)).type)
    assert received == ["stale", "deleted"]
