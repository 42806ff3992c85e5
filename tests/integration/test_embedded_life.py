"""Who keeps the store open beside an embedded worker, and what a failed open or close leaves behind."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from receivers import SECRET, ok, receiving
from running_workers import eventually, final

from dutiful import Dutiful, Inject, JobCancelled, ShutdownTimeout, State, StoreUnavailable, UsageError
from dutiful.maintenance.rescuer import Rescuer
from dutiful.store import Store
from dutiful.store.claims import ClaimRequest, QueueLevel
from dutiful.store.workers import WorkerRecord
from dutiful.stores import liveness
from dutiful.worker import leases
from dutiful.worker import worker as worker_module


async def test_a_block_of_the_app_inside_leaves_the_worker_its_store(app: Dutiful) -> None:
    app.configure(poll="60s")

    @app.job
    async def hello() -> str:
        return "hello"

    async with app.embedded():
        client = await app.client()
        async with app:
            first = await hello.enqueue()
        await app.close()
        assert await first.result("20s") == "hello"
        assert await (await hello.enqueue()).result("20s") == "hello"
        assert await app.client() is client, "the worker is notified at once of jobs of the same client"
    with pytest.raises(StoreUnavailable):
        await client.store.queries.queues()


async def test_a_block_of_the_app_outside_keeps_its_store_when_the_worker_ends(app: Dutiful) -> None:
    @app.job
    async def hello() -> None: ...

    async with app:
        async with app.embedded():
            job = await hello.enqueue()
            await job.result("20s")
        assert (await job.record()).state is State.COMPLETED


async def test_one_app_may_have_two_workers_and_each_ends_alone(app: Dutiful) -> None:
    @app.job
    async def hello() -> str:
        return "hello"

    first, second = app.embedded(), app.embedded()
    await first.open()
    await second.open()
    client = await app.client()
    assert len(await client.store.workers.all()) == 2
    await second.close()
    assert await (await hello.enqueue()).result("20s") == "hello"
    await first.close()
    with pytest.raises(StoreUnavailable):
        await client.store.queries.queues()


async def test_a_second_close_waits_for_the_end_of_the_first(app: Dutiful) -> None:
    running, release = asyncio.Event(), asyncio.Event()

    @app.job
    async def slow() -> None:
        running.set()
        await release.wait()

    queue = app.embedded(grace="20s")
    await queue.open()
    await slow.enqueue()
    await asyncio.wait_for(running.wait(), 20)
    closers = [asyncio.create_task(queue.close()) for _ in range(2)]
    _, waiting = await asyncio.wait(closers, timeout=0.1)
    assert len(waiting) == 2
    with pytest.raises(UsageError, match="still closing"):
        await queue.open()
    release.set()
    await asyncio.gather(*closers)
    await queue.close()  # there is nothing left to close
    async with queue:
        assert await (await app.client()).store.workers.all() != [], "and it may be opened again"


@pytest.mark.req("J84")
async def test_a_close_that_is_cancelled_interrupts_the_jobs_and_still_cleans_up(app: Dutiful) -> None:
    running = asyncio.Event()

    @app.job
    async def slow() -> None:
        running.set()
        await asyncio.sleep(3600)

    queue = app.embedded(grace="1h")
    await queue.open()
    client = await app.client()
    job = await slow.enqueue()
    await asyncio.wait_for(running.wait(), 20)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.close(), 0.1)
    with pytest.raises(StoreUnavailable):
        await client.store.queries.queues()
    async with app.opened() as fresh:
        assert await fresh.store.workers.all() == []
        record = await fresh.find(job.id)
        assert record is not None and record.state is State.READY and record.attempt == 0


@pytest.mark.parametrize("steps", [1, 6, 12, 30])
async def test_an_opening_that_is_cancelled_leaves_no_thread(sqlite_path: Path, steps: int) -> None:
    app = Dutiful(f"sqlite:///{sqlite_path}")

    async def gone() -> bool:
        return not any(str(sqlite_path) in thread.name for thread in threading.enumerate())

    opening = asyncio.create_task(app.embedded().open())
    for _ in range(steps):
        await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert await eventually(gone)


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_an_opening_that_is_cancelled_again_and_again_still_closes_what_it_opened(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovering, closing, story = asyncio.Event(), asyncio.Event(), []

    async def recover(self: Rescuer) -> int:
        recovering.set()
        await asyncio.Event().wait()
        return 0

    @app.resource
    async def connection() -> AsyncIterator[str]:
        try:
            yield "open"
        finally:
            closing.set()
            for _ in range(10):
                await asyncio.sleep(0)
            story.append("closed")

    @app.job
    async def work(connection: str = Inject("connection")) -> None: ...

    monkeypatch.setattr(Rescuer, "rescue_orphans", recover)
    opening = asyncio.create_task(app.embedded().open())
    await recovering.wait()
    opening.cancel()
    await asyncio.wait_for(closing.wait(), 20)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert story == ["closed"]
    app.configure(poll="1s")  # which is refused while the app is open


async def test_an_opening_that_fails_late_leaves_no_worker_behind(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Rescuer) -> int:
        raise OSError("no such device")

    monkeypatch.setattr(Rescuer, "rescue_orphans", fail)
    with pytest.raises(OSError, match="no such device"):
        await app.embedded().open()
    async with app.opened() as client:
        assert await client.store.workers.all() == []


async def test_late_jobs_and_lost_outcomes_are_both_reported(app: Dutiful, monkeypatch: pytest.MonkeyPatch) -> None:
    running = asyncio.Event()

    @app.job
    async def slow() -> None:
        running.set()
        await asyncio.sleep(3600)

    async def refuse(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("down")

    monkeypatch.setattr(worker_module, "CLEANUP_SECONDS", 0.3)
    queue = app.embedded(grace="0.1s")
    await queue.open()
    await slow.enqueue()
    await asyncio.wait_for(running.wait(), 20)
    (await app.client()).store.claims.settle = refuse  # type: ignore[method-assign]
    late = r"^1 job was interrupted after the grace of 100ms; 1 outcome could not be stored: .* when their leases end$"
    with pytest.raises(ShutdownTimeout, match=late):
        await queue.close()


async def test_a_job_of_this_process_is_cancelled_without_waiting_for_a_poll(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "CHECK_EVERY", 3600.0)
    running = asyncio.Event()

    @app.job
    async def slow() -> None:
        running.set()
        await asyncio.sleep(3600)

    app.configure(lease="1h")
    async with app.embedded(grace="0.1s"):
        job = await slow.enqueue()
        await asyncio.wait_for(running.wait(), 20)
        assert await job.cancel("not wanted")
        with pytest.raises(JobCancelled, match="not wanted"):
            await job.result("20s")


STUCK = """
import asyncio, sys, time
from dutiful import Dutiful, ShutdownTimeout
from dutiful.worker import worker as worker_module

