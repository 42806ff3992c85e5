"""Prints and keeps every event of the story, so that all can be counted at the end."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime

from rich.console import Console

from examples.media_pipeline.queue import QueueEvent

BAR = 20
STYLES = {
    "job:completed": "green",
    "job:failed": "red",
    "job:cancelled": "magenta",
    "job:retrying": "yellow",
    "job:webhook:failed": "red",
    "job:progress": "dim",
    "job:stale": "dim",
    "job:deleted": "dim",
}
ENDS = ("job:completed", "job:failed", "job:cancelled")


class EventLog:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._titles: dict[str, str] = {}
        self._events: defaultdict[str, list[QueueEvent]] = defaultdict(list)
        self._changed = asyncio.Condition()
        self._shown: Counter[str] = Counter()

    def expect(self, job_id: str, title: str) -> None:
        self._titles[job_id] = title

    async def add(self, job_id: str, event: QueueEvent) -> None:
        self._print(job_id, event)
        async with self._changed:
            self._events[job_id].append(event)
            self._changed.notify_all()

    # --- waiting

    async def wait_for(self, job_id: str, *names: str) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: any(event.name in names for event in self._events[job_id]))

    async def wait_for_all(self, *names: str) -> None:
        for job_id in self._titles:
            await self.wait_for(job_id, *names)

    # --- counting

    def count(self, name: str) -> int:
        return sum(event.name == name for events in self._ours() for event in events)

    def ends(self) -> dict[str, int]:
        """How many ended which way; a job that ended twice would count twice."""
        return {name.removeprefix("job:"): self.count(name) for name in ENDS}

    def on_time(self) -> bool:
        """Whether no job started before it was due."""
        for events in self._ours():
            due = next((event.data.get("run_at") for event in events if event.name == "job:enqueued"), None)
            started = next((event.at for event in events if event.name == "job:started"), None)
            if isinstance(due, datetime) and (started is None or started < due):
                return False
        return True

    def _ours(self) -> Iterable[list[QueueEvent]]:
        return (self._events[job_id] for job_id in self._titles)

    # --- printing

    def _print(self, job_id: str, event: QueueEvent) -> None:
        if event.name == "job:progress":
            overall = event.data.get("overall") or 0
            if overall < self._shown[job_id] + 10:
                return  # every percent would be too much for a terminal
            self._shown[job_id] = overall
        title = self._titles.get(job_id, job_id[:8])
        text = f"{title:<8} {event.name.removeprefix('job:'):<18} {_detail(event)}".rstrip()
        line = f"{time.monotonic() - self._began:6.1f}s  {text}"
        self._console.print(
            line, style=STYLES.get(event.name, "default"), highlight=False, markup=False, soft_wrap=True
        )


def _detail(event: QueueEvent) -> str:
    data = event.data
    match event.name:
        case "job:progress":
            full = round(BAR * (data.get("overall") or 0) / 100)
            return f"{'█' * full}{'░' * (BAR - full)} {data.get('overall')} %  {data.get('phase')}"
        case "job:phase:completed":
            return str(data["phase"])
        case "job:started" if data["attempt"] > 1:
            return f"attempt {data['attempt']}"
        case "job:retrying":
            return str(data["error"]["message"])
        case "job:failed":
            return str(data["errors"][0]["message"])
        case "job:webhook:failed":
            return str(data["error"])
        case _:
            return ""
