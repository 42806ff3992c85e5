"""The job kinds: thin functions that call the services, and how often each is tried."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from dutiful import Context, Dutiful, Exponential, Inject, Retry
from examples.docverse.config import Config
from examples.docverse.database import STATEMENTS
from examples.docverse.factory import Docverse, open_docverse
from examples.docverse.queue_backend import DutifulQueueBackend
from examples.docverse.running_job import RunningJob
from examples.docverse.services.build_processing import EditionsProgress
from examples.docverse.services.hosting import QueueIn
from examples.docverse.upkeep import add_dashboard_sync, add_periodic

# Operators see them in pg_locks, and a script of theirs that takes such a lock excludes the jobs.
LOCK_CLASSES = {"edition": 1, "project": 2}
Opened = Callable[[Config, QueueIn], AbstractAsyncContextManager[Docverse]]


def docverse_app(config: Config, opened: Opened = open_docverse, **settings: Any) -> Dutiful:
    """The app of all processes; `opened` makes the services that its jobs use."""
    # purgatory_cleanup removes the records of ended jobs; workers remove none by themselves.
    given: dict[str, Any] = {"redis_url": config.redis_url, "retention": "never", "lock_classes": LOCK_CLASSES}
    app = Dutiful(config.database_url, **given | settings)
    app.resource(_docverse(app, config, opened))
    _build_processing(app, config)
    _edition_update(app, config)
    add_dashboard_sync(app, patient(config))
    add_periodic(app, periodic(config))
    return app


def _docverse(app: Dutiful, config: Config, opened: Opened) -> Callable[[], AsyncIterator[Docverse]]:
    async def docverse() -> AsyncIterator[Docverse]:
        async with opened(config, lambda connection: DutifulQueueBackend(app, connection)) as services:
            yield services

    return docverse


def patient(config: Config) -> Retry:
    """For jobs that no one else repeats: three attempts."""
    return Retry(max_attempts=3, backoff=Exponential(config.backoff))


def periodic(config: Config) -> Retry:
    """For jobs that find tomorrow what they missed today: two attempts."""
    return Retry(max_attempts=2, backoff=Exponential(config.backoff))


def _build_processing(app: Dutiful, config: Config) -> None:
    # A retry begins again with the inventory, as every step can be repeated.
    kind = app.pipeline("build_processing", retry=patient(config), on_retry="restart")

    @kind.phase
    async def inventory(ctx: Context, build_id: int, docverse: Docverse = Inject("docverse")) -> int:
        return await docverse.build_processing.inventory(build_id, RunningJob(ctx))

    @kind.phase
    async def tracking(ctx: Context, build_id: int, docverse: Docverse = Inject("docverse")) -> list[str]:
        return await docverse.build_processing.tracking(build_id, RunningJob(ctx))

    @kind.phase
    async def editions(
        ctx: Context, build_id: int, tracking: list[str], docverse: Docverse = Inject("docverse")
    ) -> EditionsProgress:
        return await docverse.build_processing.editions(build_id, tracking, RunningJob(ctx))

    @kind.phase
    async def dashboard(
        ctx: Context, build_id: int, editions: EditionsProgress, docverse: Docverse = Inject("docverse")
    ) -> None:
        await docverse.build_processing.dashboard(build_id, RunningJob(ctx))
        # The build's status changes together with the job's.
        async with ctx.transaction() as transaction:
            status = "completed_with_errors" if editions["editions_failed"] else "completed"
            await transaction.execute(STATEMENTS["build_ended"], build_id, status)


def _edition_update(app: Dutiful, config: Config) -> None:
    kind = app.pipeline("edition_update", retry=patient(config), on_retry="restart")

    @kind.phase
    async def editions(
        ctx: Context, edition_id: int, assigned_build_id: int, docverse: Docverse = Inject("docverse")
    ) -> EditionsProgress:
        return await docverse.edition_update.editions(edition_id, assigned_build_id, RunningJob(ctx))

    @kind.phase
    async def dashboard(ctx: Context, edition_id: int, docverse: Docverse = Inject("docverse")) -> None:
        await docverse.edition_update.dashboard(edition_id, RunningJob(ctx))
