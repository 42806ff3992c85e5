"""Batches for workers in processes of their own, which are killed."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from dutiful import BatchJob, Dutiful

app = Dutiful()


@dataclass
class Line:
    number: int
    folder: str


@app.job(batch=20)
async def write(jobs: list[BatchJob[Line]]) -> list[int]:
    """Notes its jobs, and hangs if one of them says so and has not died here yet."""
    folder = Path(jobs[0].payload.folder)
    numbers = [job.payload.number for job in jobs]
    with (folder / "calls").open("a") as calls:
        calls.write(" ".join(map(str, numbers)) + "\n")
    if not (folder / "killed").exists():
        await asyncio.Event().wait()
    return numbers
