"""Handlers and workers that are left over: a drain waits for them until they end, or somebody knows that they did."""

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
from operating import fall_silent, now, operator, trail
from working import eventually, working

from dutiful import Dutiful, ShutdownTimeout
from dutiful.core.errors import UsageError
from dutiful.store import Store
from dutiful.testing.store_suite.builders import complete, start_one
from dutiful.worker import shutdown

FAR = timedelta(minutes=10)
BEAT = "1s"  # a worker counts as alive for three of them: so long may a slow machine keep it from the next
pytestmark = pytest.mark.usefixtures("soon_settled")


def heed_nobody(begun: threading.Event, go: threading.Event) -> None:
    """What a handler in a thread may do: it is told to stop, and goes on until it is let go."""
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
        heed_nobody(begun, go)

    async with working(app):
        try:
            job = await crawl.enqueue()
            await asyncio.to_thread(begun.wait, 60)
            ada = await app.operator("ada")
            drain = await (ada.drain(everything=True) if scope == "everything" else ada.drain(kinds=["crawl"]))

            async def runs_on() -> bool:
                seen = await ada.draining(drain.parts)
                assert not seen.safe
                return [one.job_id for one in seen.holdups if "without a claim" in one.remedy] == [job.id]

            for act in acts:
                await getattr(ada, act)(job.id, "it hangs")
                await eventually(runs_on)
        finally:
            go.set()
        assert (await ada.drained(drain, FAR, lambda _: None)).safe


@pytest.mark.req("L93", "L95")
@pytest.mark.parametrize("mode", ["thread", "loop"])
@pytest.mark.parametrize("scope", ["kinds", "queues", "lanes", "everything"])
async def test_a_handler_that_outlives_its_embedded_worker_is_waited_for(
    app: Dutiful, mode: str, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "LAST_WORDS", 0.1)
    app.configure(heartbeat=BEAT)
    begun, go = threading.Event(), threading.Event()

    @app.job(name="thread", timeout="never")
    def in_thread() -> None:
        heed_nobody(begun, go)

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
        drain = await ada.drain(**{scope: names[scope]})

        async def runs_on() -> bool:
            seen = await ada.draining(drain.parts)
            assert not seen.safe
            return [one.job_id for one in seen.holdups if "without a claim" in one.remedy] == [job.id]

        await eventually(runs_on)
    finally:
        go.set()
    assert (await ada.drained(drain, FAR, lambda _: None)).safe
    assert await ada.workers() == []


@pytest.mark.req("L93", "L95")
async def test_a_job_that_was_taken_away_before_its_worker_could_tell_of_it_is_not_overlooked(app: Dutiful) -> None:
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
        await ada.pause("kind", "email")
        await ada.release(job.id)
        seen = await ada.draining()
        assert (seen.running, len(seen.unheard), seen.safe) == (0, 1, False)


@pytest.mark.req("L93")
@pytest.mark.parametrize("part", ["kinds", "queues", "lanes", "everything"])
async def test_a_worker_that_fell_silent_is_waited_for_until_somebody_knows_that_it_is_gone(
    store: Store, part: str
) -> None:
    worker, ada = await fall_silent(store), operator(store)
    await complete(store, await start_one(store, kind="email", now=now()), now=now())
    names: dict[str, Any] = {"kinds": ["email"], "queues": ["default"], "lanes": ["general"], "everything": True}

    drain = await ada.drain(**{part: names[part]})

    (silent,) = drain.silent
    assert (drain.safe, drain.unheard, silent.worker) == (False, [], worker.name)
    assert "be sure that its process has ended" in silent.remedy and f"--gone {worker.name}" in silent.remedy
    assert not (await ada.drained(drain, timedelta(0), lambda _: None)).safe
    assert (await ada.draining(drain.parts, gone=[worker.name])).safe
    again = await ada.drain(**{part: names[part]}, gone=[worker.name])
    assert again.safe and (await ada.drained(again, FAR, lambda _: None)).safe
    (*_, told) = await trail(store, action="fleet.drain")
    assert told.after is not None and told.after["gone"] == [worker.name]


@pytest.mark.req("L93")
async def test_only_a_worker_that_may_go_on_is_waited_for(store: Store) -> None:
    await complete(store, await start_one(store, kind="email", now=now()), now=now())
    ada = operator(store)
    await fall_silent(store, host="long-ago", since=timedelta(hours=2))
    ended = await asyncio.create_subprocess_exec("sleep", "60")
    await fall_silent(store, host=socket.gethostname(), pid=ended.pid)
    ended.kill()
    await ended.wait()
    first = await fall_silent(store, host="pod-1", pid=1)
    await store.beat(msgspec.structs.replace(first, id=uuid4(), started_at=now(), lanes={}), timedelta(hours=1))

    drain = await ada.drain(kinds=["email"])

    assert (drain.safe, drain.silent, drain.unheard) == (True, [], [])


@pytest.mark.req("L93")
async def test_a_worker_that_is_not_known_to_be_silent_cannot_be_called_gone(store: Store) -> None:
    ada = operator(store)
    here = await fall_silent(store, host=socket.gethostname(), pid=os.getpid())
    lately = await fall_silent(store, host="near", since=timedelta(0))

    for name, why in (
        (here.name, "its process is there"),
        (lately.name, "sign of life"),
        ("x:1", "there is no worker"),
    ):
        with pytest.raises(UsageError, match=why):
            await ada.drain(everything=True, gone=[name])
    assert await store.pauses() == []
