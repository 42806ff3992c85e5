"""A worker process: `python -m benchmarks.worker MODULE URL TALLY QUEUES …` works until the harness ends it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from benchmarks.tally import Tally

Work = Callable[[str, Tally, list[str]], Awaitable[None]]


async def main() -> None:
    module, url, path, queues = sys.argv[1:5]
    work: Work = importlib.import_module(module).work
    await work(url, Tally(Path(path)), queues.split(","))


if __name__ == "__main__":
    uvloop.run(main())
