"""Event streams of jobs: what is stored, in order, once each."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import asyncpg
import event_jobs
import psycopg
import pytest
from event_jobs import of_type, reaching, read_until, types
from receivers import SECRET, answer, receiving
from running_workers import eventually, final, state, working

from dutiful import (
    Context,
    Dutiful,
    Event,
    EventType,
    Fixed,
    JobNotFound,
    MalformedId,
    Retry,
    Snapshot,
    State,
    StreamOverflow,
    UsageError,
)
from dutiful.core.errors import StoreUnavailable
from dutiful.core.job import PhaseState
from dutiful.events import watcher
from dutiful.maintenance.retention import Retention
from faults import Fleet

FINAL = of_type("completed", "failed", "cancelled")


@pytest.mark.req("J14", "J22", "J30", "J31", "J32", "J55")
async def test_a_listener_gets_each_step_when_it_is_stored(app: Dutiful) -> None:
    publish = app.pipeline("publish")
    go_on = asyncio.Event()

    @publish.phase
    async def download(ctx: Context) -> int:
        ctx.progress(50, "half of it")
        await go_on.wait()
        return 7

    @publish.phase
    async def upload(download: int) -> int:
        return download * 2

    stored: list[tuple[str, State, list[PhaseState]]] = []
    async with app.events() as stream, working(app):
        job = await publish.enqueue()
        items: list[Any] = []
        async with asyncio.timeout(20):
            async for item in stream:
                record = await job.record()
                found = await (await app.client()).store.progress.phases(job.id)
                stored.append((str(item.type), record.state, [phase.state for phase in found]))
                items.append(item)
                if isinstance(item, Event) and item.type is EventType.PROGRESS and item.data["percent"] == 50:
                    assert record.progress is not None and record.progress.message == "half of it"
                    go_on.set()
                if FINAL(item):
                    break
    received = types(items)
    assert received[:2] == ["enqueued", "started"] and received[-1] == "completed"
    assert [kind for kind in received if kind != "progress"] == [
        "enqueued", "started", "phase_completed", "phase_completed", "completed",
    ]  # fmt: skip
    assert [item.data["phase"] for item in items if item.type == "phase_completed"] == ["download", "upload"]
    assert len({(item.job_id, item.key) for item in items}) == len(items), "once each"
    for kind, job_state, phases in stored:
        if kind == "phase_completed":
            assert PhaseState.COMPLETED in phases
        if kind == "completed":
            assert job_state is State.COMPLETED and phases == [PhaseState.COMPLETED] * 2
    assert items[-1].data["result"] == 14


@pytest.mark.req("J41", "J42")
async def test_a_retry_and_a_failure_are_sent_when_they_are_decided(app: Dutiful) -> None:
    @app.job(retry=Retry(max_attempts=2, backoff=Fixed("10ms")))
    async def fails() -> None:
        raise ValueError("no luck")

    async with app.events(kinds=["fails"]) as stream, working(app):
        job = await fails.enqueue()
        items = await read_until(stream, FINAL)
    assert types(items) == ["enqueued", "started", "retrying", "started", "failed"]
    assert items[2].data["error"]["message"] == "no luck" and "traceback" not in items[2].data["error"]
    assert items[-1].data["state"] == State.FAILED and (await job.record()).state is State.FAILED


@pytest.mark.req("J50", "J52", "J53")
async def test_a_cancellation_is_sent_once_in_whatever_state_the_job_was(app: Dutiful) -> None:
    publish = app.pipeline("publish")
    between = asyncio.Event()

    @publish.phase
    async def first() -> None: ...

    @publish.phase
    async def second() -> None:
        between.set()
        await asyncio.Event().wait()

    waiting = await publish.options(delay="1h").enqueue()
    async with app.events() as stream, working(app):
        await waiting.cancel()
        running = await publish.enqueue()
        await between.wait()
        await asyncio.gather(*(running.cancel() for _ in range(3)))
        items = await read_until(stream, lambda item: item.type == "cancelled" and item.job_id == running.id)
        marker = await publish.options(delay="1h").enqueue()
        items += await read_until(stream, lambda item: item.job_id == marker.id)
    for job in (waiting, running):
        own = [item.type for item in items if item.job_id == job.id]
        assert own.count(EventType.CANCELLED) == 1 and own[-1] is EventType.CANCELLED
        assert (await job.record()).state is State.CANCELLED


@pytest.mark.req("J56", "J57")
async def test_a_watched_job_is_shown_as_it_stands_and_then_every_event_since(app: Dutiful) -> None:
    publish = app.pipeline("publish")
    go_on = asyncio.Event()

    @publish.phase
    async def download() -> int:
        return 7

    @publish.phase
    async def upload(ctx: Context) -> None:
        ctx.progress(25)
        await go_on.wait()

    async with working(app):
        job, other = await publish.enqueue(), await publish.options(delay="1h").enqueue()

        async def half_way() -> bool:
            record = await job.record()
            return record.progress is not None and record.progress.percent == 25

        await eventually(half_way)
        async with app.events([job, other.public_id]) as stream:
            go_on.set()
            items = await read_until(stream, FINAL)
        async with (
            app.events(job) as late,
            app.events(job.id, snapshot=False, since=datetime(2000, 1, 1, tzinfo=UTC)) as all_,
        ):
            (last,) = await read_until(late, of_type("snapshot"))
            history = await read_until(all_, FINAL)
    snapshots = [item for item in items if isinstance(item, Snapshot)]
    assert snapshots == items[:2] and {item.job.id for item in snapshots} == {job.id, other.id}
    mine = next(item for item in snapshots if item.job.id == job.id)
    assert mine.job.state is State.RUNNING and mine.job.progress is not None and mine.job.progress.overall == 63
    assert [(phase.name, phase.state) for phase in mine.phases] == [("download", "completed"), ("upload", "running")]
    assert [kind for kind in types(items) if kind != "progress"] == ["phase_completed", "completed"]
    assert isinstance(last, Snapshot) and last.job.state is State.COMPLETED and not last.webhook_sent
    assert types(history)[:2] == ["enqueued", "started"] and types(history)[-1] == "completed"


async def test_a_filter_yields_only_what_matches(app: Dutiful) -> None:
    @app.job
    async def one() -> None: ...

    @app.job(queue="fast")
    async def two() -> None: ...

    async with (
        app.events(kinds=["one"], types=["completed"]) as ones,
        app.events(queues=["fast"], types=["started"]) as fast,
        app.events(tenant="acme", types=["enqueued"]) as acme,
        app.events(correlation_id="order 7") as order,
        working(app),
    ):
        first, second = (
            await two.options(tenant="acme").enqueue(),
            await one.options(correlation_id="order 7").enqueue(),
        )
        assert [item.job_id for item in await read_until(ones, FINAL)] == [second.id]
        assert [item.job_id for item in await read_until(fast, of_type("started"))] == [first.id]
        assert [item.job_id for item in await read_until(acme, of_type("enqueued"))] == [first.id]
        assert types(await read_until(order, FINAL)) == ["enqueued", "started", "completed"]


async def test_since_yields_what_happened_then_and_goes_on_without_a_gap(app: Dutiful) -> None:
    @app.job
    async def work(n: int) -> None: ...

    started = datetime.now(UTC) - timedelta(seconds=5)
    async with working(app):
        before = [await work.enqueue(n) for n in range(20)]
        for job in before:
            await job.result("20s")
        async with app.events(since=started) as stream:
            after = [await work.enqueue(n) for n in range(20)]
            items = await read_until(stream, reaching(40, FINAL))
    assert len(items) == len({(item.job_id, item.key) for item in items}) == 120, "each once, none missing"
    for job in [*before, *after]:
        assert [i.type for i in items if i.job_id == job.id] == ["enqueued", "started", "completed"]


@pytest.mark.req("J59", "J60", "J61")
async def test_closing_a_stream_frees_everything_and_changes_nothing(app: Dutiful) -> None:
    @app.job
    async def idle() -> None: ...

    job = await idle.enqueue()
    client = await app.client()
    before = asyncio.all_tasks()
    async with app.events(job) as stream, app.events() as other:
        assert await client.store.events.has_listeners()
        await read_until(stream, of_type("snapshot"))
        reading = asyncio.create_task(anext(other))
        await asyncio.sleep(0)
        reading.cancel()  # a reader that is closed while it waits
        await asyncio.gather(reading, return_exceptions=True)
    assert client.watcher.streams == set() and not await client.store.events.has_listeners()

    async def quiet() -> bool:
        return asyncio.all_tasks() <= before

    await eventually(quiet)
    assert await state(app, job) is State.READY
    async with working(app):
        assert (await final(app, job)).state is State.COMPLETED


async def test_a_slow_reader_is_dropped_and_others_are_not(app: Dutiful) -> None:
    @app.job
    async def work() -> None: ...

    async with app.events(types=["enqueued"]) as slow, app.events(types=["completed"]) as other, working(app):
        for _ in range(2):
            await work.enqueue_many([{}] * 300)
            async with asyncio.timeout(20):
                for _ in range(300):
                    await anext(other)
        items = []
        with pytest.raises(StreamOverflow):
            async for item in slow:
                items.append(item)
        assert 256 <= len(items) < 600
        assert len((await app.client()).watcher.streams) == 1


async def test_a_job_that_is_not_there_cannot_be_watched(app: Dutiful) -> None:
    @app.job
    async def idle() -> None: ...

    job = await idle.options(tenant="acme").enqueue()
    for wrong in ({"job": app.new_id()}, {"job": job, "tenant": "other"}):
        with pytest.raises(JobNotFound):
            async with app.events(**wrong):
                pass
    with pytest.raises(MalformedId):
        async with app.events("no id"):
            pass
    with pytest.raises(UsageError, match=r"kinds=\['idle'\]"):
        async with app.events(kinds="idle"):
            pass
    with pytest.raises(UsageError, match=r"types has 'ended'.*completed"):
        async with app.events(types=["ended"]):
            pass
    assert (await app.client()).watcher.streams == set()


async def listens(url: str) -> bool:
    """Whether the worker would be notified of a watcher: its first heartbeat comes a moment before it listens."""
    if url.startswith("sqlite"):
        return True
    with psycopg.connect(url) as connection:
        ears = connection.execute("select pid from pg_stat_activity where query like 'LISTEN%'").fetchall()
    return bool(ears)


@pytest.mark.req("J14", "J22", "J30", "J31", "J32", "J41", "J57")
async def test_listeners_get_events_of_other_processes(app_url: str, tmp_path: Path) -> None:
    """By hints alone: no timed poll would come in time."""
    event_jobs.app.configure(database_url=app_url)
    # Nor does the worker learn of the watcher by its heartbeat: the watcher notifies it.
    heartbeat = {"DUTIFUL_HEARTBEAT": "1h"}
    fleet = Fleet("event_jobs:app", app_url, folder=tmp_path, path=Path(__file__).parent, environment=heartbeat)
    with patch.object(watcher, "POLL_INTERVAL", 600.0):
        async with fleet, event_jobs.app as app:
            await fleet.start().ready((await app.client()).store)
            await eventually(lambda: listens(app_url))
            job = await event_jobs.publish.options(delay="1h").enqueue(url="here")
            async with app.events() as everything, app.events(job) as one:
                enqueue = [sys.executable, "-m", "dutiful.cli", "--app", "event_jobs:app", "enqueue"]
                fleet.run(*enqueue, "flaky", "works_at=2")
                items = await read_until(everything, FINAL)
                assert types(items) == ["enqueued", "started", "retrying", "started", "completed"]
                fleet.run(*enqueue[:-1], "jobs", "retry", job.public_id)
                mine = await read_until(one, FINAL)
    received = types(mine)
    assert received[0] == "started" and received[-1] == "completed"
    assert [kind for kind in received if kind != "progress"][1:-1] == ["phase_completed"] * 2


@pytest.mark.req("J14", "J22", "J30", "J31", "J32", "J41", "J42", "J50", "J65", "J72", "J75", "J86")
async def test_every_type_of_event_is_sent(app: Dutiful) -> None:
    app.configure(webhook_secrets=SECRET, webhook_networks="127.0.0.0/8")
    publish = app.pipeline("publish", retry=Retry(max_attempts=2, backoff=Fixed("10ms")))

    @publish.phase
    async def download(ctx: Context) -> None:
        ctx.progress(50)
        if ctx.attempt == 1:
            raise ConnectionError("try again")

    @app.job(retry=Retry(max_attempts=1))
    async def fails() -> None:
        raise ValueError("no luck")

    async with receiving() as good, receiving(answer(410)) as bad, app.events() as stream, working(app):
        client = await app.client()
        completed = await publish.options(webhook=good.url).enqueue()
        failed = await fails.options(webhook=bad.url).enqueue()
        cancelled = await fails.options(delay="1h").enqueue()
        await cancelled.cancel()
        items = await read_until(stream, reaching(2, of_type("webhook_delivered", "webhook_failed")))
        assert (await streamed_snapshot(app, completed)).webhook_sent
        async with app.events(completed, snapshot=False) as single:
            await Retention(client.store, None, timedelta(0)).run_once()
            items += await read_until(stream, reaching(3, of_type("stale")))
            mine = await read_until(single, of_type("stale"))
            await Retention(client.store, timedelta(0), timedelta(0), on_delete=[lambda job: None]).run_once()
            items += await read_until(stream, reaching(3, of_type("deleted")))
            async with asyncio.timeout(20):
                mine += [item async for item in single]
            assert types(mine) == ["stale", "deleted"], "and with its last job the stream ends"
    assert {item.type for item in items} == set(EventType)
    story = types([item for item in items if item.job_id == completed.id])
    assert [kind for kind in story if kind != "progress"] == [
        "enqueued", "started", "retrying", "started", "phase_completed", "completed", "webhook_delivered", "stale",
        "deleted",
    ]  # fmt: skip
    assert types([item for item in items if item.job_id == failed.id]) == [
        "enqueued", "started", "failed", "webhook_failed", "stale", "deleted",
    ]  # fmt: skip
    (done,) = [item for item in items if item.type == "completed"]
    assert "webhook" not in str(done.data), "its delivery comes later"


async def streamed_snapshot(app: Dutiful, job: Any) -> Snapshot:
    async with app.events(job) as stream:
        snapshot = await anext(stream)
    assert isinstance(snapshot, Snapshot)
    return snapshot


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_a_listener_misses_nothing_when_all_connections_are_cut(app: Dutiful, app_url: str) -> None:
    @app.job
    async def idle() -> None: ...

    job = await idle.enqueue()
    connection = await asyncpg.connect(app_url)
    async with app.events(job, snapshot=False) as one, app.events(types=["cancelled"]) as everything:
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'dutiful'"
        )
        try:
            await job.cancel("meanwhile")
        except StoreUnavailable:  # its connection broke, so it is unknown whether it was done
            await job.cancel("meanwhile")
        for stream in (one, everything):
            assert types(await read_until(stream, FINAL)) == ["cancelled"]
    await connection.close()


async def test_jobs_are_listed_and_looked_up_through_the_app(app: Dutiful) -> None:
    @app.job
    async def one() -> None: ...

    @app.job
    async def other() -> None: ...

    jobs = [await one.enqueue(), await one.enqueue(), await other.enqueue()]

    assert [job.id for job in await app.jobs(kind="one", state="ready")] == [jobs[1].id, jobs[0].id]
    assert [job.id for job in await app.jobs(before=jobs[2].public_id, limit=1)] == [jobs[1].id]
    with pytest.raises(UsageError, match="state 'done' must be one of: scheduled, ready"):
        await app.jobs(state="done")
    found = await app.snapshot(jobs[0].id)
    assert found is not None and (found.job.id, found.phases, found.webhook_sent) == (jobs[0].id, [], False)
    assert await app.snapshot(app.new_id()) is None
