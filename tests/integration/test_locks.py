"""Named locks as handlers take them: one holder at a time, everybody gets a turn, and no way out keeps one held."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import pytest
from lock_jobs import Room, another, until_locks
from running_workers import EVERYWHERE, eventually, final, working

from dutiful import Context, Dutiful, JobRecord, LaneSettings, Retry, ShutdownTimeout, Snooze, State, UsageError
from dutiful.kind import Handle
from dutiful.observe.logs import JobFields
from dutiful.worker.locks import connections
from dutiful.worker.locks import manager as worker_locks
from dutiful.worker.locks.handle import lock_name

everywhere = pytest.mark.parametrize("app_url", EVERYWHERE, indirect=True)
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
SOON = "20s"
ONCE = Retry(max_attempts=1)


@pytest.fixture(autouse=True)
def connections_that_stay_open() -> Iterator[None]:
    """What a connection still holds is not to be freed by its end."""
    with patch.object(connections, "IDLE", 3600.0):
        yield


@pytest.fixture
async def other(app: Dutiful) -> AsyncIterator[Dutiful]:
    """A second app on the same database, whose worker contends with the first one's by the database only."""
    app.configure(lanes=(LaneSettings("here", 8),))
    yield another(app)


@asynccontextmanager
async def both(app: Dutiful, other: Dutiful) -> AsyncIterator[None]:
    app.configure(kinds=tuple(app.kinds))
    async with working(app), working(other, services=False):
        yield


def declare(app: Dutiful, other: Dutiful, function: Any, **options: Any) -> tuple[Any, Any]:
    """The same handler for each of the two workers."""
    name = function.__name__
    return app.job(queue="here", **options)(function), other.job(name=f"other_{name}", queue="other", **options)(
        function
    )


@pytest.mark.req("D51", "D56", "D57")
@everywhere
async def test_contenders_in_two_workers_hold_the_lock_one_at_a_time(app: Dutiful, other: Dutiful) -> None:
    room = Room()

    async def update(ctx: Context, n: int) -> None:
        async with ctx.lock("edition", 42), room.guest(n):
            await asyncio.sleep(0.005)

    here, there = declare(app, other, update, retry=ONCE)
    async with both(app, other):
        jobs = await here.enqueue_many({"n": n} for n in range(8))
        jobs += await there.enqueue_many({"n": n} for n in range(8, 16))
        assert [(await final(app, job)).state for job in jobs] == [State.COMPLETED] * 16

    assert (room.peak, sorted(room.guests)) == (1, list(range(16)))


@pytest.mark.req("D52", "D68", "D69")
async def test_different_names_do_not_contend(app: Dutiful) -> None:
    names: list[Any] = [("edition", 7), ("edition", 8), ("project", 7), ("edition", "7")]
    meeting = asyncio.Barrier(len(names))

    @app.job
    async def update(ctx: Context, n: int) -> None:
        async with ctx.lock(*names[n]):
            await meeting.wait()  # which takes all of them inside at once

    async with working(app):
        for job in await update.enqueue_many({"n": n} for n in range(len(names))):
            await job.result(SOON)


@pytest.mark.req("D55")
@everywhere
async def test_every_way_out_of_the_block_frees_the_lock(app: Dutiful) -> None:
    rooms = {way: Room() for way in ("return", "raise", "snooze", "cancel", "timeout", "nested")}

    @app.job(retry=ONCE, timeout="500ms")
    async def leave(ctx: Context, way: str) -> None:
        async with ctx.lock("way", way), rooms[way].guest():
            match way:
                case "raise":
                    raise ValueError
                case "snooze":
                    raise Snooze("1h")
                case "cancel" | "timeout":
                    await asyncio.sleep(3600)
                case "nested":
                    async with ctx.lock("inner", way):
                        raise ValueError

    @app.job
    async def follow(ctx: Context) -> None:
        for way in rooms:
            async with ctx.lock("way", way):
                pass
        async with ctx.lock("inner", "nested"):
            pass

    async with working(app):
        jobs = {way: await leave.enqueue(way=way) for way in rooms}
        await rooms["cancel"].entered.wait()
        assert await jobs["cancel"].cancel()
        states = {way: await settled(app, job) for way, job in jobs.items()}
        await (await follow.enqueue()).result(SOON)
        await until_locks(app.settings.database_url, 0, 0)

    assert states == {
        "return": State.COMPLETED,
        "raise": State.FAILED,
        "snooze": State.SCHEDULED,
        "cancel": State.CANCELLED,
        "timeout": State.FAILED,
        "nested": State.FAILED,
    }


