"""Jobs that wait in every way there is, for outages: in steps, for events, for other jobs, for a limit."""

import asyncio
import os
from pathlib import Path

from fault_jobs import LOOK, shut

from dutiful import Concurrency, Context, Dutiful

app = Dutiful()
DIARY = "FLOW_DIARY"


def note(word: str) -> str:
    with Path(os.environ[DIARY]).open("a") as diary:
        diary.write(f"{word}\n")
    return word


async def opened(gate: str) -> None:
    while shut(gate):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(LOOK)


@app.job
async def sleeps(ctx: Context) -> list[str]:
    before = await ctx.step("before", note, "before the sleep")
    await ctx.sleep("2s", name="rest")
    return [before, await ctx.step("after", note, "after the sleep")]


@app.job
async def hears(ctx: Context, key: str) -> str:
    heard: str = await ctx.wait_for_event("rung", key)
    return await ctx.step("heard", note, f"heard {heard}")


@app.job
async def steps(ctx: Context, gate: str) -> str:
    """Has a result to store while the database is away."""

    async def held() -> str:
        note("step begun")
        await opened(gate)
        return note("step done")

    return await ctx.step("held", held)


@app.job
async def leads(gate: str) -> str:
    note("leads")
    await opened(gate)
    return "led"


@app.job
async def follows() -> str:
    return note("follows")


@app.job(concurrency=Concurrency(1))
async def alone(gate: str) -> None:
    note("alone begins")
    await opened(gate)
    note("alone ends")
