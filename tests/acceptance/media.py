"""The example's queue beside a real origin, and a listener that keeps all events."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dutiful.maintenance import runner
from dutiful.worker import leases
from examples.media_pipeline.config import Config
from examples.media_pipeline.job import Job
from examples.media_pipeline.media import sample_files
from examples.media_pipeline.origin import Origin
from examples.media_pipeline.phases import PHASES, Workspace
from examples.media_pipeline.queue import JobQueue, QueueEvent
from examples.media_pipeline.service import order
from examples.media_pipeline.story import NEW, OLD
from examples.serving import serving

DEADLINE = 60.0
SHELF = sample_files(60, 200)


@dataclass
class Service:
    """Makes queues on one database; what they fetch and report to is `origin`, at `url`."""

    database_url: str
    folder: Path
    origin: Origin
    url: str

    def queue(self, *phases: Callable[..., Any], **changes: Any) -> JobQueue:
        """Of the media phases, unless others are given."""
        workspace = Workspace(self.folder / "files")
        config = Config(
            phases=phases or PHASES,
            resources=() if phases else workspace.resources,
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
    """Its queues poll more often than in production, so that tests do not wait for seconds."""
    origin = Origin(SHELF, OLD)
    with patch.multiple(runner, LEADER_POLL=0.1, FOLLOWER_POLL=0.2), patch.object(leases, "CHECK_EVERY", 0.2):
        async with serving(origin.asgi) as url:
            yield Service(database_url, folder, origin, url)


@dataclass
class Listener:
    events: list[QueueEvent] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, name: str, job_id: str | None = None, *, times: int = 1, **data: Any) -> QueueEvent:
        """Waits for the event with such data."""

        def found() -> list[QueueEvent]:
            fitting = [event for event in self.events if event.name == name and job_id in (None, event.job_id)]
            return [event for event in fitting if all(event.data.get(key) == value for key, value in data.items())]

        async with self.changed, asyncio.timeout(DEADLINE):
            await self.changed.wait_for(lambda: len(found()) >= times)
        return found()[times - 1]

    def names(self, job_id: str | None = None) -> list[str]:
        """The events in order, without progress and pings."""
        passing = ("job:progress", "ping", "snapshot")
        return [event.name for event in self.events if event.name not in passing and job_id in (None, event.job_id)]


@asynccontextmanager
async def listening(queue: JobQueue) -> AsyncIterator[Listener]:
    """A listener for all events from now on."""
    listener = Listener()

    async def follow() -> None:
        async with aclosing(queue.create_event_stream(snapshot=True)) as stream:
            async for event in stream:
                async with listener.changed:
                    listener.events.append(event)
                    listener.changed.notify_all()

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
