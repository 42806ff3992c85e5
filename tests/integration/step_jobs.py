"""Jobs in steps whose workers are killed: inside of a step, between two of them, and around the record of one."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fault_jobs import LOOK, shut

from dutiful import Context, Dutiful
from dutiful.store.steps import StepMark
from dutiful.worker.executor.step_writer import StepWriter

app = Dutiful()
DIARY, KILLS = "STEP_DIARY", "STEP_KILLS"


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


@app.job(max_crashes=10)
async def pay(ctx: Context) -> Any:
    return [await ctx.step(name, write_down, name) for name in ("reserve", "charge", "mail", "archive")]


store_steps = StepWriter._put


async def store_or_die(self: StepWriter, marks: Sequence[StepMark]) -> Sequence[Any]:
    """Kills its worker before "charge" is recorded, and another one after "mail" was; each once."""
    if any(mark.name == "charge" for mark in marks):
        kill_once(Path(os.environ[KILLS], "before the record"))
    answers = await store_steps(self, marks)
    if any(mark.name == "mail" for mark in marks):
        kill_once(Path(os.environ[KILLS], "after the record"))
    return answers


if KILLS in os.environ:
    StepWriter._put = store_or_die  # type: ignore[method-assign]
