"""JobQueue: an embedded queue of jobs that run in phases; a thin layer over Dutiful."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import msgspec

from dutiful import (
    Dutiful,
    Event,
    EventType,
    Exponential,
    Fixed,
    Gap,
    JobCancelled,
    JobNotFound,
    Linear,
    ResultTimeout,
    Retry,
)
from examples.media_pipeline.config import Config
from examples.media_pipeline.job import Job

NAMES = {
    EventType.ENQUEUED: "job:enqueued",
    EventType.STARTED: "job:started",
    EventType.PROGRESS: "job:progress",
    EventType.PHASE_COMPLETED: "job:phase:completed",
    EventType.COMPLETED: "job:completed",
    EventType.RETRYING: "job:retrying",
    EventType.FAILED: "job:failed",
    EventType.CANCELLED: "job:cancelled",
    EventType.WEBHOOK_DELIVERED: "job:webhook:delivered",
    EventType.WEBHOOK_FAILED: "job:webhook:failed",
    EventType.STALE: "job:stale",
    EventType.DELETED: "job:deleted",
}
BACKOFFS = {"fixed": Fixed, "linear": Linear, "exponential": Exponential}
LISTED = 200
WORD_OF_CANCEL = timedelta(seconds=5)  # until another process has learnt of it, on Postgres


class Recoverable(Exception):
    """An error of a phase that is retried; any other error is final."""


class QueueEvent(msgspec.Struct, frozen=True):
    """An item of an event stream: a snapshot, a ping, or an event of a job."""

    name: str
    at: datetime
    job_id: str | None = None
    data: dict[str, Any] = {}


class JobQueue:
    """`async with JobQueue(config) as queue:` opens the database and runs jobs until the block ends."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.app = Dutiful(config.database_url, **config.settings())
        self._pipeline = self.app.pipeline(config.name, retry=_retry(config), on_retry="resume", on_crash="fail")
        for phase in config.phases:
            self._pipeline.phase(phase)
        for resource in config.resources:
            self.app.resource(resource)
        if config.webhook_url is not None:
            self.app.webhook(config.name, config.webhook_url)
        if config.on_stale is not None:
            self.app.on_stale(config.on_stale)
        if config.on_delete is not None:
            self.app.on_delete(config.on_delete)
        self._embedded = self.app.embedded()

    # --- jobs

    async def enqueue(
        self, data: Mapping[str, Any], *, scheduled_at: datetime | None = None, webhook_url: str | None = None
    ) -> str:
        """Stores a job and returns its id. `webhook_url` replaces the queue's webhook for this job."""
        request = self._pipeline.options(run_at=scheduled_at, webhook=webhook_url)
        return str((await request.enqueue(**data)).id)

    async def cancel(self, job_id: str) -> bool:
        """Cancels a job, and returns when that is stored; False if it had ended.

        A running one is asked to stop, and has `cancel_grace` for it.
        """
        client = await self.app.client()
        asked = await client.cancel(UUID(job_id), "cancelled by its user")
        if not asked.changed and not asked.requested:
            return False
        with suppress(JobCancelled, JobNotFound, ResultTimeout):
            await client.result(UUID(job_id), self.config.cancel_grace + WORD_OF_CANCEL)
        return True

    async def get(self, job_id: str) -> Job | None:
        found = await self.app.snapshot(job_id)
        return None if found is None else Job.of(found)

    async def jobs(self) -> list[Job]:
        """The newest first."""
        records = await self.app.jobs(kind=self.config.name, limit=LISTED, details=False)
        found = [await self.app.snapshot(record.id) for record in records]
        return [Job.of(one) for one in found if one is not None]

    # --- events

    async def create_event_stream(self, *, snapshot: bool = False) -> AsyncGenerator[QueueEvent, None]:
        """Streams events from now on, after a snapshot if asked for, with a ping every so often, busy or not.

        Close it with `aclosing`; that changes no job.
        """
        async with self.app.events(kinds=[self.config.name]) as stream:
            if snapshot:
                yield await self._snapshot()
            clock, every = asyncio.get_running_loop().time, self.config.ping.total_seconds()
            next_ping = clock() + every
            while True:
                if clock() >= next_ping:
                    next_ping += every * ((clock() - next_ping) // every + 1)
                    yield QueueEvent("ping", datetime.now(UTC))
                try:
                    async with asyncio.timeout_at(next_ping):
                        item = await anext(stream)
                except TimeoutError:
                    continue
                except StopAsyncIteration:
                    return
                else:
                    match item:
                        case Event():
                            yield QueueEvent(NAMES[item.type], item.at, str(item.job_id), item.data)
                        case Gap():
                            yield await self._snapshot()

    async def _snapshot(self) -> QueueEvent:
        return QueueEvent("snapshot", datetime.now(UTC), data={"jobs": msgspec.to_builtins(await self.jobs())})

    # --- opening and closing

    async def open(self) -> None:
        """Opens the database, fails jobs that a dead process left running, and starts to run jobs."""
        await self._embedded.open()

    async def shutdown(self, timeout: str | None = None) -> None:
        """Finishes running jobs within `timeout`, then gives them five seconds to clean up.

        Raises ShutdownTimeout, when all is closed, if some were interrupted.
        """
        await self._embedded.close(timeout)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._embedded.__aexit__(kind, error, tb)


def _retry(config: Config) -> Retry:
    """Retries Recoverable errors only: the nearest class in the hierarchy counts."""
    backoff = BACKOFFS[config.backoff](config.retry_delay)
    return Retry(max_attempts=config.max_attempts, per_error={BaseException: None, Recoverable: backoff})
