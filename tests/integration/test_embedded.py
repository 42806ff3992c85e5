"""A worker inside the user's own process: how it opens, gets its jobs, and closes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from receivers import SECRET, ok, receiving
from running_workers import eventually, final

from dutiful import Concurrency, Dutiful, Inject, ShutdownTimeout, State, StoreBusy, StoreUnavailable, UsageError
from dutiful.core.job import Claim
from dutiful.store.claims import ClaimRequest
from dutiful.worker import worker as worker_module


@pytest.mark.req("J1", "J2", "J3", "J4", "J5", "J6", "J7", "J8", "J9")
async def test_it_opens_in_a_fixed_order(app: Dutiful, caplog: pytest.LogCaptureFixture) -> None:
    @app.job
    async def nothing() -> None: ...

    app.configure(webhook_secrets="whsec_" + "c2VjcmV0" * 5, stale_after="1h", retention="2h")
    app.webhook("orders", "https://example.org/hook")
    with caplog.at_level(logging.DEBUG, "dutiful.startup"):
        async with app.embedded():
            pass

    assert [record.message for record in caplog.records if record.name == "dutiful.startup"] == [
        "settings read",
        "store open",
        "retry policies of 1 kinds",
        "worker made",
        "webhooks: orders",
        "recovered",
        "services: promoter, rescuer, gates, limits, events, scheduler, retention, webhooks, reviewer, sealer, rollup, "
        "alerts",
        "first claim",
    ]


@pytest.mark.req("J2")
async def test_a_file_is_opened_with_a_write_ahead_log(sqlite_path: Any) -> None:
    app = Dutiful(f"sqlite:///{sqlite_path}")

    @app.job
    async def nothing() -> None: ...

    async with app.embedded():
        assert sqlite_path.with_name(f"{sqlite_path.name}-wal").exists()


@pytest.mark.req("J1")
async def test_bad_settings_are_refused_before_anything_is_opened(sqlite_path: Any) -> None:
    app = Dutiful(f"sqlite:///{sqlite_path}", stale_after="3h", retention="1h")
    with pytest.raises(UsageError, match=r"stale_after is 3:00:00, longer than retention"):
        await app.embedded().open()
    assert not sqlite_path.exists()


async def test_it_opens_although_another_transaction_holds_the_limits_for_longer_than_a_call_waits(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job(concurrency=Concurrency(1))
    async def double(n: int) -> int:
        return 2 * n

    busy = [StoreBusy("the database made this wait too long for another transaction; try again")]
    async with app:
        limits = (await app.client()).store.limits
        put = limits.put

        async def busy_once(*args: Any, **rest: Any) -> None:
            if busy:
                raise busy.pop()
            await put(*args, **rest)

        monkeypatch.setattr(limits, "put", busy_once)
        async with app.embedded():
            assert not busy
            assert await (await double.enqueue(4)).result("20s") == 8


@pytest.mark.req("J12", "J13", "J14", "J23")
async def test_a_job_is_stored_before_its_id_is_known_and_runs_without_waiting_for_a_poll(app: Dutiful) -> None:
    app.configure(poll="60s")

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    job = await double.enqueue(4)
    async with app.opened() as other:  # what another connection sees has been committed
        stored = await other.find(job.id)
        assert stored is not None and stored.state is State.READY
    async with app.embedded():
        assert await job.result("20s") == 8
        again = await double.enqueue(5)
        assert await again.result("20s") == 10


@pytest.mark.req("J15", "J20", "J24")
async def test_a_delayed_job_starts_when_its_time_has_come_and_not_before(app: Dutiful) -> None:
    app.configure(poll="60s")

    @app.job
    async def later() -> None: ...

    async with app.embedded():
        due = datetime.now(UTC) + timedelta(seconds=0.6)
        job = await later.options(run_at=due).enqueue()
        record = await job.record()
        assert record.state is State.SCHEDULED
        ended = await final(app, job)
        assert ended.started_at is not None and ended.started_at >= due


@pytest.mark.req("J18", "J19", "J21", "J25")
async def test_jobs_that_arrive_during_a_claim_are_claimed_by_the_next_one_and_once(app: Dutiful) -> None:
    """A claim is delayed; a job that is enqueued meanwhile must not be missed."""
    app.configure(poll="60s", lanes="general=2:*")
    started: list[int] = []

    @app.job
    async def count(n: int) -> None:
        started.append(n)

    async with app.embedded():
        store = (await app.client()).store
        asking, go_on = asyncio.Event(), asyncio.Event()
        claim: Callable[..., Awaitable[list[Claim]]] = store.claims.claim

        async def slow_claim(ask: ClaimRequest, **rest: Any) -> list[Claim]:
            claims = await claim(ask, **rest)
            asking.set()
            await go_on.wait()
            return claims

        store.claims.claim = slow_claim  # type: ignore[method-assign]
        jobs = [await count.enqueue(0)]
        await asyncio.wait_for(asking.wait(), 20)
        jobs += [await count.enqueue(n) for n in range(1, 20)]
        go_on.set()
        for job in jobs:
            await job.result("20s")
    assert sorted(started) == list(range(20))


@pytest.mark.req("J17", "J77")
async def test_no_job_starts_once_the_worker_is_closing(app: Dutiful) -> None:
    release = asyncio.Event()
    running = asyncio.Event()

    @app.job
    async def slow() -> None:
        running.set()
        await release.wait()

    @app.job
    async def nothing() -> None: ...

    queue = app.embedded(grace="20s")
    await queue.open()
    await slow.enqueue()
    await asyncio.wait_for(running.wait(), 20)
    closing = asyncio.create_task(queue.close())
    await asyncio.sleep(0)  # it has begun to close
    late = await nothing.enqueue()
    release.set()
    await closing
    async with app.opened() as client:
        record = await client.find(late.id)
        assert record is not None and record.state is State.READY and record.attempt == 0


@pytest.mark.req("J79", "J84")
async def test_running_jobs_finish_and_then_the_store_is_closed(app: Dutiful) -> None:
    running, release = asyncio.Event(), asyncio.Event()

    @app.job
    async def slow() -> str:
        running.set()
        await release.wait()
        return "done"

    queue = app.embedded(grace="20s")
    await queue.open()
    client = await app.client()
    job = await slow.enqueue()
    await asyncio.wait_for(running.wait(), 20)
    asyncio.get_running_loop().call_later(0.2, release.set)
    await queue.close()

    with pytest.raises(StoreUnavailable):
        await client.store.queries.job(job.id)
    async with app.opened() as fresh:
        record = await fresh.find(job.id)
        assert record is not None and record.state is State.COMPLETED and record.result == "done"


@pytest.mark.req("J78", "J80", "J81", "J83", "J84", "J85")
async def test_a_handler_that_ignores_the_abort_delays_the_error_but_not_the_cleanup(
    app: Dutiful, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []
    running = {"deaf": asyncio.Event(), "polite": asyncio.Event()}
    the_end = asyncio.Event()

    @app.job
    async def deaf() -> None:
        running["deaf"].set()
        while not the_end.is_set():
            try:
                await the_end.wait()
            except asyncio.CancelledError:
                story.append("deaf was cancelled")

    @app.job
    async def polite() -> None:
        running["polite"].set()
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)  # the second drain waits for this
            story.append("polite has cleaned up")

    request.addfinalizer(the_end.set)
    monkeypatch.setattr(worker_module, "CLEANUP_SECONDS", 0.5)
    queue = app.embedded()
    await queue.open()
    client = await app.client()
    jobs = [await deaf.enqueue(), await polite.enqueue()]
    for event in running.values():
        await asyncio.wait_for(event.wait(), 20)
    received: list[str] = []

    async def follow() -> None:
        async with app.events(jobs[0]) as stream:
            async for item in stream:
                received.append(item.type)
        received.append("the end")

    following = asyncio.create_task(follow())
    await eventually(client.store.events.has_listeners)

    with pytest.raises(ShutdownTimeout, match="2 jobs were interrupted after the grace"):
        await queue.close(grace="0.2s")
    assert "polite has cleaned up" in story and "deaf was cancelled" in story
    await asyncio.wait_for(following, 20)
    assert received[0] == "snapshot" and received[-1] == "the end"
    with pytest.raises(StoreUnavailable):
        await client.store.queries.job(jobs[0].id)
    async with app.opened() as fresh:
        assert not await fresh.store.events.has_listeners()
        (outlived,) = await fresh.store.workers.all()  # until deaf has ended, the worker counts as alive
        assert outlived.kinds == [] and [lane.jobs for lane in outlived.lanes.values()] == [(jobs[0].id,)]
        for job in jobs:  # no attempt is spent: ready again
            record = await fresh.find(job.id)
            assert record is not None and record.state is State.READY and record.attempt == 0


@pytest.mark.req("J85")
async def test_an_error_of_the_block_itself_is_not_hidden_by_a_late_handler(app: Dutiful) -> None:
    running = asyncio.Event()

    @app.job
    async def slow() -> None:
        running.set()
        await asyncio.sleep(3600)

    with pytest.raises(ZeroDivisionError):
        async with app.embedded(grace="0.1s"):
            await slow.enqueue()
            await asyncio.wait_for(running.wait(), 20)
            raise ZeroDivisionError


async def test_a_worker_that_cannot_start_raises_the_reason_and_leaves_nothing_open(app: Dutiful) -> None:
    @app.resource
    def broken() -> int:
        raise OSError("no such device")

    @app.job
    async def uses(broken: int = Inject("broken")) -> None: ...

    with pytest.raises(OSError, match="no such device"):
        await app.embedded().open()
    async with app.opened() as client:
        assert await client.store.workers.all() == []


@pytest.mark.req("J78")
async def test_services_stop_before_running_jobs_are_waited_for(app: Dutiful) -> None:
    """A schedule that is due every second fires no more while a long job is drained."""
    running, release = asyncio.Event(), asyncio.Event()

    @app.job
    async def slow() -> None:
        running.set()
        await release.wait()

    @app.job
    async def tick() -> None: ...

    app.schedule(tick, every="1s")
    queue = app.embedded(grace="20s")
    await queue.open()
    await slow.enqueue()
    await asyncio.wait_for(running.wait(), 20)
    closing = asyncio.create_task(queue.close())

    async def resigned() -> bool:
        async with app.opened() as other:
            return (await other.store.leadership.survey(uuid4(), timedelta(seconds=1))).leading

    assert await eventually(resigned)
    release.set()
    await closing


@pytest.mark.req("J65", "J66", "J82", "J83")
async def test_events_during_the_close_are_received_before_listeners_are_removed(app: Dutiful) -> None:
    running, release = asyncio.Event(), asyncio.Event()

    @app.job
    async def slow() -> None:
        running.set()
        await release.wait()

    async with receiving(ok) as receiver:
        app.configure(webhook_secrets=SECRET, webhook_networks="127.0.0.0/8")
        queue = app.embedded(grace="20s")
        await queue.open()
        job = await slow.options(webhook=receiver.url).enqueue()
        received: list[str] = []

        async def follow() -> None:
            async with app.events(job) as stream:
                async for item in stream:
                    received.append(item.type)

        following = asyncio.create_task(follow())
        await asyncio.wait_for(running.wait(), 20)
        await eventually(lambda: _has(received, "snapshot"))
        closing = asyncio.create_task(queue.close())
        asyncio.get_running_loop().call_later(0.2, release.set)
        await closing
        await asyncio.wait_for(following, 20)
    assert received[-2:] == ["completed", "webhook_delivered"]


async def _has(received: list[str], kind: str) -> bool:
    return kind in received
