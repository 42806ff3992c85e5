"""The app of Arq workers in processes of their own; each run is a line in the file ARQ_DIARY."""

import asyncio
import os
from pathlib import Path
from typing import Any

from arq.worker import Worker

from dutiful import Context, Dutiful
from dutiful.arq_worker import worker_settings

app = Dutiful()
DIARY = "ARQ_DIARY"


def _write(line: str) -> None:
    with Path(os.environ[DIARY]).open("a") as diary:
        diary.write(line)


@app.job(max_crashes=10)
async def note(ctx: Context, number: int, seconds: float = 0.0) -> int:
    _write(f"{number} {ctx.attempt}\n")
    await asyncio.sleep(seconds)
    return number


if "ARQ_COMMAND" in os.environ:  # only in the process that Arq starts, because it reads the settings
    finish = Worker.finish_job

    async def finish_late(self: Worker, *args: Any) -> None:
        await asyncio.sleep(0.4)  # so that a signal comes while a message is being finished
        await finish(self, *args)

    setattr(Worker, "finish_job", finish_late)  # noqa: B010
    WorkerSettings = worker_settings(app)
