"""Prints the events of all jobs of the story, and waits until all have ended."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from rich.console import Console

from dutiful import Dutiful, Event, EventStream, EventType

T = TypeVar("T")
STYLES = {EventType.COMPLETED: "green", EventType.FAILED: "red", EventType.RETRYING: "yellow"}
ENDS = (EventType.COMPLETED, EventType.FAILED)


class EventLog:
    def __init__(self, app: Dutiful, console: Console) -> None:
        self._app = app
        self._console = console
        self._began = time.monotonic()
        self._ended: set[UUID] = set()

    async def all_ended(self) -> None:
        """Waits until no job waits or runs, and all final events have arrived."""
        operator = await self._app.operator()

        async def look() -> bool:
            stats = await operator.queues.stats(timedelta(hours=1))
            return not any(stats.live.values()) and sum(stats.finished.values()) == len(self._ended)

        await until(look)

    async def follow(self, stream: EventStream) -> None:
        async for item in stream:
            if isinstance(item, Event):
                if item.type in ENDS:
                    self._ended.add(item.job_id)
                self._print(item)

    def _print(self, event: Event) -> None:
        passed = f"{time.monotonic() - self._began:6.1f}s"
        line = f"{passed}  firm {event.tenant}  {event.kind:<28} {_detail(event)}".rstrip()
        self._console.print(line, style=STYLES[event.type], highlight=False, markup=False, soft_wrap=True)


@asynccontextmanager
async def following(app: Dutiful, console: Console) -> AsyncIterator[EventLog]:
    log = EventLog(app, console)
    async with app.events(types=list(STYLES)) as stream:
        task = asyncio.create_task(log.follow(stream))
        try:
            yield log
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(look: Callable[[], Awaitable[T]]) -> T:
    """Repeats `look` until it finds something; the story has a deadline."""
    while True:
        found = await look()
        if found:
            return found
        await asyncio.sleep(0.05)


def _detail(event: Event) -> str:
    match event.type:
        case EventType.RETRYING:
            error = event.data["error"]
            return f"{error['class']}, is retried: {error['message'].splitlines()[0]}"
        case EventType.FAILED:
            error = event.data["errors"][0]
            return f"{error['class']}, is a dead letter: {error['message'].splitlines()[0]}"
        case _:
            result = event.data.get("result") or {}
            return ", ".join(f"{name} {value}" for name, value in result.items())
