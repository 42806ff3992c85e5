"""Locks, events and dead workers as SQLite implements them."""

import asyncio
import os
import signal
import socket
import sqlite3
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path

import pytest
import uuid_utils.compat

from dutiful.core.job import NewJob
from dutiful.store.claims import Completion
from dutiful.store.locks import LockName
from dutiful.store.workers import WorkerRecord
from dutiful.stores import liveness
from dutiful.stores.sqlite import SqliteStore, events
from dutiful.stores.sqlite.engine.driver import Driver
from suite.builders import (
    ADA,
    BOB,
    EXPIRED,
    KIND,
    LEASE,
    T0,
    at,
    claim,
    crash,
    enqueue,
    enqueue_one,
    new_job,
    outcomes,
    start_one,
    token,
)

NAME = LockName("edition", 7)


@asynccontextmanager
async def opened(path: Path, driver: Driver = "apsw") -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, driver=driver)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def job_of_now() -> NewJob:
    return NewJob(uuid_utils.compat.uuid7(), KIND, "default", "{}")


# Locks


@pytest.mark.req("D56")
async def test_a_waiter_that_polls_for_a_lock_does_not_wait_for_a_writer(sqlite_path: Path) -> None:
    async with opened(sqlite_path, "sqlite3") as store:
        holder, contender = await start_one(store), await start_one(store)
        assert await store.locks.try_acquire(token(holder), NAME, now=T0)
        assert not await store.locks.try_acquire(token(contender), NAME, now=T0)
        with closing(sqlite3.connect(sqlite_path)) as writer:
            writer.execute("BEGIN IMMEDIATE")

            for _ in range(20):
                assert not await store.locks.try_acquire(token(contender), NAME, now=at(1))
                assert await store.locks.try_acquire(token(holder), NAME, now=at(1))


async def test_a_claim_whose_lock_was_taken_over_is_rescued_as_any_other(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        holder = await start_one(store)
        assert await store.locks.try_acquire(token(holder), NAME, now=T0)
        contender = await start_one(store, now=at(EXPIRED))
        assert await store.locks.try_acquire(token(contender), NAME, now=at(EXPIRED))

        await crash(store)

        assert await outcomes(store, holder.job_id) == ["lost"]
        assert await store.queries.check_places() == []


async def test_retention_deletes_the_locks_of_dead_workers(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        await enqueue(store, *(new_job() for _ in range(3)))
        holder, waiter, dead_waiter = await claim(store)
        for one in (holder, waiter, dead_waiter):
            await store.locks.try_acquire(token(one), NAME, now=T0)
        await store.locks.try_acquire(token(dead_waiter), LockName("project", 7), now=T0)
        await store.claims.complete([Completion(dead_waiter.job_id, dead_waiter.claim_id)], now=T0)

        await store.retention.delete_leftovers(timedelta(days=7), 10, now=at(1))

        assert await store.engine.read(lambda db: db.rows("SELECT job_id FROM dutiful_lock")) == [
            (holder.job_id.bytes,)
        ]
        assert await store.engine.read(lambda db: db.rows("SELECT job_id FROM dutiful_lock_wait")) == [
            (waiter.job_id.bytes,)
        ]


# Events


async def test_a_users_transaction_that_stays_open_for_long_is_not_missed(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_REACH", 0)  # so that any time is long
    async with opened(sqlite_path, "sqlite3") as store:
        first = await store.events.changes_since(None, 10)
        before, within = job_of_now(), job_of_now()
        await store.jobs.insert([before])
        with closing(sqlite3.connect(sqlite_path)) as own:
            store.jobs.insert_within_sync(own, [within])
            looked = await store.events.changes_since(first.until, 10)
            assert [change.job_id for change in looked.changes] == [before.id]
            looked = await store.events.changes_since(looked.until, 10)
            own.commit()

        looked = await store.events.changes_since(looked.until, 10)

        assert within.id in {change.job_id for change in looked.changes}


async def test_known_changes_are_not_read_again_for_ever(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_REACH", 1)  # how many microseconds a call reaches back
    async with opened(sqlite_path) as store:
        first = await store.events.changes_since(None, 10)
        await store.jobs.insert([job_of_now() for _ in range(50)])
        last = job_of_now()
        await store.jobs.insert([last])

        seen = await store.events.changes_since(first.until, 1000)
        again = await store.events.changes_since(seen.until, 1000)

        assert len(seen.changes) == 51
        assert [change.job_id for change in again.changes] == [last.id]


# Webhooks


async def test_a_post_that_a_stopped_leader_left_is_sent_by_others(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as leader, opened(sqlite_path) as other:
        assert (await leader.leadership.survey(ADA, LEASE, now=T0)).leading
        job_id = await enqueue_one(leader, options='{"webhook": {"url": "https://example.org/hook"}}')
        await leader.control.cancel(job_id, "no use", now=T0)

        soon, late = [await other.leadership.survey(BOB, LEASE, now=at(seconds)) for seconds in (1, 6)]

        assert (soon.next_post_at, soon.leading, late.leading) == (T0, False, True)


# Dead workers


async def sign_in(store: SqliteStore, pid: int) -> None:
    worker = WorkerRecord(
        id=ADA, name="ada", host=socket.gethostname(), pid=pid, started_at=T0, seen_at=T0, lanes={}, kinds=[]
    )
    await store.workers.heartbeat(worker, LEASE)


async def say_it_started(store: SqliteStore, mark: str) -> None:
    await store.engine.write(lambda db: db.run("UPDATE dutiful_worker SET process_started = ?", (mark,)))


def until_it_has_ended(pid: int) -> None:
    while ") Z" not in Path(f"/proc/{pid}/stat").read_text():
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="/proc is Linux's")
@pytest.mark.req("J6")
async def test_a_killed_process_is_dead_before_its_parent_has_waited_for_it(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        # A shell that execs another program while it has a child; that program never waits for the child.
        careless = await asyncio.create_subprocess_shell("sleep 60 & echo $!; exec sleep 60", stdout=PIPE)
        assert careless.stdout is not None
        pid = int(await careless.stdout.readline())
        await sign_in(store, pid)
        claimed = await start_one(store)
        assert await store.claims.orphans() == []

        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(until_it_has_ended, pid)

        assert [orphan.job_id for orphan in await store.claims.orphans()] == [claimed.job_id]
        careless.kill()
        await careless.wait()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="/proc is Linux's")
async def test_a_worker_in_another_container_of_the_same_host_name_is_not_taken_for_dead(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        await sign_in(store, os.getpid())
        claimed = await start_one(store)
        started = liveness.process_started(os.getpid())
        assert started is not None
        boot, pids, ticks = started.split(" ")

        await say_it_started(store, f"{boot} pid:[1] {ticks}1")
        assert await store.claims.orphans() == []
        await say_it_started(store, f"{boot} {pids} {ticks}1")  # another process has this pid now
        assert [orphan.job_id for orphan in await store.claims.orphans()] == [claimed.job_id]
        await say_it_started(store, f"before-the-reboot pid:[1] {ticks}")
        assert [orphan.job_id for orphan in await store.claims.orphans()] == [claimed.job_id]


async def test_a_worker_that_is_not_on_the_list_is_not_taken_for_dead(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        await start_one(store)
        await sign_in(store, os.getpid())
        await store.workers.remove(ADA)

        assert await store.claims.orphans() == []
