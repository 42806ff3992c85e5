"""A kind with limits, for workers in processes of their own."""

import asyncio

from dutiful import Concurrency, Dutiful

app = Dutiful()


@app.job(max_crashes=1000, concurrency=Concurrency(2, key="account"))
async def call(account: str, milliseconds: int = 20) -> None:
    await asyncio.sleep(milliseconds / 1000)
