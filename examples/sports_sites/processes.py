"""The register's processes, started by `dutiful server …` and `dutiful worker …`."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

APP = "examples.sports_sites.main:app"
POLL = 0.05


@dataclass(frozen=True)
class Process:
    running: asyncio.subprocess.Process
    log: Path

    async def logged(self, pattern: str) -> re.Match[str]:
        """Waits until its log matches."""
        while not (found := re.search(pattern, self.log.read_text())):
            if self.running.returncode is not None:
                raise RuntimeError(f"it ended with {self.running.returncode}:\n{self.log.read_text()}")
            await asyncio.sleep(POLL)
        return found

    def stop(self) -> None:
        """Sends SIGTERM; it finishes running jobs first."""
        self.running.send_signal(signal.SIGTERM)

    async def ended(self) -> int:
        return await self.running.wait()


class Deployment:
    """A server and workers, which all end with it."""

    def __init__(self, folder: Path, environment: Mapping[str, str], stack: AsyncExitStack) -> None:
        self._folder = folder
        self._environment = environment
        self._stack = stack

    async def server(self) -> str:
        """Starts the server, which runs no jobs, and returns its address."""
        process = await self._start("server", "--port", "0")
        return (await process.logged(r"running on (http://[\d.:]+)"))[1]

    async def worker(self) -> Process:
        """Starts a worker, and waits until it takes jobs."""
        process = await self._start("worker")
        await process.logged(r"worker \d+ on .*")
        return process

    async def _start(self, verb: str, *options: str) -> Process:
        return await self._stack.enter_async_context(_started(self._folder, self._environment, verb, *options))


@asynccontextmanager
async def deployment(folder: Path, environment: Mapping[str, str]) -> AsyncIterator[Deployment]:
    async with AsyncExitStack() as stack:
        yield Deployment(folder, environment, stack)


@asynccontextmanager
async def _started(folder: Path, environment: Mapping[str, str], verb: str, *options: str) -> AsyncIterator[Process]:
    """Stops the process at the end of the block, and waits for it."""
    log = folder / f"{verb}-{uuid4()}.log"
    with log.open("wb") as file:
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dutiful.cli", verb, APP, *options,
            env={**_own(), **environment}, stdout=file, stderr=file,
        )  # fmt: skip
    process = Process(running, log)
    try:
        yield process
        if running.returncode is None:
            process.stop()
            await process.ended()
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


def _own() -> dict[str, str]:
    """The environment without settings of other apps."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("DUTIFUL_", "SPORTS_")) and k != "DATABASE_URL"}
