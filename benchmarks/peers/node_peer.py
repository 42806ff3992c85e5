"""Systems of Node, which npm installs in `benchmarks/peers/node`; programs of their own produce and work."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.peer import COMMON, DEFAULT_LANE, Lane, Payload, Store
from benchmarks.run_counter import RunCounter

_FOLDER = Path(__file__).parent / "node"
_MODULES = _FOLDER / "node_modules"
_LINE = 64 * 1024 * 1024


class NodeProducer:
    """Talks in lines of JSON; what is timed runs in the other process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pids(self) -> list[int]:
        return [self._process.pid]

    async def enqueue(self, payload: Payload) -> None:
        await self._ask(ask="one", payload=payload)

    async def enqueue_many(self, payloads: Sequence[Payload], lane: Lane = DEFAULT_LANE) -> None:
        place = {"kind": lane.kind, "queue": lane.queue, "priority": lane.priority}
        await self._ask(ask="many", payloads=payloads, lane=place)

    async def fill(self, tasks: int, batch: int, seconds: float) -> tuple[int, float]:
        answer = await self._ask(ask="fill", tasks=tasks, batch=batch, seconds=seconds)
        return answer["done"], answer["seconds"]

    async def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the producer ended with code {await self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    async def _ask(self, **question: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        await self._process.stdin.drain()
        return await self.answer()


@dataclass(frozen=True, slots=True)
class NodePeer:
    name: str
    package: str
    program: str
    unfinished_jobs: str
    drain_jobs: int
    store: Store = "postgres"
    worker: Sequence[str] = field(init=False)
    scenarios: frozenset[str] = COMMON | {"backlog", "pinned", "unpinned"}

    def __post_init__(self) -> None:
        object.__setattr__(self, "worker", (__name__, self.program))

    @property
    def version(self) -> str:
        return str(json.loads((_MODULES / self.package / "package.json").read_text())["version"])

    async def install(self, url: str) -> None:
        process = await asyncio.create_subprocess_exec(*_command(self.program, "install", url))
        if code := await process.wait():
            raise RuntimeError(f"{self.name} could not be installed: its program ended with code {code}")

    @asynccontextmanager
    async def producer(self, url: str, tasks: int) -> AsyncIterator[NodeProducer]:
        pipe = asyncio.subprocess.PIPE
        command = _command(self.program, "produce", url, str(tasks))
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=_LINE)
        try:
            producer = NodeProducer(process)
            await producer.answer()
            yield producer
        finally:
            process.kill()
            await process.wait()

    async def unfinished(self, url: str) -> int:
        connection = await asyncpg.connect(url)
        count = await connection.fetchval(self.unfinished_jobs)
        await connection.close()
        return int(count)


async def work(url: str, counter: RunCounter, queues: list[str]) -> None:
    """Becomes the program of the system, so that the process that is measured is its own."""
    path, program = sys.argv[3], sys.argv[5]
    command = _command(program, "work", url, path, ",".join(queues))
    os.execv(command[0], command)


def _command(program: str, *arguments: str) -> list[str]:
    return [_NODE, str(_FOLDER / program), *arguments]


def _node() -> str:
    """The one that npm brought, because systems need a newer one than many machines have."""
    brought = _MODULES / ".bin" / "node"
    found = str(brought) if brought.exists() else shutil.which("node")
    if found is None or not _MODULES.exists():
        raise ImportError(f"it needs Node and its packages: npm install --prefix {_FOLDER}")
    return found


_NODE = _node()
GRAPHILE = NodePeer(
    "graphile",
    "graphile-worker",
    "graphile.js",
    "SELECT count(*) FROM graphile_worker._private_jobs",
    drain_jobs=120_000,
)
PGBOSS = NodePeer(
    "pg-boss",
    "pg-boss",
    "pgboss.js",
    "SELECT count(*) FROM pgboss.job WHERE state < 'completed'",
    drain_jobs=120_000,
)
