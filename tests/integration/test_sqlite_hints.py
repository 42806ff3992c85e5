"""Processes on one SQLite file notice each other's commits: by a signal, by the write itself, or by polling."""

import asyncio
import multiprocessing
import os
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import pytest
import uuid_utils.compat
from running_workers import working

from dutiful import Dutiful
from dutiful.core.job import NewJob
from dutiful.delivery import file_changes
from dutiful.delivery.base import EVERYWHERE
from dutiful.delivery.file_changes import UNCHANGED, FileChanges
from dutiful.delivery.in_process import InProcessDelivery
from dutiful.delivery.inotify import Inotify
from dutiful.stores.sqlite import SqliteStore

SPAWN = multiprocessing.get_context("spawn")
NEVER, SOON = 3600.0, 0.001
only_linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


def new_job() -> NewJob:
    return NewJob(uuid_utils.compat.uuid7(), "greet", "default", "{}")


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def changes_of(store: SqliteStore, **intervals: float) -> FileChanges:
    return FileChanges(store.data_version, written=store.wal_path, signal=store.turn_path, **intervals)


def commit_on_message(pipe: Pipe, path: Path) -> None:
    """Another process: commits at each message, and tells if the message says so."""

    async def main() -> None:
        async with opened(path) as store:
            delivery = InProcessDelivery(changes_of(store))
            pipe.send("open")
            while True:
                signalled = await asyncio.to_thread(pipe.recv)
                await store.jobs.insert([new_job()])
                if signalled:
                    delivery.hint(EVERYWHERE)

    with suppress(EOFError):
        asyncio.run(main())


@contextmanager
def another_process(path: Path) -> Iterator[Pipe]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=commit_on_message, args=(theirs, path))
    process.start()
    theirs.close()
    try:
        assert ours.recv() == "open"
        yield ours
    finally:
        process.kill()
        process.join()


class Follower:
    """Follows the changes of a file; counts how often its counter is read."""

    def __init__(self, store: SqliteStore, beside: str = "", **intervals: float) -> None:
        """`beside` names files that do not exist, instead of those of the store."""
        self._store = store
        self.looks = 0
        self.notified: asyncio.Queue[None] = asyncio.Queue()
        self._resting = asyncio.Event()
        self._second_look = asyncio.Event()
        self._unchanged = 0
        written, signalled = store.wal_path + beside, store.turn_path + beside
        self._changes = FileChanges(self._look, written=written, signal=signalled, **intervals)

    async def _look(self) -> int:
        self.looks += 1
        self._unchanged += 1
        # One more than it takes: the write is expected before this look.
        if self._unchanged > UNCHANGED:
            self._resting.set()
        version = await self._store.data_version()
        if self.looks > 1:
            self._second_look.set()
        return version

    def signal(self) -> None:
        self._changes.signal()

    def _notify(self) -> None:
        self._unchanged = 0
        self.notified.put_nowait(None)

    async def at_rest(self) -> None:
        await self._resting.wait()
        await self._store.data_version()  # after its own look

    async def looked_again(self) -> None:
        await asyncio.wait_for(self._second_look.wait(), 30)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Follower"]:
        task = asyncio.create_task(self._changes.follow(self._notify))
        try:
            await self.noticed()  # the first look
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def noticed(self) -> None:
        await asyncio.wait_for(self.notified.get(), 30)


