"""Lingering handlers and silent workers: a drain waits until they end, or are known to have ended."""

import asyncio
import contextlib
import os
import socket
import threading
from datetime import timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from operating import add_silent_worker, now, operator, trail
from running_workers import eventually, working

from dutiful import Dutiful, ShutdownTimeout
from dutiful.core.errors import UsageError
from dutiful.store import Store
from dutiful.worker import worker as worker_module
from suite.builders import complete, start_one

FAR = timedelta(minutes=10)
BEAT = "1s"  # a worker counts as alive for three of them: so long may a slow machine keep it from the next
pytestmark = pytest.mark.usefixtures("soon_settled")


def ignore_interruptions(begun: threading.Event, go: threading.Event) -> None:
    """A handler in a thread that is asked to stop, but runs on until it is released."""
    begun.set()
    while not go.is_set():
        with contextlib.suppress(BaseException):
            go.wait(60)


@pytest.mark.req("L93", "L95")
@pytest.mark.parametrize(
    ("acts", "scope"), [(["release"], "kinds"), (["fail"], "everything"), (["release", "cancel"], "kinds")]
)
async def test_a_handler_that_runs_on_after_its_claim_was_taken_away_is_waited_for(
    app: Dutiful, acts: list[str], scope: str
) -> None:
    app.configure(heartbeat=BEAT)
    begun, go = threading.Event(), threading.Event()

    @app.job(timeout="never")
    def crawl() -> None:
        ignore_interruptions(begun, go)

    async with working(app):
        try:
            job = await crawl.enqueue()
            await asyncio.to_thread(begun.wait, 60)
            ada = await app.operator("ada")
            drain = await (
                ada.fleet.drain(everything=True) if scope == "everything" else ada.fleet.drain(kinds=["crawl"])
            )

            async def runs_on() -> bool:
                seen = await ada.fleet.drain_status(drain.targets)
                assert not seen.safe
                return [one.job_id for one in seen.blockers if "without a claim" in one.remedy] == [job.id]

            for act in acts:
                await getattr(ada.jobs, act)(job.id, "it hangs")
                await eventually(runs_on)
        finally:
            go.set()
        assert (await ada.fleet.wait_drained(drain, FAR, lambda _: None)).safe


@pytest.mark.req("L93", "L95")
@pytest.mark.parametrize("mode", ["thread", "loop"])
@pytest.mark.parametrize("scope", ["kinds", "queues", "lanes", "everything"])
async def test_a_handler_that_outlives_its_embedded_worker_is_waited_for(
    app: Dutiful, mode: str, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "CLEANUP_SECONDS", 0.1)
    app.configure(heartbeat=BEAT)
    begun, go = threading.Event(), threading.Event()

    @app.job(name="thread", timeout="never")
    def in_thread() -> None:
        ignore_interruptions(begun, go)

    @app.job(name="loop", timeout="never")
    async def on_loop() -> None:
        begun.set()
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    names: dict[str, Any] = {"kinds": [mode], "queues": ["default"], "lanes": ["general"], "everything": True}
    try:
        with pytest.raises(ShutdownTimeout):
            async with app.embedded(grace="0s"):
                job = await app.enqueue(mode)
                await asyncio.to_thread(begun.wait, 60)
        ada = await app.operator("ada")
        drain = await ada.fleet.drain(**{scope: names[scope]})

        async def runs_on() -> bool:
            seen = await ada.fleet.drain_status(drain.targets)
            assert not seen.safe
            return [one.job_id for one in seen.blockers if "without a claim" in one.remedy] == [job.id]

        await eventually(runs_on)
    finally:
        go.set()
    assert (await ada.fleet.wait_drained(drain, FAR, lambda _: None)).safe
    assert await ada.fleet.workers() == []


@pytest.mark.req("L93", "L95")
async def test_a_job_that_was_taken_away_before_its_worker_could_report_it_is_not_overlooked(app: Dutiful) -> None:
    app.configure(heartbeat="1h")
    begun = asyncio.Event()

    @app.job
    async def email() -> None:
        begun.set()
        await asyncio.sleep(60)

    async with working(app):
        job = await email.enqueue()
        await asyncio.wait_for(begun.wait(), 60)
        ada = await app.operator("ada")
        await ada.fleet.pause("kind", "email")
        await ada.jobs.release(job.id)
        seen = await ada.fleet.drain_status()
        assert (seen.running, len(seen.unconfirmed), seen.safe) == (0, 1, False)


@pytest.mark.req("L93")
@pytest.mark.parametrize("part", ["kinds", "queues", "lanes", "everything"])
async def test_a_drain_waits_for_a_silent_worker_until_it_is_known_to_be_gone(store: Store, part: str) -> None:
    worker, ada = await add_silent_worker(store), operator(store)
    await complete(store, await start_one(store, kind="email", now=now()), now=now())
    names: dict[str, Any] = {"kinds": ["email"], "queues": ["default"], "lanes": ["general"], "everything": True}

    drain = await ada.fleet.drain(**{part: names[part]})

    (silent,) = drain.silent
    assert (drain.safe, drain.unconfirmed, silent.worker) == (False, [], worker.name)
    assert "make sure that its process has ended" in silent.remedy and f"--gone {worker.name}" in silent.remedy
    assert not (await ada.fleet.wait_drained(drain, timedelta(0), lambda _: None)).safe
    assert (await ada.fleet.drain_status(drain.targets, gone=[worker.name])).safe
    again = await ada.fleet.drain(**{part: names[part]}, gone=[worker.name])
    assert again.safe and (await ada.fleet.wait_drained(again, FAR, lambda _: None)).safe
    (*_, reported) = await trail(store, action="fleet.drain")
    assert reported.after is not None and reported.after["gone"] == [worker.name]


@pytest.mark.req("L93")
async def test_only_a_worker_that_may_go_on_is_waited_for(store: Store) -> None:
    await complete(store, await start_one(store, kind="email", now=now()), now=now())
    ada = operator(store)
    await add_silent_worker(store, host="long-ago", since=timedelta(hours=2))
    ended = await asyncio.create_subprocess_exec("sleep", "60")
    await add_silent_worker(store, host=socket.gethostname(), pid=ended.pid)
    ended.kill()
    await ended.wait()
    first = await add_silent_worker(store, host="pod-1", pid=1)
    await store.workers.heartbeat(
        msgspec.structs.replace(first, id=uuid4(), started_at=now(), lanes={}), timedelta(hours=1)
    )

    drain = await ada.fleet.drain(kinds=["email"])

    assert (drain.safe, drain.silent, drain.unconfirmed) == (True, [], [])


@pytest.mark.req("L93")
async def test_a_worker_that_is_not_known_to_be_silent_cannot_be_called_gone(store: Store) -> None:
    ada = operator(store)
    here = await add_silent_worker(store, host=socket.gethostname(), pid=os.getpid())
    lately = await add_silent_worker(store, host="near", since=timedelta(0))

    for name, why in (
        (here.name, "its process is there"),
        (lately.name, "sent a heartbeat"),
        ("x:1", "there is no worker"),
    ):
        with pytest.raises(UsageError, match=why):
            await ada.fleet.drain(everything=True, gone=[name])
    assert await store.control.pauses() == []
