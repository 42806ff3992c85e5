"""Kinds at module level, where a worker process finds them; and helpers that read streams."""

import asyncio
from collections.abc import Callable
from typing import Any

from dutiful import Context, Dutiful, Event, EventStream, Fixed, Retry

app = Dutiful()
publish = app.pipeline("publish")


@publish.phase
async def download(ctx: Context, url: str) -> int:
    ctx.progress(50, f"half of {url}")
    return 7


@publish.phase
async def upload(ctx: Context, download: int) -> int:
    ctx.progress(80)
    return download * 2


@app.job(retry=Retry(max_attempts=2, backoff=Fixed("10ms")))
async def flaky(ctx: Context, works_at: int) -> str:
    if ctx.attempt < works_at:
        raise ValueError("not yet")
    await asyncio.sleep(0.5)  # so that no hint of its start is left to announce its end
    return "done"


async def read_until(stream: EventStream, until: Callable[[Any], bool], limit: float = 20) -> list[Any]:
    """Returns the items of the stream up to the first for which `until` is true."""
    items: list[Any] = []
    async with asyncio.timeout(limit):
        async for item in stream:
            items.append(item)
            if until(item):
                break
    return items


def of_type(*types: str) -> Callable[[Any], bool]:
    return lambda item: item.type in types


def reaching(count: int, fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """True of the item that makes it `count` of those that fit."""
    left = iter(range(count - 1, -1, -1))
    return lambda item: fits(item) and next(left) == 0


def types(items: list[Any]) -> list[str]:
    """The types of the events; of several progress events in a row only one, because their number is not promised."""
    found = [str(item.type) for item in items if isinstance(item, Event)]
    return [kind for n, kind in enumerate(found) if not (kind == "progress" and n and found[n - 1] == kind)]