@only_linux
async def test_a_hint_reaches_another_process_that_does_not_poll(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        with another_process(sqlite_path) as pipe:
            async with Follower(store, every=NEVER, at_rest=NEVER).running() as follower:
                for _ in range(3):
                    pipe.send(True)
                    await follower.noticed()


@only_linux
async def test_a_commit_that_nobody_tells_of_is_noticed_by_its_write(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        with another_process(sqlite_path) as pipe:
            async with Follower(store, every=SOON, at_rest=NEVER).running() as follower:
                await follower.at_rest()

                pipe.send(False)
                await follower.noticed()


@only_linux
async def test_the_file_is_not_polled_at_rest(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store, Follower(store, every=SOON, at_rest=NEVER).running() as follower:
        await follower.at_rest()
        before = follower.looks

        for _ in range(100):
            await store.data_version()

        assert follower.looks == before


async def test_without_inotify_the_file_is_polled(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inotify, "open", lambda: None)
    async with opened(sqlite_path) as store:
        with another_process(sqlite_path) as pipe:
            async with Follower(store, every=SOON, at_rest=NEVER).running() as follower:
                await follower.at_rest()

                for signalled in (True, False):
                    pipe.send(signalled)
                    await follower.noticed()


async def test_files_that_cannot_be_watched_are_polled(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        with another_process(sqlite_path) as pipe:
            async with Follower(store, beside=".missing", every=SOON, at_rest=NEVER).running() as follower:
                await follower.at_rest()

                pipe.send(True)
                await follower.noticed()


async def test_a_hint_without_the_file_to_tell_with_is_lost_and_not_missed(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store:
        with another_process(sqlite_path) as pipe:
            sqlite_path.with_name(f"{sqlite_path.name}-turn").unlink()
            async with Follower(store, every=SOON, at_rest=NEVER).running() as follower:
                await follower.at_rest()

                for _ in range(2):
                    pipe.send(True)
                    await follower.noticed()


@only_linux
def test_a_process_with_too_many_open_files_has_no_inotify() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    fd = os.dup(0)
    os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (fd, limits[1]))
    try:
        assert Inotify.open() is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_python_without_ctypes_has_no_inotify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)

    assert Inotify.open() is None


async def test_our_own_commits_are_not_noticed(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store, Follower(store, every=SOON, at_rest=SOON).running() as follower:
        delivery = InProcessDelivery(changes_of(store))
        for _ in range(20):
            await store.jobs.insert([new_job()])
            delivery.hint(EVERYWHERE)

        await follower.at_rest()
        assert follower.notified.empty()
        await delivery.close()


@only_linux
async def test_our_claim_does_not_wait_for_a_look_that_our_own_hint_causes(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests, read = asyncio.Event(), asyncio.Event()

    class Watch(file_changes._Watch):
        async def wait(self, seconds: float) -> bool:
            if seconds == NEVER:
                rests.set()
            return await super().wait(seconds)

        def _read(self) -> None:
            super()._read()
            read.set()

    monkeypatch.setattr(file_changes, "_Watch", Watch)
    monkeypatch.setattr(file_changes, "BREATH", NEVER)
    async with opened(sqlite_path) as store, Follower(store, every=SOON, at_rest=NEVER).running() as follower:
        await asyncio.wait_for(rests.wait(), 30)
        before = follower.looks

        follower.signal()
        await asyncio.wait_for(read.wait(), 30)
        await store.jobs.insert([new_job()])  # as a claim, it takes several turns of the loop

        assert follower.looks == before


@only_linux
async def test_the_last_hint_is_sent_when_the_delivery_is_closed(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_changes, "SIGNAL_INTERVAL", NEVER)
    async with (
        opened(sqlite_path) as store,
        opened(sqlite_path) as other,
        Follower(store, every=NEVER, at_rest=NEVER).running() as follower,
    ):
        delivery = InProcessDelivery(changes_of(other))
        delivery.hint(EVERYWHERE)
        delivery.hint(EVERYWHERE)  # waits for the end of the interval
        await follower.looked_again()
        await other.jobs.insert([new_job()])
        await delivery.close()

        await follower.noticed()


async def test_one_task_follows_the_file_for_all_listeners_and_watchers(sqlite_path: Path) -> None:
    async with opened(sqlite_path) as store, opened(sqlite_path) as other:
        delivery = InProcessDelivery(changes_of(store))
        listeners = [delivery.listen() for _ in range(2)]
        watcher = delivery.watch()
        subscribers: list[AsyncIterator[Any]] = [*listeners, watcher]
        for subscriber in subscribers:
            await asyncio.wait_for(anext(subscriber), 30)
        await other.jobs.insert([new_job()])

        for subscriber in subscribers:
            await asyncio.wait_for(anext(subscriber), 30)
        assert len([task for task in asyncio.all_tasks() if task.get_name() == "dutiful file changes"]) == 1
        for subscriber in subscribers:
            await subscriber.aclose()  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        assert [task for task in asyncio.all_tasks() if task.get_name() == "dutiful file changes"] == []
        await delivery.close()


@only_linux
async def test_a_worker_that_does_not_poll_runs_the_job_of_another_process(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Dutiful(f"sqlite:///{sqlite_path}", poll="1h")
    ran = asyncio.Event()

    @app.job
    async def greet() -> None:
        ran.set()

    def make_delivery(store: Any) -> InProcessDelivery:
        return InProcessDelivery(changes_of(store, every=NEVER, at_rest=NEVER))

    monkeypatch.setattr(app, "make_delivery", make_delivery)
    async with opened(sqlite_path):  # makes the tables
        with another_process(sqlite_path) as pipe:
            async with working(app, services=False):
                pipe.send(True)
                await asyncio.wait_for(ran.wait(), 30)
