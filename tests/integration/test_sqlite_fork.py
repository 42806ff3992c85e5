"""A process that forks while its store is open."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Coroutine
from datetime import timedelta
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import uuid_utils.compat
from running_workers import eventually

from dutiful.core.errors import StoreUnavailable
from dutiful.core.job import NewJob
from dutiful.store.queries import JobFilter
from dutiful.stores.sqlite import SqliteStore

SPAWN = multiprocessing.get_context("spawn")
ADA, BOB = UUID(int=0xADA), UUID(int=0xB0B)
TTL = timedelta(seconds=10)
T = TypeVar("T")


def new_job() -> NewJob:
    return NewJob(id=uuid_utils.compat.uuid7(), kind="greet", queue="default", payload="{}")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.new_event_loop().run_until_complete(work)


def in_a_process_of_its_own(target: Any, path: Path) -> Any:
    """What `target` sends; it forks, which the test runner should not do because it has threads."""
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=in_a_group_of_its_own, args=(target, theirs, path))
    process.start()
    theirs.close()
    try:
        assert ours.poll(60), "the process or one of its children hangs"
        return ours.recv()
    finally:
        # Its children too: one that hangs would outlive it.
        assert process.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


def in_a_group_of_its_own(target: Any, pipe: Pipe, path: Path) -> None:
    os.setsid()
    target(pipe, path)


def forked(work: Any) -> int:
    """Run `work` in a forked child; returns its exit status."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def use_the_store_of_the_parent(pipe: Pipe, path: Path) -> None:
    store = SqliteStore(path)
    run(store.open())
    run(store.jobs.insert([new_job()]))

    def in_child() -> None:
        try:
            run(store.jobs.insert([new_job()]))
        except StoreUnavailable as error:
            assert "call open() in the child" in str(error)
        else:
            raise AssertionError("the child used its parent's store")
        run(store.open())
        run(store.jobs.insert([new_job()]))
        run(store.close())

    status = forked(in_child)
    run(store.jobs.insert([new_job()]))
    pipe.send((status, len(run(store.queries.jobs(JobFilter()))), run(store.queries.check_places())))
    run(store.close())


def test_a_forked_child_must_open_the_store_again_and_then_can_work(sqlite_path: Path) -> None:
    assert in_a_process_of_its_own(use_the_store_of_the_parent, sqlite_path) == (0, 3, [])


def fork_while_writing(pipe: Pipe, path: Path) -> None:
    store = SqliteStore(path)
    run(store.open())
    enough = threading.Event()
    ours: list[UUID] = []

    async def write() -> None:
        while not enough.is_set():
            jobs = [new_job() for _ in range(50)]
            await store.jobs.insert(jobs)
            ours.extend(job.id for job in jobs)

    writer = threading.Thread(target=run, args=(write(),))
    writer.start()

    def in_child() -> None:
        run(store.open())
        run(store.jobs.insert([new_job()]))
        run(store.close())

    statuses = [forked(in_child) for _ in range(20)]
    enough.set()
    writer.join()
    found = {record.id for record in run(store.queries.jobs(JobFilter(limit=1_000_000)))}
    pipe.send((statuses, set(ours) <= found, len(found) - len(ours), run(store.queries.check_places())))
    run(store.close())


def test_forks_during_transactions_lose_nothing_and_block_no_process(sqlite_path: Path) -> None:
    assert in_a_process_of_its_own(fork_while_writing, sqlite_path) == ([0] * 20, True, 20, [])


def outlive_the_parent(pipe: Pipe, path: Path) -> None:
    store = SqliteStore(path)
    run(store.open())
    leading = run(store.leadership.survey(ADA, TTL)).leading
    pid = os.fork()
    if pid == 0:
        signal.pause()
    pipe.send((leading, pid))
    signal.pause()


async def test_the_child_of_a_dead_leader_does_not_hold_its_place(sqlite_path: Path) -> None:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=outlive_the_parent, args=(theirs, sqlite_path))
    process.start()
    leading, orphan = ours.recv()
    assert leading
    store = SqliteStore(sqlite_path)
    await store.open()
    assert not (await store.leadership.survey(BOB, TTL)).leading

    process.kill()
    process.join()
    try:
        os.kill(orphan, 0)  # It runs, and holds its inherited file descriptors.

        async def leads() -> bool:
            return (await store.leadership.survey(BOB, TTL)).leading

        await eventually(leads)
        os.kill(orphan, 0)  # It still runs.
    finally:
        os.kill(orphan, signal.SIGKILL)
    await store.close()
