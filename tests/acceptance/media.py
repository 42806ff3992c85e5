"""The example's queue beside a real origin, and a listener that remembers all it hears."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dutiful.services import runner
from dutiful.worker import lease
from examples.media_pipeline.config import Config
from examples.media_pipeline.job import Job
from examples.media_pipeline.media import shelf
from examples.media_pipeline.origin import Origin
from examples.media_pipeline.phases import PHASES, Workshop
from examples.media_pipeline.queue import JobQueue, Told
from examples.media_pipeline.service import order
from examples.media_pipeline.story import NEW, OLD
from examples.serving import serving

DEADLINE = 60.0
SHELF = shelf(60, 200)


@dataclass
class Service:
    """Makes queues on one database; what they fetch and report to is `origin`, at `url`."""

    database_url: str
    folder: Path
    origin: Origin
    url: str

    def queue(self, *phases: Callable[..., Any], **changes: Any) -> JobQueue:
        """Of the media phases, unless others are given."""
        workshop = Workshop(self.folder / "files")
        config = Config(
            phases=phases or PHASES,
            resources=() if phases else workshop.resources,
            database_url=self.database_url,
            retry_delay=timedelta(milliseconds=100),
            webhook_url=f"{self.url}/hooks",
            webhook_secrets=(NEW, OLD),
            webhook_networks=("127.0.0.0/8",),
        )
        return JobQueue(replace(config, **changes))

    def order(self, file: str = "dawn.ppm", product: str | None = None) -> dict[str, str]:
        return order(self.url, file, product)


@asynccontextmanager
async def service(database_url: str, folder: Path) -> AsyncIterator[Service]:
    """Its queues look around more often than in production, so that nobody here waits for a second to pass."""
    origin = Origin(SHELF, OLD)
    with patch.multiple(runner, LEADER_LOOK=0.1, FOLLOWER_LOOK=0.2), patch.object(lease, "LOOK", 0.2):
        async with serving(origin.asgi) as url:
            yield Service(database_url, folder, origin, url)


@dataclass
class Listener:
    told: list[Told] = field(default_factory=list)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, name: str, job_id: str | None = None, *, times: int = 1, **data: Any) -> Told:
        """The event with such data, once it was heard."""

        def found() -> list[Told]:
            fitting = [told for told in self.told if told.name == name and job_id in (None, told.job_id)]
            return [told for told in fitting if all(told.data.get(key) == value for key, value in data.items())]

        async with self.news, asyncio.timeout(DEADLINE):
            await self.news.wait_for(lambda: len(found()) >= times)
        return found()[times - 1]

    def names(self, job_id: str | None = None) -> list[str]:
        """What was heard, in order, but for progress and pings."""
        passing = ("job:progress", "ping", "snapshot")
        return [told.name for told in self.told if told.name not in passing and job_id in (None, told.job_id)]


@asynccontextmanager
async def listening(queue: JobQueue) -> AsyncIterator[Listener]:
    """A listener that hears everything from now on."""
    listener = Listener()

    async def follow() -> None:
        async with aclosing(queue.create_event_stream(snapshot=True)) as stream:
            async for told in stream:
                async with listener.news:
                    listener.told.append(told)
                    listener.news.notify_all()

    following = asyncio.create_task(follow())
    try:
        await listener.until("snapshot")
        yield listener
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def seen(queue: JobQueue, job_id: str) -> Job:
    job = await queue.get(job_id)
    assert job is not None
    return job


def statuses(job: Job) -> dict[str, str]:
    return {phase.name: phase.status for phase in job.phases}
