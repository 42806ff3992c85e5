"""The kinds that `dutiful demo` runs, one of each sort."""

import asyncio
import random
import time

from dutiful import Context, Dutiful, Fixed, Retry

app = Dutiful(retention="never")


@app.job(queue="fast")
async def greet(name: str) -> str:
    """Fast, in a lane of its own."""
    return f"Hello, {name}!"


@app.job
async def crawl(page: int) -> int:
    """Slow, because it waits for input and output."""
    await asyncio.sleep(random.uniform(0.4, 1.2))
    return page * 100


@app.job(retry=Retry(max_attempts=4, backoff=Fixed("700ms")))
async def unsteady(ctx: Context, number: int) -> str:
    """Fails at first, and is retried."""
    if ctx.attempt < 1 + number % 3:
        raise ConnectionError(f"the far end hung up (attempt {ctx.attempt})")
    return f"worked at attempt {ctx.attempt}"


@app.job(retry=Retry(max_attempts=2, backoff=Fixed("300ms")))
async def hopeless(order: int) -> None:
    """Fails permanently, and becomes a dead letter."""
    raise ValueError(f"order {order} has no address")


@app.job
async def remind(note: str) -> str:
    """Scheduled for later."""
    return note


@app.job
async def endless() -> None:
    """Runs until it is cancelled."""
    await asyncio.sleep(3600)


@app.job
def write_file(size: int) -> int:
    """A plain function: runs in a thread."""
    time.sleep(0.3)
    return size


@app.job(process=True)
def count_primes(below: int) -> int:
    """CPU work: runs in a process of its own."""
    return sum(1 for n in range(2, below) if all(n % d for d in range(2, int(n**0.5) + 1)))
