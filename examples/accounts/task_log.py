"""Prints each task of the queue when it has ended."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rich.console import Console

from examples.accounts.database import Database

POLL = 0.05
ENDED = """
    select t.task_id, coalesce(nullif(j.correlation_id, t.task_id::text), '(an extra check)') as process,
           coalesce(t.payload ->> 'db_function', t.task_type) as what,
           coalesce((select min(e.error_message) from queues.error e where e.task_id = t.task_id),
                    nullif(j.result ->> 'status', 'succeeded')) as problem
    from queues.task_completed c
    join queues.task t using (task_id)
    join dutiful.jobs j on j.id = t.task_id
    order by c.completed_at
"""


class TaskLog:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._seen: set[Any] = set()

    def chapter(self, title: str) -> None:
        name, colon, about = title.partition(":")
        self._console.print(f"\n[bold]{name}[/]{colon}{about}", highlight=False, soft_wrap=True)

    def say(self, text: str, style: str = "dim") -> None:
        self._console.print(f"         {text}", style=style, highlight=False, markup=False, soft_wrap=True)

    def check(self, sentence: str, passed: bool) -> None:
        self._console.print(f"  {'[green]✓[/]' if passed else '[red]✗[/]'} {sentence}", highlight=False, soft_wrap=True)

    async def print_ended(self, connection: Any) -> None:
        for row in await connection.fetch(ENDED):
            if row["task_id"] in self._seen:
                continue
            self._seen.add(row["task_id"])
            passed, problem = f"{time.monotonic() - self._began:6.1f}s", row["problem"]
            line = f"{passed}  {row['process']:<34} {row['what']:<44} {problem or ''}".rstrip()
            self._console.print(
                line, style="yellow" if problem else "green", highlight=False, markup=False, soft_wrap=True
            )


@asynccontextmanager
async def task_log(database: Database, console: Console) -> AsyncIterator[TaskLog]:
    log = TaskLog(console)

    async def follow() -> None:
        async with database.connected() as connection:
            while True:
                await log.print_ended(connection)
                await asyncio.sleep(POLL)

    task = asyncio.create_task(follow())
    try:
        yield log
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
