"""Several processes on one SQLite file: killed, stopped, forked, or writing as fast as they can."""

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection as Pipe
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import uuid_utils.compat

from dutiful.core.job import ClaimToken, NewJob
from dutiful.store.claims import ClaimRequest, QueueLevel
from dutiful.store.workers import Process, WorkerRecord
from dutiful.stores.liveness import HOST
from dutiful.stores.sqlite import SqliteStore
from dutiful.stores.sqlite import jobs as sqlite_jobs
from dutiful.stores.sqlite.engine import schema
from dutiful.stores.sqlite.engine.driver import Connection
from dutiful.stores.sqlite.engine.file_lock import WriteLock

SPAWN = multiprocessing.get_context("spawn")
LEASE = timedelta(seconds=60)
TTL = timedelta(seconds=10)
ADA, BOB = UUID(int=0xADA), UUID(int=0xB0B)


def new_job(**fields: Any) -> NewJob:
    return NewJob(**{"id": uuid_utils.compat.uuid7(), "kind": "greet", "queue": "default", "payload": "{}", **fields})


def new_jobs(count: int) -> list[NewJob]:
    return [new_job() for _ in range(count)]


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def child(target: Any, *args: Any) -> Iterator[tuple[SpawnProcess, Pipe]]:
    """Another process, which gets one end of a pipe as its first argument and ends with the block."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(theirs, *args))
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()


async def all_ids(store: SqliteStore) -> set[UUID]:
    """The ids of all jobs that wait to be claimed."""
    ask = ClaimRequest(ADA, "all", [QueueLevel("default", 100)], ["greet"], 1_000_000, LEASE)
    return {claim.job_id for claim in await store.claims.claim(ask)}


# A killed writer


def stop_before_the_commit(pipe: Pipe, path: Path) -> None:
    insert = sqlite_jobs.insert

    def stuck(db: Connection, jobs: Sequence[NewJob], now: int) -> Any:
        insert(db, jobs, now)
        pipe.send("inside")
        time.sleep(3600)

    async def main() -> None:
        async with opened(path) as store:
            sqlite_jobs.insert = stuck
            await store.jobs.insert(new_jobs(1000))

    asyncio.run(main())


async def test_a_process_killed_in_its_transaction_leaves_nothing_behind_and_others_continue(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        with child(stop_before_the_commit, sqlite_path) as (process, pipe):
            assert pipe.recv() == "inside"
            waiting = asyncio.create_task(store.jobs.insert(ours := new_jobs(3)))
            process.kill()
            await waiting

        assert await all_ids(store) == {job.id for job in ours}
        assert await store.queries.check_places() == []


def write_flat_out(pipe: Pipe, path: Path) -> None:
    """Enqueue without end, and send a message before and after every batch."""

    async def main() -> None:
        async with opened(path) as store:
            while True:
                jobs = new_jobs(20)
                pipe.send(("begun", [job.id for job in jobs]))
                await store.jobs.insert(jobs)
                pipe.send(("acknowledged", None))

    asyncio.run(main())


async def test_acknowledged_jobs_survive_any_number_of_killed_writers(sqlite_path: Path) -> None:
    acknowledged: set[UUID] = set()
    unsure: list[set[UUID]] = []
    for rounds in (1, 7, 20):
        with child(write_flat_out, sqlite_path) as (process, pipe):
            for _ in range(rounds):
                step, ids = pipe.recv()
                begun = set(ids)
                assert step == "begun"
                assert pipe.recv() == ("acknowledged", None)
                acknowledged |= begun
            step, ids = pipe.recv()
            assert step == "begun"
            unsure.append(set(ids))  # it is killed in the middle of this one, or soon after
            process.kill()
            process.join()
            # Messages that are still in the pipe are of batches that may have been committed.
            while pipe.poll():
                try:
                    step, ids = pipe.recv()
                except EOFError:
                    break
                if step == "begun":
                    unsure.append(set(ids))
                else:
                    acknowledged |= unsure.pop()

    async with opened(sqlite_path) as store:
        assert await store.queries.check_places() == []
        found = await all_ids(store)
    assert acknowledged <= found
    assert all(batch <= found or not batch & found for batch in unsure), "a batch is stored whole or not at all"
    assert found == acknowledged.union(*(batch & found for batch in unsure))


# A writer without pauses


def hold_the_lock_again_and_again(pipe: Pipe, path: Path, taken: Any) -> None:
    lock = WriteLock(str(path), 60)
    lock.open()
    pipe.send("ready")
    while True:
        with lock:
            taken.value += 1
            time.sleep(0.005)  # as long as a large commit


def test_a_process_that_always_wants_the_lock_does_not_starve_others(sqlite_path: Path) -> None:
    taken = SPAWN.Value("q", 0)
    lock = WriteLock(str(sqlite_path), 60)
    lock.open()
    while_we_waited = 0
    with child(hold_the_lock_again_and_again, sqlite_path, taken) as (_, pipe):
        assert pipe.recv() == "ready"
        before = 0
        for _ in range(30):
            while taken.value == before:
                time.sleep(0.0001)
            before = taken.value
            with lock:
                while_we_waited += taken.value - before
    lock.close()

    # Two for each of our turns: the current one, and one that began before we were in the queue for the lock.
    assert while_we_waited <= 60


def flood(pipe: Pipe, path: Path, commits: Any) -> None:
    async def main() -> None:
        async with opened(path) as store:
            while True:
                await store.jobs.insert(new_jobs(200))
                commits.value += 1

    asyncio.run(main())


async def test_a_renewer_renews_while_another_process_and_its_own_write_all_the_time(sqlite_path: Path) -> None:
    commits = SPAWN.Value("q", 0)
    async with opened(sqlite_path) as store:
        await store.jobs.insert(new_jobs(5))
        claims = await store.claims.claim(ClaimRequest(ADA, "lane", [QueueLevel("default", 100)], ["greet"], 5, LEASE))
        tokens = [ClaimToken(claim.job_id, claim.claim_id) for claim in claims]
        renewer = store.claims.renewer()
        with child(flood, sqlite_path, commits):
            ours = asyncio.create_task(_flood_ourselves(store))
            while commits.value < 100:
                renewal = await asyncio.to_thread(renewer.renew, tokens, LEASE)
                assert not renewal.lost
                assert await store.claims.expired(10) == []
            ours.cancel()
        renewer.close()
        assert await store.queries.check_places() == []


async def _flood_ourselves(store: SqliteStore) -> None:
    while True:
        await store.jobs.insert(new_jobs(200))


def stop_with_the_lock(pipe: Pipe, path: Path) -> None:
    lock = WriteLock(str(path), 60)
    lock.open()
    with lock:
        pipe.send("holding")
        time.sleep(3600)


async def test_a_process_stopped_with_the_lock_is_an_error_and_not_a_hang(sqlite_path: Path) -> None:
    from dutiful.core.errors import StoreUnavailable

    store = SqliteStore(sqlite_path, busy_timeout=timedelta(milliseconds=50))
    await store.open()
    with child(stop_with_the_lock, sqlite_path) as (process, pipe):
        assert pipe.recv() == "holding"
        waiting = [asyncio.create_task(store.jobs.insert([new_job()])) for _ in range(5)]
        for task in waiting:
            with pytest.raises(StoreUnavailable, match="another process has been writing"):
                await task
        process.kill()
        process.join()

        await store.jobs.insert([new_job()])
    await store.close()


# Migrations


def open_at_once(pipe: Pipe, path: Path, start: Any) -> None:
    async def main() -> None:
        start.wait()
        async with opened(path) as store:
            await store.jobs.insert([new_job()])
        pipe.send("done")

    asyncio.run(main())


async def test_processes_that_open_a_new_file_at_once_migrate_it_once(sqlite_path: Path) -> None:
    start = SPAWN.Barrier(4)
    with ExitStack() as stack:
        pipes = [stack.enter_context(child(open_at_once, sqlite_path, start))[1] for _ in range(4)]
        assert [pipe.recv() for pipe in pipes] == ["done"] * 4

    async with opened(sqlite_path) as store:
        assert await store.migrate() == []
        assert len(await all_ids(store)) == 4
        assert await store.queries.check_places() == []


def stop_half_way_through_a_migration(pipe: Pipe, path: Path) -> None:
    script = Connection.script

    def half(self: Connection, sql: str) -> None:
        script(self, sql[: sql.index("CREATE TABLE dutiful_lease")])
        pipe.send("half way")
        time.sleep(3600)

    Connection.script = half  # type: ignore[method-assign]
    asyncio.run(SqliteStore(path).open())


async def test_a_migration_that_was_killed_half_way_is_run_again(sqlite_path: Path) -> None:
    with child(stop_half_way_through_a_migration, sqlite_path) as (process, pipe):
        assert pipe.recv() == "half way"
        process.kill()
        process.join()

    async with opened(sqlite_path) as store:
        assert await store.migrate() == []
        await store.jobs.insert([new_job()])
        assert (await store.queries.health())["schema_version"] == schema.SCHEMA_VERSION


# Leadership and liveness


def lead(pipe: Pipe, path: Path) -> None:
    async def main() -> None:
        async with opened(path) as store:
            worker = WorkerRecord(
                id=ADA, name="ada", host=HOST, pid=os.getpid(), started_at=new_time(), seen_at=new_time(), lanes={},
                kinds=[],
            )  # fmt: skip
            await store.workers.heartbeat(worker, timedelta(0))
            pipe.send((await store.leadership.survey(ADA, TTL)).leading)
            pipe.recv()

    asyncio.run(main())


def new_time() -> Any:
    from datetime import UTC, datetime

    return datetime.now(UTC)


async def test_a_killed_leader_is_replaced_at_once(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        with child(lead, sqlite_path) as (process, pipe):
            assert pipe.recv()
            assert not (await store.leadership.survey(BOB, TTL)).leading
            process.kill()
            process.join()

            assert (await store.leadership.survey(BOB, TTL)).leading


async def test_a_stopped_leader_blocks_no_process(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        with child(lead, sqlite_path) as (process, pipe):
            assert pipe.recv()
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
            due = new_time() + timedelta(hours=1)
            await store.jobs.insert([new_job(run_at=due)])

            assert not (await store.leadership.survey(BOB, TTL, now=due + timedelta(seconds=1))).leading
            assert (await store.leadership.survey(BOB, TTL, now=due + timedelta(seconds=6))).leading
            assert [worker.process for worker in await store.workers.all()] == [Process.STOPPED]


async def test_the_substitute_of_a_stopped_leader_is_not_late_each_time(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        with child(lead, sqlite_path) as (process, pipe):
            assert pipe.recv()
            assert process.pid is not None
            os.kill(process.pid, signal.SIGSTOP)
            due = new_time() + timedelta(hours=1)
            await store.jobs.insert([new_job(run_at=due)])
            assert (await store.leadership.survey(BOB, TTL, now=due + timedelta(seconds=6))).leading
            await store.promotion.promote(10, now=due + timedelta(seconds=6))

            assert (await store.leadership.survey(BOB, TTL, now=due + timedelta(seconds=7))).leading, (
                "nothing is overdue now"
            )
            later = due + timedelta(minutes=1)
            assert not (await store.leadership.survey(BOB, TTL, now=later)).leading, "and then the leader may be back"


async def test_a_worker_is_alive_as_long_as_its_process_however_long_it_is_silent(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        with child(lead, sqlite_path) as (process, pipe):
            assert pipe.recv()
            assert [worker.alive for worker in await store.workers.all()] == [True]
            process.kill()
            process.join()

            assert [worker.alive for worker in await store.workers.all()] == [False]


# Other processes' commits


def insert_on_message(pipe: Pipe, path: Path) -> None:
    async def main() -> None:
        async with opened(path) as store:
            pipe.send("open")
            while pipe.recv():
                await store.jobs.insert([new_job()])
                pipe.send("inserted")

    asyncio.run(main())


async def test_the_data_version_changes_with_another_process_commit_and_not_with_our_own(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        with child(insert_on_message, sqlite_path) as (_, pipe):
            assert pipe.recv() == "open"
            before = await store.data_version()
            await store.jobs.insert([new_job()])
            assert await store.data_version() == before

            pipe.send(True)
            assert pipe.recv() == "inserted"

            assert await store.data_version() != before
            pipe.send(False)