worker_module.CLEANUP_SECONDS = 0.2
app = Dutiful(f"sqlite:///{sys.argv[1]}")

@app.job
def stuck() -> None:
    running.set()
    time.sleep(3600)

async def main() -> None:
    async with app.embedded(grace="0.1s"):
        await stuck.enqueue()
        await asyncio.to_thread(running.wait)

import threading
running = threading.Event()
try:
    asyncio.run(main())
except ShutdownTimeout as late:
    print(late)
"""


@pytest.mark.req("J85")
async def test_a_blocking_handler_that_does_not_stop_does_not_keep_the_process_alive(sqlite_path: Path) -> None:
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", STUCK, str(sqlite_path)], capture_output=True, text=True, timeout=30
    )
    assert (ended.returncode, ended.stdout) == (
        0,
        "1 job was interrupted after the grace of 100ms, and released\n",
    ), ended.stderr
    async with Dutiful(f"sqlite:///{sqlite_path}").opened() as fresh:
        assert await fresh.store.workers.all() == [], "it has not signed off at its end"


@pytest.mark.req("J5", "J6", "J7", "J8", "J9")
async def test_webhooks_are_declared_and_orphans_rescued_before_services_and_the_first_claim(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.job
    async def nothing() -> None: ...

    app.configure(webhook_secrets=SECRET)
    app.webhook("orders", "https://example.org/hook")
    calls: list[str] = []
    make_store: Callable[[], Store] = app.make_store

    def spied() -> Store:
        store = make_store()
        for subject, verb in (
            ("webhooks", "put"),
            ("claims", "orphans"),
            ("leadership", "survey"),
            ("claims", "claim"),
        ):
            part = getattr(store, subject)
            setattr(part, verb, recorded(verb, getattr(part, verb)))
        return store

    def recorded(verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def record(*args: Any, **kwargs: Any) -> Any:
            result = await call(*args, **kwargs)
            calls.append(verb)
            return result

        return record

    monkeypatch.setattr(app, "make_store", spied)
    async with app.embedded():
        await (await nothing.enqueue()).result("20s")
    assert calls[:2] == ["put", "orphans"]
    assert {"survey", "claim"} <= set(calls[2:])


@pytest.mark.req("J5", "J6", "J65")
async def test_a_job_lost_with_its_process_is_posted_to_a_new_webhook(sqlite_path: Path) -> None:
    app = Dutiful(f"sqlite:///{sqlite_path}", webhook_secrets=SECRET, webhook_networks="127.0.0.0/8")

    @app.job(on_crash="fail")
    async def charge() -> None: ...

    job = await charge.enqueue()
    async with app.opened() as client:
        process = await asyncio.create_subprocess_exec("sleep", "60")
        now = datetime.now(UTC)
        died = WorkerRecord(
            id=uuid4(),
            name="dead",
            host=liveness.HOST,
            pid=process.pid,
            started_at=now,
            seen_at=now,
            lanes={},
            kinds=[],
        )
        await client.store.workers.heartbeat(died, timedelta(hours=1))
        ask = ClaimRequest(died.id, "general", [QueueLevel("default", 100)], ["charge"], 1, timedelta(hours=1))
        assert len(await client.store.claims.claim(ask)) == 1
        process.kill()
        await process.wait()
    await app.close()
    async with receiving(ok) as receiver:
        app.webhook("orders", receiver.url)
        async with app.embedded():
            (call,) = await receiver.called()
            assert call.verified()["type"] == "job.failed"
            assert (await final(app, job)).state is State.FAILED
