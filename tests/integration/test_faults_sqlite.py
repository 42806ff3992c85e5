"""One file, several processes, and a disk that fills up."""

import contextlib
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from uuid import UUID

import fault_jobs
import pytest
from fault_jobs import BULK, FLOOD, executions

from dutiful.core.errors import StoreUnavailable
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.queries import JobFilter
from dutiful.stores.sqlite import SqliteStore
from faults import Process, until

NOT_INERT = ("--kinds", "lengthy,nothing")


def in_a_write(process: Process, path: Path) -> bool:
    """Whether this process holds the lock under which the file is written to."""
    inode = Path(f"{path}-lock").stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[4] == str(process.pid) and fields[5].endswith(f":{inode}"):
            return True
    return False


@pytest.mark.parametrize("backend", ["sqlite"])
async def test_a_process_that_writes_all_the_time_costs_no_lease_and_may_be_killed(
    store: Store, sqlite_path: Path, tmp_path: Path
) -> None:
    async with fault_jobs.fleet(store, tmp_path, lease="2s") as fleet:
        worker = await fleet.start(*NOT_INERT).ready(store)
        writer = fleet.run(sys.executable, fault_jobs.__file__)

        async def flooding() -> bool:
            return writer.output.count("\n") > 1

        await until(flooding, "the writer writes")
        before = writer.output.count("\n")
        jobs = [await fault_jobs.app.enqueue("lengthy", {"seconds": 6.0}) for _ in range(4)]
        for job in jobs:
            await job.result(timeout="60s")
        assert writer.running
        batches = writer.output.count("\n")
        assert batches > before
        print(f"\n{batches * FLOOD} jobs written beside 4 that ran for three leases")
        for job in jobs:
            assert (await job.record()).crashes == 0
            assert await store.queries.attempts(job.id) == []
        assert len(executions(tmp_path)) == len(jobs)

        async def frozen_in_a_write() -> bool:
            writer.stop()
            if in_a_write(writer, sqlite_path):
                return True
            writer.resume()
            return False

        await until(frozen_in_a_write, "the writer is in the middle of a write", every=0.001)
        writer.kill()
        acknowledged = writer.output.count("\n") * FLOOD
        assert await (await fault_jobs.nothing.enqueue()).result(timeout="60s") == worker.pid
        # The last batch may have been committed without a reply, but only as a whole.
        assert ready_in(sqlite_path, "inert") in (acknowledged, acknowledged + FLOOD)
        assert await store.queries.check_places() == []


def ready_in(path: Path, queue: str) -> int:
    """Count exactly, because the shown count of so many jobs is an estimate."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        (count,) = file.execute("SELECT count(*) FROM dutiful_ready WHERE queue = ?", (queue,)).fetchone()
    return int(count)


class Disk(Protocol):
    """A place for a database that is to run out of space."""

    folder: Path

    def fill(self, *processes: Process) -> None: ...
    def free(self) -> None: ...


class SmallDisk:
    """A file system of a few megabytes; only root can make one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, *_: Process) -> None:
        with self._ballast.open("wb", buffering=0) as ballast, pytest.raises(OSError, match="No space left"):
            while True:
                ballast.write(bytes(4096))

    def free(self) -> None:
        self._ballast.unlink()


class FileLimit:
    """A limit on the size of files that the kernel sets for a process, for machines without SmallDisk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pids: list[int] = []

    def fill(self, *processes: Process) -> None:
        self._pids = [0, *(process.pid for process in processes)]
        for pid in self._pids:
            self._limit(pid, BULK)

    def free(self) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                self._limit(pid, resource.RLIM_INFINITY)

    def _limit(self, pid: int, size: int) -> None:
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode == 0:
        yield SmallDisk(folder)
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
    elif hasattr(resource, "prlimit"):
        limit = FileLimit(folder)
        yield limit
        limit.free()
    else:
        pytest.skip("neither can a small disk be mounted here nor the size of files be limited")


async def test_a_worker_recovers_from_a_full_disk_and_loses_nothing(disk: Disk, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    store = SqliteStore(disk.folder / "jobs.db")
    await store.open()
    async with fault_jobs.fleet(store, tmp_path) as fleet:
        worker = await fleet.start("--poll", "1h").ready(store)
        running = await fault_jobs.app.enqueue("large_result", {"gate": str(gate)})

        async def runs() -> bool:
            return running.id in executions(tmp_path)

        await until(runs, "the job runs")
        disk.fill(worker)
        acknowledged: list[UUID] = [running.id]
        with pytest.raises(StoreUnavailable, match=r"full|space"):
            for _ in range(1000):
                acknowledged.append((await fault_jobs.app.enqueue("large_payload", {"text": "x" * BULK})).id)
        gate.touch()

        async def waiting() -> bool:
            return "the database is away" in worker.output

        await until(waiting, "the worker cannot store what its job has done")
        disk.free()
        assert await running.result(timeout="60s") == "x" * BULK
        # It polls once an hour, so a job that starts now was announced by a hint.
        for _ in range(3):
            handle = await fault_jobs.nothing.enqueue()
            acknowledged.append(handle.id)
            assert await handle.result(timeout="60s") == worker.pid

        async def drained() -> bool:
            return not await store.queries.queues()

        await until(drained, "every job is final")
        jobs = await store.queries.jobs(JobFilter(limit=10_000))
        assert {job.id for job in jobs} == set(acknowledged)
        assert {job.state for job in jobs} == {State.COMPLETED}
        assert len(executions(tmp_path)) == len(jobs)
        assert worker.running
        assert await store.queries.check_places() == []
    await store.close()
