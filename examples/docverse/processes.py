"""The host's workers, each a process of its own."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

APP = "examples.docverse.main:app"
POLL = 0.05


class WorkerEnded(RuntimeError):
    """A worker has ended by itself; the message has the end of its log."""


@dataclass(frozen=True)
class Worker:
    process: asyncio.subprocess.Process
    log: Path

    async def kill(self) -> None:
        """As the kernel does when memory is short: nothing is finished or given back."""
        self.process.kill()
        await self.process.wait()

    async def ready(self) -> None:
        while "worker" not in self.log.read_text():
            if self.process.returncode is not None:
                raise self._end()
            await asyncio.sleep(POLL)

    async def watch(self) -> None:
        """Waits for its end, which is an error."""
        await self.process.wait()
        raise self._end()

    def _end(self) -> WorkerEnded:
        return WorkerEnded(f"the worker ended with {self.process.returncode}:\n{self.log.read_text()[-2_000:]}")


@asynccontextmanager
async def worker(
    folder: Path, environment: Mapping[str, str], *options: str, app: str = APP, verb: str = "worker"
) -> AsyncIterator[Worker]:
    """Starts a worker, and stops it at the end of the block."""
    log = folder / f"worker-{uuid4()}.log"
    own = {k: v for k, v in os.environ.items() if not k.startswith(("DUTIFUL_", "DOCVERSE_")) and k != "DATABASE_URL"}
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dutiful.cli", verb, app, *options,
            env={**own, **environment}, stdout=file, stderr=file,
        )  # fmt: skip
    started = Worker(process, log)
    try:
        await started.ready()
        yield started
        if process.returncode is None:
            process.terminate()
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
