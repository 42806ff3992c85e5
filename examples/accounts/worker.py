"""The application's worker: `dutiful sql-worker`, logged in as worker_service_user, in a process of its own."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from examples.accounts.database import Database
from examples.accounts.services import Services

POLL = 0.02


@dataclass(frozen=True)
class Worker:
    process: asyncio.subprocess.Process
    log: Path

    def kill(self) -> None:
        """As the kernel does when memory is short: nothing is finished or given back."""
        self.process.kill()

    async def stopped(self) -> int:
        """Lets it finish what it runs; returns its exit code."""
        if self.process.returncode is None:
            self.process.terminate()
        return await self.process.wait()

    async def ready(self) -> None:
        while "SQL worker" not in (text := self.log.read_text()):
            if self.process.returncode is not None:
                raise RuntimeError(f"the worker ended with {self.process.returncode}:\n{text}")
            await asyncio.sleep(POLL)


@asynccontextmanager
async def sql_worker(database: Database, services: Services, folder: Path, *options: str) -> AsyncIterator[Worker]:
    """Starts a worker, and stops it at the end of the block."""
    log = folder / f"worker-{uuid4()}.log"
    own = {
        name: value for name, value in os.environ.items() if not name.startswith("DUTIFUL_") and name != "DATABASE_URL"
    }
    environment = {**own, **services.environment(), "DUTIFUL_DATABASE_URL": database.worker_url}
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "dutiful.cli", "sql-worker", *options, env=environment, stdout=file, stderr=file
        )
    worker = Worker(process, log)
    try:
        await worker.ready()
        yield worker
        await worker.stopped()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
