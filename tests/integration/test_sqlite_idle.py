"""An idle worker leaves the disk alone."""

import asyncio
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from uuid import UUID

import pytest
import uuid_utils.compat

from dutiful.core.job import ClaimToken, NewJob
from dutiful.store.claims import ClaimRequest, QueueLevel
from dutiful.store.workers import LaneRecord, WorkerRecord
from dutiful.stores.liveness import HOST
from dutiful.stores.sqlite import SqliteStore

SPAWN = multiprocessing.get_context("spawn")
ADA = UUID(int=0xADA)
TTL, LEASE = timedelta(seconds=10), timedelta(seconds=60)
ROUNDS = 50


def idle(pipe: Pipe, path: Path) -> None:
    """All that an idle worker does repeatedly, `ROUNDS` times at each message of the test."""

    async def main() -> None:
        store = SqliteStore(path)
        await store.open()
        started = datetime.now(UTC)
        renewer = store.claims.renewer()
        token = ClaimToken(UUID(int=1), 1)

        async def ask_everything() -> None:
            worker = WorkerRecord(
                id=ADA, name="ada", host=HOST, pid=os.getpid(), started_at=started, seen_at=datetime.now(UTC),
                lanes={"general": LaneRecord(slots=5, queues=("*",))}, kinds=["greet"],
            )  # fmt: skip
            await store.data_version()
            await store.claims.peek(["greet"])
            await store.claims.claim(
                ClaimRequest(ADA, "general", [QueueLevel("default", 100)], ["greet"], 10, LEASE, suspects=1)
            )
            await store.leadership.survey(ADA, TTL)
            await store.promotion.sweep(100)
            await store.claims.expired(100)
            await store.workers.heartbeat(worker, TTL)
            await store.events.has_listeners()
            await store.retention.unsent(10)
            await store.claims.orphans()
            await store.retention.delete(TTL, 100, None)
            await store.retention.delete_leftovers(TTL, 100)
            await asyncio.to_thread(renewer.check, [token])

        await store.jobs.insert([NewJob(uuid_utils.compat.uuid7(), "greet", "default", "{}", delay=timedelta(days=1))])
        await ask_everything()
        await ask_everything()  # Once more, because the first round wrote that this worker is present and leads.
        while True:
            pipe.send("rested")
            pipe.recv()
            for _ in range(ROUNDS):
                await ask_everything()

    asyncio.run(main())


@contextmanager
def idle_worker(path: Path) -> Iterator[tuple[int, Pipe]]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=idle, args=(theirs, path))
    process.start()
    theirs.close()
    try:
        assert ours.recv() == "rested"
        assert process.pid is not None
        yield process.pid, ours
    finally:
        process.kill()
        process.join()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_an_idle_worker_writes_nothing(sqlite_path: Path) -> None:
    with idle_worker(sqlite_path) as (pid, pipe):
        before = written_bytes(pid), _changed_at(sqlite_path)
        pipe.send("again")
        assert pipe.recv() == "rested"

        assert (written_bytes(pid), _changed_at(sqlite_path)) == before


def written_bytes(pid: int) -> int:
    """How many bytes the process wrote to the disk or to its cache."""
    counters = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counters["write_bytes"])


def _changed_at(path: Path) -> list[tuple[str, int, int]]:
    files = [(file.name, file.stat()) for file in path.parent.iterdir()]
    return sorted((name, found.st_mtime_ns, found.st_size) for name, found in files)


def test_an_idle_worker_makes_no_system_call_on_the_database_but_for_locks(sqlite_path: Path, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: apt-get install strace (what is written is tested without it)")
    log = tmp_path / "strace.log"
    calls = "read,write,pread64,pwrite64,readv,writev,fsync,fdatasync,ftruncate,fallocate,openat,unlink"
    with idle_worker(sqlite_path) as (pid, pipe):
        tracer = subprocess.Popen(
            ["strace", "-f", "-y", "-e", f"trace={calls}", "-o", log, "-p", str(pid)], stderr=subprocess.PIPE, text=True
        )
        assert tracer.stderr is not None
        attached = tracer.stderr.readline()
        if "attached" not in attached:
            pytest.skip(f"strace may not be used here: {attached.strip()}")
        pipe.send("again")
        assert pipe.recv() == "rested"
        tracer.send_signal(signal.SIGINT)
        tracer.wait()

    lines = log.read_text().splitlines()
    assert lines, "strace saw the worker"
    assert [line for line in lines if re.search(re.escape(sqlite_path.name), line)] == []
