"""A pipeline whose worker is killed: in a phase that waits for a file, or by the condition of the next phase."""

import asyncio
import os
import signal
from pathlib import Path

from fault_jobs import LOOK, shut

from dutiful import Context, Dutiful

app = Dutiful()
DIARY = "PIPELINE_DIARY"
steps = app.pipeline("steps", max_crashes=10)


def write_down(phase: str) -> None:
    with Path(os.environ[DIARY]).open("a") as diary:
        diary.write(f"{phase}\n")


def kill_once(ctx: Context) -> bool:
    """Kill this worker between two phases, but only once."""
    mark = Path(ctx.payload["killed"])
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return True


@steps.phase
async def first(n: int) -> dict[str, int]:
    write_down("first")
    return {"n": n}


@steps.phase
async def second(gate: str, first: dict[str, int]) -> int:
    write_down("second")
    while shut(gate):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(LOOK)
    return first["n"] + 1


@steps.phase(when=kill_once)
def third(killed: str, first: dict[str, int], second: int) -> list[int]:
    write_down("third")
    return [first["n"], second]
