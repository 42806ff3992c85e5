"""Deliberate faults: worker processes to kill, stop and continue, and waits for what a store shows meanwhile.

    async with Fleet("myapp.jobs:app", database_url, folder=tmp_path) as fleet:
        worker = fleet.start("--lease", "2s")
        await until(lambda: store.claims.held_by(worker.id), "the worker runs a job")
        worker.kill()

For POSIX systems; finding a supervisor's children and a process's connections needs /proc.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

import uuid_utils.compat

from dutiful.core.errors import StoreUnavailable
from dutiful.store import Store
from dutiful.stores.postgres import PostgresStore
from dutiful.worker.supervisor import WORKER_ID

T = TypeVar("T")

LONG_ENOUGH = 60.0
"""Seconds after which a wait fails; not a measure of how soon something should happen."""
_TAIL = 4_000


async def until(look: Callable[[], Awaitable[T]], what: str, *, within: float = LONG_ENOUGH, every: float = 0.02) -> T:
    """Call `look` until its answer is true, and return that; an unavailable store counts as false.

    Looks more seldom the longer it waits, because each look is a query.
    """
    deadline = time.monotonic() + within
    while True:
        seen: T | StoreUnavailable
        try:
            seen = await look()
            if seen:
                return seen
        except StoreUnavailable as error:
            seen = error
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within:g} s until {what}; the last answer was {seen!r}")
        await asyncio.sleep(every)
        every = max(every, min(every * 1.2, 0.1))


class Process:
    """A child process, its output in a file."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, *, folder: Path | None = None
    ) -> None:
        self.log = log
        with log.open("wb") as output:
            # A session of its own, so that it does not get the terminal's Ctrl-C.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """What it has printed and logged so far."""
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash does: no signal handler, no `finally`, no write to the database."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop all its threads at once; returns when it is stopped."""
        self._process.send_signal(signal.SIGSTOP)
        # The state is left in place (WNOWAIT), so that a second stop does not wait for ever.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def ports(self) -> list[int]:
        """The local ports of its TCP connections, by which a server knows them."""
        sockets = {str(fd.readlink()) for fd in Path(f"/proc/{self.pid}/fd").iterdir()}
        lines = [line.split() for line in Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]]
        return [int(line[1].rpartition(":")[2], 16) for line in lines if f"socket:[{line[9]}]" in sockets]

    async def ended(self, *, within: float = LONG_ENOUGH) -> int:
        """Wait for its end; returns its exit code, or minus the signal that ended it."""

        async def look() -> bool:
            return not self.running

        await until(look, f"process {self.pid} ends", within=within)
        return self._process.returncode

    def close(self) -> None:
        """End it, and its children if it is a supervisor."""
        if not self.running:
            return
        self.stop()  # so that it starts no more of them
        pids = [self.pid, *children(self.pid)]
        for pid in pids:
            end(pid)
        self._process.wait()


class WorkerProcess(Process):
    """`dutiful worker` in a process of its own; `id` is the worker's, unless it is a supervisor."""

    def __init__(self, app: str, options: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.id: UUID = uuid_utils.compat.uuid7()
        command = [sys.executable, "-m", "dutiful.cli", "worker", app, *options]
        super().__init__(command, {**environment, WORKER_ID: str(self.id)}, log)

    async def ready(self, store: Store, *, within: float = LONG_ENOUGH) -> Self:
        """Wait for its first heartbeat."""

        async def look() -> bool:
            if not self.running:
                raise AssertionError(f"worker process {self.pid} ended with code {self._process.returncode}")
            return any(worker.id == self.id for worker in await store.workers.all())

        await until(look, f"worker process {self.pid} has sent a heartbeat", within=within)
        return self


class Fleet:
    """Worker processes of one app on one database; all of them end with the block.

    `folder` gets their logs, whose ends are shown if the block fails. `path` is the folder of the app's module.
    """

    def __init__(
        self,
        app: str,
        database_url: str,
        *,
        folder: Path,
        path: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._app = app
        self._folder = folder
        self._environment = {
            # No setting of the test's own environment may leak into the workers.
            **{k: v for k, v in os.environ.items() if not k.startswith("DUTIFUL_") and k != "DATABASE_URL"},
            "DUTIFUL_DATABASE_URL": database_url,
            **(environment or {}),
        }
        if path is not None:
            paths = [str(path), str(Path(__file__).parent), *filter(None, [self._environment.get("PYTHONPATH")])]
            self._environment["PYTHONPATH"] = os.pathsep.join(paths)
        self.workers: list[WorkerProcess] = []
        self._others: list[Process] = []

    def start(self, *options: str, environment: Mapping[str, str] | None = None) -> WorkerProcess:
        """Start `dutiful worker` with these options; `await worker.ready(store)` waits until it works."""
        log = self._folder / f"worker-{len(self.workers) + 1}.log"
        worker = WorkerProcess(self._app, options, {**self._environment, **(environment or {})}, log)
        self.workers.append(worker)
        return worker

    async def doomed(self, store: Store) -> tuple[str, ...]:
        """The options of workers that are killed soon.

        On Postgres, another one leads, because the term of a killed leader has to end first; it gets no jobs.
        """
        if not isinstance(store, PostgresStore):
            return "--lease", "2s"
        leader = self.start("--lease", "2s", "--lane", "none=1:no-jobs")

        async def leads() -> bool:
            return any(worker.leading and worker.id == leader.id for worker in await store.workers.all())

        await until(leads, f"worker process {leader.pid} leads")
        return "--lease", "2s", "--no-services"

    def run(self, *command: str) -> Process:
        """Start another program in the workers' environment, such as a producer."""
        process = Process(command, self._environment, self._folder / f"process-{len(self._others) + 1}.log")
        self._others.append(process)
        return process

    def close(self) -> None:
        for process in (*self.workers, *self._others):
            process.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
        if error is not None:
            for process in (*self.workers, *self._others):
                error.add_note(f"{process.log.name} (process {process.pid}):\n{process.output[-_TAIL:]}")


def children(pid: int) -> list[int]:
    """The processes that `pid` has started and that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The second field is the command in parentheses, which may contain anything; the parent is the fourth.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def end(pid: int) -> None:
    """Kill a process that may have ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
