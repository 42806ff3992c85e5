"""Slow work cannot hold up fast work: shown by the order in which things happen, not by a clock."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from running_workers import eventually, final, working

from dutiful import Dutiful, State
from dutiful.core.outcome import Lost
from dutiful.core.settle import Policy, decide
from dutiful.declare.lane import LaneSettings
from dutiful.store.claims import ClaimRequest, QueueLevel


def recorded(app: Dutiful, go: asyncio.Event) -> tuple[list[str], Any, Any]:
    """What happens, in its order, and two kinds that do not end before they may."""
    happened: list[str] = []

    @app.job(timeout="never")
    async def analysis() -> None:
        happened.append("analysis begins")
        await go.wait()
        happened.append("analysis ends")

    @app.job(queue="fast")
    async def email(hold: bool = False) -> None:
        happened.append("email begins")
        if hold:
            await go.wait()
        happened.append("email ends")

    return happened, analysis, email


async def seen(happened: list[str], what: str, count: int) -> None:
    async def look() -> bool:
        return happened.count(what) >= count

    await eventually(look)


@pytest.mark.req("L2", "L3", "L4", "L5")
async def test_with_fifty_slow_jobs_waiting_fast_jobs_start_without_waiting_for_one(app: Dutiful) -> None:
    go = asyncio.Event()
    happened, analysis, email = recorded(app, go)
    await analysis.enqueue_many({} for _ in range(50))

    async with working(app):
        await seen(happened, "analysis begins", 5)
        for _ in range(3):  # again and again, and not only as long as some slot is fresh
            mails = await email.enqueue_many({} for _ in range(5))
            for mail in mails:
                assert (await final(app, mail)).state is State.COMPLETED

        assert happened == ["analysis begins"] * 5 + ["email begins", "email ends"] * 15, "no slow job ended meanwhile"
        go.set()
        await seen(happened, "analysis ends", 50)


@pytest.mark.req("L2", "L3")
async def test_the_fast_lane_has_three_slots_and_the_general_one_five_for_any_kind(app: Dutiful) -> None:
    go = asyncio.Event()
    happened, analysis, email = recorded(app, go)

    async with working(app) as worker:
        assert {lane.name: len(lane.slots) for lane in worker.lanes} == {"fast": 3, "general": 5}
        await email.enqueue_many({"hold": True} for _ in range(20))
        await seen(happened, "email begins", 8)  # what is idle helps: any kind may run in the general lane
        slow = await analysis.enqueue()
        assert happened == ["email begins"] * 8
        go.set()
        await final(app, slow)
        await seen(happened, "email ends", 20)


@pytest.mark.req("L5", "L6")
async def test_each_worker_keeps_slots_for_fast_jobs(app: Dutiful) -> None:
    go = asyncio.Event()
    happened, analysis, email = recorded(app, go)
    await analysis.enqueue_many({} for _ in range(50))

    async with working(app), working(app):
        await seen(happened, "analysis begins", 10)
        mails = await email.enqueue_many({"hold": True} for _ in range(10))
        await seen(happened, "email begins", 6)
        assert happened.count("analysis begins") == 10 and "analysis ends" not in happened
        go.set()
        for mail in mails:
            await final(app, mail)
        await seen(happened, "analysis ends", 50)


async def test_a_backlog_does_not_keep_a_suspect_waiting(app: Dutiful) -> None:
    """A job that was running when its worker died: with a backlog, no slot is idle when a lane claims."""
    app.configure(lanes=(LaneSettings("all", 1),))
    started: list[str] = []

    @app.job
    async def short() -> None:
        started.append("short")
        await asyncio.sleep(0.005)

    @app.job
    async def lost() -> None:
        started.append("lost")

    store = (await app.client()).store
    await lost.enqueue()
    ask = ClaimRequest(uuid4(), "all", [QueueLevel("default", 100)], ["lost"], 1, timedelta(minutes=1))
    (held,) = await store.claims.claim(ask)
    await short.enqueue_many({} for _ in range(600))
    async with working(app, services=False):
        await seen(started, "short", 50)
        await store.claims.settle([decide(held, Lost(), Policy(), 5, lambda low, high: low)])
        await seen(started, "lost", 1)
        assert started.count("short") < 600
        await seen(started, "short", 600)