async def settled(app: Dutiful, job: Handle[Any]) -> State:
    async def look() -> JobRecord | None:
        record = await app.find(job.id)
        return record if record is not None and record.state not in (State.READY, State.RUNNING) else None

    record: JobRecord = await eventually(look)
    return record.state


@pytest.mark.req("D55")
async def test_a_worker_that_stops_frees_what_its_handlers_hold(app: Dutiful) -> None:
    app.configure(grace="0s")
    room = Room()

    @app.job
    async def update(ctx: Context) -> int:
        async with ctx.lock("edition", 1), room.guest():
            if len(room.guests) == 1:
                await asyncio.sleep(3600)
        return ctx.attempt

    async with app:
        with pytest.raises(ShutdownTimeout):
            async with working(app):
                job = await update.enqueue()
                await room.entered.wait()
        await until_locks(app.settings.database_url, 0, 0)
        async with working(app):
            assert await job.result(SOON) == 1


@pytest.mark.req("D55", "D56")
@everywhere
async def test_who_is_cancelled_while_waiting_leaves_the_line(app: Dutiful, other: Dutiful) -> None:
    room = Room()

    async def update(ctx: Context, wait: bool) -> None:
        async with ctx.lock("edition", 1), room.guest(ctx.job_id):
            if wait:
                await room.open.wait()

    here, there = declare(app, other, update)
    url = app.settings.database_url
    async with both(app, other):
        first = await here.enqueue(wait=True)
        await room.entered.wait()
        waiting = await there.enqueue(wait=False)  # at the database
        await until_locks(url, 1, 1)
        behind = await there.enqueue(wait=False)  # waiting for the lock, behind its neighbour
        assert await waiting.cancel()
        assert (await final(app, waiting)).state is State.CANCELLED
        await until_locks(url, 1, 1)
        room.open.set()
        await first.result(SOON)
        await behind.result(SOON)
        await until_locks(url, 0, 0)

    assert room.guests == [first.id, behind.id]


@pytest.mark.req("D55")
@everywhere
async def test_who_gives_up_waiting_and_works_on_leaves_the_line(app: Dutiful, other: Dutiful) -> None:
    room, impatient = Room(), asyncio.Event()

    async def update(ctx: Context, waits: bool) -> None:
        async def inside() -> None:
            async with ctx.lock("edition", 1), room.guest():
                await room.open.wait()

        entering = asyncio.create_task(inside())
        if waits:
            await entering
        await impatient.wait()
        entering.cancel()
        await room.open.wait()

    here, there = declare(app, other, update, retry=ONCE)
    async with both(app, other):
        holding = await here.enqueue(waits=True)
        await room.entered.wait()
        waiting = await there.enqueue(waits=False)
        await until_locks(app.settings.database_url, 1, 1)
        impatient.set()
        await until_locks(app.settings.database_url, 1, 0)
        room.open.set()
        await holding.result(SOON)
        await waiting.result(SOON)


