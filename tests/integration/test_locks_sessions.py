"""Locks on Postgres: connections of their own, few of them, and what happens when one ends."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest
from lock_jobs import Room, until_locks
from running_workers import eventually, final, working

from dutiful import Context, Dutiful, Fixed, LaneSettings, LockLost, Retry, State
from dutiful.core.job import ClaimToken
from dutiful.stores.postgres import PostgresStore
from dutiful.worker.locks import connections, manager
from dutiful.worker.locks.handle import AttemptLocks, NamedLock, lock_name
from dutiful.worker.locks.manager import LockManager
from postgres_locks import blocked
from tenanted import opened

pytestmark = pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
SOON = "20s"
HOLDERS = """
select l.pid, l.classid, l.objid, l.objsubid from pg_locks l
where l.locktype = 'advisory' and l.granted and l.objsubid = 2
  and l.database = (select oid from pg_database where datname = current_database())
"""
AT_ONCE = Retry(max_attempts=3, backoff=Fixed("0s"))


@pytest.fixture
async def admin(app_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(app_url)
    yield connection
    await connection.close()


async def holders(admin: Any) -> list[Any]:
    return list(await admin.fetch(HOLDERS))


async def terminate_holders(admin: Any) -> None:
    await admin.execute(f"select pg_terminate_backend(pid) from (select distinct pid from ({HOLDERS}) h) p")


@pytest.mark.req("D51", "D52")
async def test_a_lock_is_an_advisory_lock_of_two_numbers_whose_first_is_the_namespace(app: Dutiful, admin: Any) -> None:
    room = Room()

    @app.job
    async def update(ctx: Context) -> None:
        async with ctx.lock("edition", 7), ctx.lock("project", 7), ctx.lock("edition", 8), room.guest():
            await room.open.wait()

    async with working(app):
        job = await update.enqueue()
        await room.entered.wait()
        edition, project, other = sorted(await holders(admin), key=lambda row: (row["objid"], row["classid"]))
        room.open.set()
        await job.result(SOON)

    # objsubid 2 is what Postgres shows of the form with two arguments.
    assert [row["objsubid"] for row in (edition, project, other)] == [2, 2, 2]
    assert edition["objid"] == project["objid"] == 7 and other["objid"] == 8
    assert edition["classid"] != project["classid"] and other["classid"] in (edition["classid"], project["classid"])
    assert len({row["pid"] for row in (edition, project, other)}) == 1


@pytest.mark.req("D51", "D52")
async def test_a_namespace_with_a_class_is_locked_by_numbers_that_any_program_can_take(
    app: Dutiful, admin: Any
) -> None:
    app.configure(lock_classes="edition=1; project=2")
    inside = asyncio.Event()

    @app.job
    async def update(ctx: Context) -> None:
        async with ctx.lock("edition", 7):
            inside.set()

    await admin.execute("select pg_advisory_lock(1, 7), pg_advisory_lock(2, 7)")
    async with working(app):
        job = await update.enqueue()
        await until_locks(app.settings.database_url, 2, 1)
        assert not inside.is_set()
        await admin.execute("select pg_advisory_unlock(1, 7)")
        await job.result(SOON)
    await admin.execute("select pg_advisory_unlock(2, 7)")


async def test_a_key_that_is_no_number_of_32_bits_is_refused_where_its_namespace_has_a_class(app: Dutiful) -> None:
    app.configure(lock_classes={"edition": 1})

    @app.job(retry=Retry(max_attempts=1))
    async def update(ctx: Context, key: int | str) -> None:
        async with ctx.lock("edition", key):
            pass

    async with working(app):
        for key in ("main", 2**31):
            ended = await final(app, await update.enqueue(key=key))
            assert ended.errors is not None
            assert f"the lock edition:{key} has a class, 1, so its key must be" in ended.errors[0]["message"]


@pytest.mark.req("D71")
async def test_waiting_for_locks_leaves_the_stores_connections_alone(app: Dutiful, admin: Any) -> None:
    app.configure(lanes=(LaneSettings("all", 12),), lock_connections=2, pool_size=1)
    room = Room()

    @app.job
    async def update(ctx: Context, key: int) -> None:
        async with ctx.lock("edition", key), room.guest(key):
            await room.open.wait()

    @app.job
    async def other() -> str:
        return "done"

    async with working(app):
        jobs = await update.enqueue_many({"key": key} for key in [1, 1, 1, 2, 2, 2, 3, 4, 5, 6])
        await until_locks(app.settings.database_url, 2, 0)
        assert await (await other.enqueue()).result(SOON) == "done"
        assert len({row["pid"] for row in await holders(admin)}) == 2
        room.open.set()
        for job in jobs:
            await job.result(SOON)

    assert sorted(room.guests) == [1, 1, 1, 2, 2, 2, 3, 4, 5, 6] and room.peak <= 2


@pytest.mark.req("D71")
async def test_nested_locks_finish_with_fewer_connections_than_jobs(app: Dutiful) -> None:
    app.configure(lanes=(LaneSettings("all", 20),), lock_connections=2)
    outer = ["a", "b", None]

    @app.job(retry=Retry(max_attempts=1))
    async def update(ctx: Context, n: int) -> None:
        first = outer[n % 3]
        # Some come to the inner lock from an outer one, some have it as their first.
        async with ctx.lock("outer", first) if first else contextlib.nullcontext():
            await asyncio.sleep(0)
            async with ctx.lock("inner", 1), ctx.lock("innermost", n % 2):
                await asyncio.sleep(0.001)

    async with working(app):
        jobs = await update.enqueue_many({"n": n} for n in range(20))
        assert [(await final(app, job)).state for job in jobs] == [State.COMPLETED] * 20


async def test_an_idle_worker_holds_no_connection_for_locks(app: Dutiful, admin: Any) -> None:
    @app.job
    async def update(ctx: Context) -> int:
        async with ctx.lock("edition", 1):
            return int((await holders(admin))[0]["pid"])

    async def gone() -> bool:
        return not await admin.fetchval("select count(*) from pg_stat_activity where pid = $1", pid)

    with patch.object(connections, "IDLE", 0.2):
        async with working(app):
            pid = await (await update.enqueue()).result(SOON)
            await eventually(gone)


async def test_a_connection_for_locks_is_used_again_soon_after(app: Dutiful, admin: Any) -> None:
    @app.job
    async def update(ctx: Context) -> int:
        async with ctx.lock("edition", 1):
            return int((await holders(admin))[0]["pid"])

    with patch.object(connections, "IDLE", 60.0):
        async with working(app):
            first, second = [await (await update.enqueue()).result(SOON) for _ in range(2)]
            assert first == second


@pytest.mark.parametrize("mode", ["loop", "thread", "tasks"])
async def test_who_loses_the_lock_is_stopped_and_tries_again(app: Dutiful, admin: Any, mode: str) -> None:
    room, stopped = Room(), []

    async def on_loop(ctx: Context) -> int:
        async with ctx.lock("edition", 1), ctx.lock("page", 1), room.guest():
            if ctx.attempt == 1:
                try:
                    await asyncio.sleep(3600)
                finally:
                    stopped.append("outer")
        return ctx.attempt

    async def in_tasks(ctx: Context) -> int:
        async def part(key: int) -> None:
            async with ctx.lock("page", key):
                await on_loop_part(ctx)

        async with ctx.lock("edition", 1), asyncio.TaskGroup() as group:
            for key in (1, 2):
                group.create_task(part(key))
        return ctx.attempt

    async def on_loop_part(ctx: Context) -> None:
        async with room.guest():
            if ctx.attempt == 1:
                try:
                    await asyncio.sleep(3600)
                finally:
                    stopped.append("part")

    def in_thread(ctx: Context) -> int:
        with ctx.lock("edition", 1), ctx.lock("page", 1):
            room.entered.set()
            try:
                while ctx.attempt == 1:
                    time.sleep(0.01)
            finally:
                stopped.append("thread")
        return ctx.attempt

    kind: Any = app.job(retry=AT_ONCE)({"loop": on_loop, "tasks": in_tasks, "thread": in_thread}[mode])
    async with working(app):
        job = await kind.enqueue()
        await until_locks(app.settings.database_url, 3 if mode == "tasks" else 2, 0)
        await eventually(lambda: asyncio.sleep(0, room.entered.is_set()))
        await terminate_holders(admin)
        assert await job.result(SOON) == 2
        (attempt,) = await (await app.client()).store.queries.attempts(job.id)
        await until_locks(app.settings.database_url, 0, 0)

    assert attempt.error is not None and (attempt.outcome, attempt.error["type"]) == ("failed", "LockLost")
    assert stopped[0] in ("outer", "part", "thread")


async def test_a_contender_gets_over_the_loss_of_its_connection(app: Dutiful, admin: Any, app_url: str) -> None:
    room = Room()

    @app.job(retry=Retry(max_attempts=1))
    async def update(ctx: Context) -> None:
        async with ctx.lock("edition", 1), room.guest():
            pass

    name = lock_name("edition", 1)
    async with working(app):
        holder = await (await app.client()).store.locks.session(lambda: None)
        assert holder is not None and await holder.acquire(name, 1)
        job = await update.enqueue()
        await until_locks(app_url, 1, 1)
        waiting = await admin.fetchval("select pid from pg_locks where locktype = 'advisory' and not granted")
        await admin.execute("select pg_terminate_backend($1)", waiting)
        await until_locks(app_url, 1, 0)
        await until_locks(app_url, 1, 1)
        await holder.release(name)
        await job.result(SOON)
        await holder.close()


async def test_a_jobs_own_stop_wins_over_a_lost_lock(app: Dutiful, admin: Any) -> None:
    room = Room()

    @app.job(retry=Retry(max_attempts=1), timeout="1s")
    async def update(ctx: Context) -> None:
        async with ctx.lock("edition", 1), room.guest():
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(3600)  # until the timeout comes, while the loss of the lock is on its way out

    async with working(app):
        job = await update.enqueue()
        await room.entered.wait()
        await terminate_holders(admin)
        record = await final(app, job)

    assert record.errors is not None and record.errors[0]["type"] == "TimeoutExceeded"


@pytest.mark.req("D55")
async def test_who_is_cancelled_as_the_lock_is_granted_does_not_keep_it(app: Dutiful, app_url: str) -> None:
    inner = lock_name("page", 1)

    @app.job(retry=Retry(max_attempts=1))
    async def update(ctx: Context) -> None:
        async def part() -> None:
            async with ctx.lock("page", 1):
                pass

        async with ctx.lock("edition", 1):
            waiting = asyncio.create_task(part())
            await until_locks(app_url, 2, 1)
            waiting.cancel()
            assert holder is not None
            await holder.release(inner)
            await until_locks(app_url, 1, 0)  # the outer one, of the same connection

    async with working(app):
        holder = await (await app.client()).store.locks.session(lambda: None)
        assert holder is not None and await holder.acquire(inner, 1)
        await (await update.enqueue()).result(SOON)
        await holder.close()


@pytest.mark.req("D56")
async def test_of_two_workers_that_wait_for_each_other_one_gives_up(app_url: str) -> None:
    store = PostgresStore(app_url)
    await store.open()
    meeting = asyncio.Barrier(2)

    async def job(first: str, second: str) -> None:
        locks = LockManager(store.locks, 1)
        attempt = AttemptLocks(locks, ClaimToken(uuid4(), 1))
        try:
            async with NamedLock(attempt, lock_name("row", first)):
                await meeting.wait()
                async with NamedLock(attempt, lock_name("row", second)):
                    pass
        finally:
            await until_locks(app_url, 0, 0)  # before connections are closed
            await locks.close()

    with patch.object(connections, "IDLE", 3600.0):  # what a connection still holds is not to be freed by its end
        ends = await asyncio.gather(job("a", "b"), job("b", "a"), return_exceptions=True)
    await store.close()

    assert {type(end) for end in ends} == {type(None), LockLost}


@pytest.mark.req("D55", "D71")
async def test_a_storm_of_cancellations_and_lost_connections_leaves_nothing_held(app_url: str, admin: Any) -> None:
    store = PostgresStore(app_url)
    await store.open()
    workers = [LockManager(store.locks, 2), LockManager(store.locks, 3)]
    names = [lock_name("storm", n) for n in range(4)]
    rooms = [Room() for _ in names]
    seed = random.randrange(10**6)
    print("seed", seed)
    dice = random.Random(seed)
    outcomes: list[str] = []

    async def inside(attempt: AttemptLocks, start: int) -> None:
        n = dice.randrange(start, len(names))
        async with NamedLock(attempt, names[n]), rooms[n].guest():
            await asyncio.sleep(dice.random() * 0.005)
            async with asyncio.TaskGroup() as group:
                for _ in range(dice.choice([0, 1, 2]) if n + 1 < len(names) else 0):
                    group.create_task(inside(attempt, n + 1))

    async def job() -> None:
        try:
            await inside(AttemptLocks(dice.choice(workers), ClaimToken(uuid4(), 1)), 0)
            outcomes.append("done")
        except* LockLost:
            outcomes.append("lost")

    jobs = [asyncio.create_task(job()) for _ in range(60)]
    with patch.object(connections, "IDLE", 3600.0):
        for _ in range(30):
            await asyncio.sleep(dice.random() * 0.02)
            dice.choice(jobs).cancel()
            await admin.execute(f"select pg_terminate_backend(pid) from ({HOLDERS}) h where random() < 0.05")
        await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 60)
        await until_locks(app_url, 0, 0)
    for worker in workers:
        await worker.close()
        assert worker._local == {}  # that nothing leaks shows in memory only
    await store.close()

    assert outcomes.count("done") > 5
    for task in jobs:
        assert task.cancelled() or task.exception() is None, task.exception()


@pytest.fixture
async def stranger(admin: Any, app_url: str) -> AsyncIterator[Any]:
    """A session of a role that may connect, and nothing else."""
    await admin.execute("drop role if exists eve; create role eve login password 'not-a-secret'")
    parts = urlsplit(app_url)
    host = parts.netloc.rpartition("@")[2]
    connection = await asyncpg.connect(urlunsplit(parts._replace(netloc=f"eve:not-a-secret@{host}")))
    yield connection
    connection.terminate()
    await admin.execute("drop role eve")


async def test_a_stranger_who_holds_a_lock_is_named_in_the_log_and_by_doctor(
    app: Dutiful, app_url: str, admin: Any, stranger: Any, caplog: pytest.LogCaptureFixture
) -> None:
    room = Room()

    @app.job
    async def update(ctx: Context) -> None:
        async with ctx.lock("edition", 7), room.guest():
            await room.open.wait()

    async def logged() -> list[str]:
        return [line for line in caplog.messages if "has waited for the lock edition:7" in line]

    pid = await stranger.fetchval("select pg_backend_pid()")
    store = (await app.client()).store
    async with working(app):
        first = await update.enqueue()
        await room.entered.wait()
        await stranger.execute("select pg_advisory_lock(1, 2)")  # its own, which concerns no worker
        assert (await store.queries.health())["problems"] == []
        seen = await stranger.fetchval(f"select classid::bigint from ({HOLDERS}) h where objid = 7")
        number = seen - 2**32 if seen >= 2**31 else seen
        taking = asyncio.create_task(stranger.execute("select pg_advisory_lock($1::int, 7)", number))
        await blocked(app_url)
        ((waits, _),) = (await store.queries.health())["problems"]
        room.open.set()
        await first.result(SOON)
        await taking

        with patch.object(manager, "LONG_WAIT", 0.05):
            second = await update.enqueue()
            (line,) = await eventually(logged)
        ((holds, remedy),) = (await store.queries.health())["problems"]
        await admin.execute("select pg_terminate_backend($1)", pid)
        await second.result(SOON)

    assert f"process {pid} of the database, role eve, which is no worker" in line
    assert f"process {pid} of the database, role eve, waits for" in waits
    assert f"process {pid} of the database, role eve, holds" in holds and f"pg_terminate_backend({pid})" in remedy


async def test_a_worker_that_holds_a_lock_is_named_in_the_log_of_another(app: Dutiful, app_url: str) -> None:
    name = lock_name("edition", "north")
    async with opened(app_url, "dutiful") as store:
        assert await store.locks.holder(name) is None
        session = await store.locks.session(lambda: None)
        assert session is not None and await session.acquire(name, 5.0)
        holder = await store.locks.holder(name)
        await session.close()

    assert holder is not None and not holder.foreign
    assert str(holder).startswith(f"another worker (process {holder.pid} of the database, role ")
