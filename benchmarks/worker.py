"""A worker process: `python -m benchmarks.worker MODULE URL COUNTER QUEUES …` runs until the harness ends it."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from benchmarks.run_counter import RunCounter

Work = Callable[[str, RunCounter, list[str]], Awaitable[None]]


async def main() -> None:
    module, url, path, queues = sys.argv[1:5]
    work: Work = importlib.import_module(module).work
    guard = asyncio.create_task(_end_with(os.getppid()))
    await work(url, RunCounter(Path(path)), queues.split(","))
    guard.cancel()


async def _end_with(parent: int) -> None:
    # A harness that was killed cannot end its workers.
    while True:
        await asyncio.sleep(1)
        if os.getppid() != parent:
            os._exit(1)


if __name__ == "__main__":
    uvloop.run(main())
