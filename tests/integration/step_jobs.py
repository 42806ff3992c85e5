"""A job in steps whose worker is killed: inside of a step, and between two of them."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from fault_jobs import LOOK, shut

from dutiful import Context, Dutiful

app = Dutiful()
DIARY = "STEP_DIARY"


def write_down(step: str) -> str:
    with Path(os.environ[DIARY]).open("a") as diary:
        diary.write(f"{step}\n")
    return step


async def wait_at(gate: str) -> str:
    write_down("second")
    while shut(gate):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(LOOK)
    return "second"


def kill_once(mark: Path) -> None:
    """Kill this worker between two steps, but only once."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@app.job(max_crashes=10)
async def order(ctx: Context, gate: str, killed: str) -> Any:
    first = await ctx.step("first", write_down, "first")
    second = await ctx.step("second", wait_at, gate)
    kill_once(Path(killed))
    await ctx.sleep("1s", name="rest")
    paid = await ctx.wait_for_event("paid", "7")
    return [first, second, paid, await ctx.step("third", write_down, "third")]