@pytest.mark.req("D56")
async def test_a_worker_with_many_contenders_does_not_starve_another(app: Dutiful, other: Dutiful) -> None:
    room = Room()

    async def update(ctx: Context, who: str) -> None:
        async with ctx.lock("edition", 1), room.guest(who):
            await room.open.wait()

    here, there = declare(app, other, update)
    async with both(app, other):
        jobs = [await here.enqueue(who="first")]
        await room.entered.wait()
        jobs += await here.enqueue_many({"who": "many"} for _ in range(7))
        jobs.append(await there.enqueue(who="alone"))
        await until_locks(app.settings.database_url, 1, 1)
        room.open.set()
        for job in jobs:
            await job.result(SOON)

    assert room.guests.index("alone") <= 2


async def test_a_block_cannot_wait_for_itself_but_its_tasks_wait_for_each_other(app: Dutiful) -> None:
    room = Room()

    @app.job(retry=ONCE)
    async def update(ctx: Context) -> None:
        async def part() -> None:
            async with ctx.lock("edition", 1), room.guest():
                await asyncio.sleep(0.01)

        async with ctx.lock("project", 1):
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(part())
            await part()
            with pytest.raises(UsageError, match="project:1 is held already"):
                async with ctx.lock("edition", 2), ctx.lock("project", 1):
                    pass
            async with asyncio.TaskGroup() as group:
                inherited = group.create_task(refused(ctx))
        async with ctx.lock("project", 1):
            assert inherited.result()

    async def refused(ctx: Context) -> bool:
        with pytest.raises(UsageError, match="held already"):
            async with ctx.lock("project", 1):
                pass
        return True

    async with working(app):
        await (await update.enqueue()).result(SOON)

    assert (room.peak, len(room.guests)) == (1, 4)


async def test_items_take_locks_under_the_lock_of_their_job(app: Dutiful) -> None:
    room = Room()

    @app.job(retry=ONCE)
    async def publish(ctx: Context) -> None:
        async def one(key: int) -> None:
            async with ctx.lock("edition", key % 3), room.guest(key):
                await asyncio.sleep(0.005)

        async with ctx.lock("project", 1):
            await ctx.each(range(6), one, concurrency=6)

    async with working(app):
        jobs = await publish.enqueue_many({} for _ in range(3))
        assert [(await final(app, job)).state for job in jobs] == [State.COMPLETED] * 3

    assert room.peak <= 3 and len(room.guests) == 18


@sqlite
async def test_a_long_wait_is_logged_with_its_holder(app: Dutiful, caplog: pytest.LogCaptureFixture) -> None:
    room = Room()

    @app.job
    async def update(ctx: Context) -> None:
        async with ctx.lock("edition", 1), room.guest():
            await room.open.wait()

    async def logged() -> list[logging.LogRecord]:
        return [record for record in caplog.records if "has waited for the lock edition:1" in record.getMessage()]

    caplog.handler.addFilter(JobFields())
    async with working(app):
        first = await update.enqueue()
        await room.entered.wait()
        with patch.object(worker_locks, "LONG_WAIT", 0.05):  # not before: the first one's turn may take long, too
            second = await update.enqueue()
            (record,) = await eventually(logged)
        room.open.set()
        await second.result(SOON)

    assert vars(record)["job"] == second.public_id and vars(record)["correlation_id"] == str(second.id)
    line = record.getMessage()
    assert line.startswith(f"job {second.public_id} ") and f"held by job {first.public_id}" in line


@pytest.mark.parametrize(
    "key",
    [True, 2**63, -(2**63) - 1, "", "x" * 201, "a\0b", "\ud800", 1.5, None, ("a",)],
    ids=lambda key: repr(key)[:20],
)
def test_a_key_that_is_no_number_or_text_is_refused(key: Any) -> None:
    with pytest.raises(UsageError, match="lock key"):
        lock_name("edition", key)


@pytest.mark.parametrize("namespace", ["", " edition", 7, "x" * 201])
def test_a_namespace_that_is_no_name_is_refused(namespace: Any) -> None:
    with pytest.raises(UsageError, match="lock namespace"):
        lock_name(namespace, 1)
