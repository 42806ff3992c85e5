"""Prints the events of all jobs of the story, and waits for some of them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from uuid import UUID

from rich.console import Console

from dutiful import Dutiful, Event, EventStream, EventType

T = TypeVar("T")
LONGEST = 60  # characters of an error that are printed
STYLES = {EventType.COMPLETED: "green", EventType.FAILED: "red", EventType.RETRYING: "yellow"}


class EventLog:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._ended: set[UUID] = set()

    async def follow(self, stream: EventStream) -> None:
        async for item in stream:
            if isinstance(item, Event):
                self._line(f"{item.kind:<18} {_detail(item)}".rstrip(), STYLES[item.type])
                if item.type is not EventType.RETRYING:
                    self._ended.add(item.job_id)

    async def ended(self, *job_ids: UUID) -> None:
        """Waits until they have ended, and their events were printed."""

        async def look() -> bool:
            return self._ended.issuperset(job_ids)

        await until(look)

    def chapter(self, title: str) -> None:
        name, colon, about = title.partition(":")
        self._console.print(f"\n[bold]{name}[/]{colon}{about}", highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self._line(text, "dim")

    def check(self, line: str, true: bool) -> bool:
        self._console.print(f"  {'[green]✓[/]' if true else '[red]✗[/]'} {line}", highlight=False, soft_wrap=True)
        return true

    def _line(self, text: str, style: str) -> None:
        passed = f"{time.monotonic() - self._began:6.1f}s  "
        self._console.print(passed + text, style=style, highlight=False, markup=False, soft_wrap=True)


@asynccontextmanager
async def following(app: Dutiful, console: Console) -> AsyncIterator[EventLog]:
    log = EventLog(console)
    async with app.events(types=list(STYLES)) as stream:
        task = asyncio.create_task(log.follow(stream))
        try:
            yield log
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(look: Callable[[], Awaitable[T | None]]) -> T:
    """Repeats `look` until it finds something; the story has a deadline."""
    while True:
        found = await look()
        if found:
            return found
        await asyncio.sleep(0.05)


def _detail(event: Event) -> str:
    match event.type:
        case EventType.RETRYING:
            return f"is retried: {_short(event.data['error']['message'])}"
        case EventType.FAILED:
            return f"is a dead letter: {_short(event.data['errors'][0]['message'])}"
        case _:
            result = event.data.get("result") or {}
            return ", ".join(f"{name} {_brief(value)}" for name, value in result.items())


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _brief(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
