"""Hears every event of a story, prints it and keeps it, so that in the end all can be counted."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime

from rich.console import Console

from examples.media_pipeline.queue import Told

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


class Ledger:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._titles: dict[str, str] = {}
        self._told: defaultdict[str, list[Told]] = defaultdict(list)
        self._news = asyncio.Condition()
        self._shown: Counter[str] = Counter()

    def expect(self, job_id: str, title: str) -> None:
        self._titles[job_id] = title

    async def hear(self, job_id: str, told: Told) -> None:
        self._print(job_id, told)
        async with self._news:
            self._told[job_id].append(told)
            self._news.notify_all()

    # --- waiting

    async def heard(self, job_id: str, *names: str) -> None:
        async with self._news:
            await self._news.wait_for(lambda: any(told.name in names for told in self._told[job_id]))

    async def all_heard(self, *names: str) -> None:
        for job_id in self._titles:
            await self.heard(job_id, *names)

    # --- counting

    def count(self, name: str) -> int:
        return sum(told.name == name for events in self._ours() for told in events)

    def ends(self) -> dict[str, int]:
        """How many ended which way; a job that ended twice would count twice."""
        return {name.removeprefix("job:"): self.count(name) for name in ENDS}

    def on_time(self) -> bool:
        """Whether no job started before it was due."""
        for events in self._ours():
            due = next((told.data.get("run_at") for told in events if told.name == "job:enqueued"), None)
            started = next((told.at for told in events if told.name == "job:started"), None)
            if isinstance(due, datetime) and (started is None or started < due):
                return False
        return True

    def _ours(self) -> Iterable[list[Told]]:
        return (self._told[job_id] for job_id in self._titles)

    # --- telling

    def _print(self, job_id: str, told: Told) -> None:
        if told.name == "job:progress":
            overall = told.data.get("overall") or 0
            if overall < self._shown[job_id] + 10:
                return  # a terminal is no place for every percent
            self._shown[job_id] = overall
        title = self._titles.get(job_id, job_id[:8])
        words = f"{title:<8} {told.name.removeprefix('job:'):<18} {_words(told)}".rstrip()
        line = f"{time.monotonic() - self._began:6.1f}s  {words}"
        self._console.print(line, style=STYLES.get(told.name, "default"), highlight=False, markup=False, soft_wrap=True)


def _words(told: Told) -> str:
    data = told.data
    match told.name:
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
