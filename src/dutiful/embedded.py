"""A worker inside the user's own process, opened and closed in a fixed order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Self

from dutiful.client.client import Client
from dutiful.core.duration import Duration, duration
from dutiful.core.errors import ShutdownTimeout, UsageError
from dutiful.worker.worker import Worker

log = logging.getLogger("dutiful.embedded")
opening = logging.getLogger("dutiful.startup")


class Embedded:
    """`async with app.embedded():` runs jobs in the background until the block ends.

    Opening: settings, store, kinds and their retry policies, worker, webhooks, recovery after a dead process,
    retention, and only then the first claim. Closing: no more claims, maintenance stopped, running jobs drained; past
    the grace period they are interrupted and may clean up; running webhook posts end, watchers are removed, and the
    store is closed unless this event loop has another holder. Last of all comes ShutdownTimeout, if jobs had to be
    interrupted or outcomes could not be stored.
    """

    def __init__(
        self,
        hold: Callable[[], Awaitable[Client]],
        make_worker: Callable[[Client], Worker],
        release: Callable[[], Awaitable[None]],
        grace: Duration | None = None,
    ) -> None:
        self._hold = hold
        self._make_worker = make_worker
        self._release = release
        self._grace = None if grace is None else duration(grace, "grace")
        self._open = False
        self._worker: Worker | None = None
        self._running: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Returns once the worker fetches jobs; if that fails, closes everything again and raises the error."""
        if self._open:
            raise UsageError("it is open already, or still closing; app.embedded() makes another one")
        self._open = True
        try:
            client = await self._hold()
            opening.debug("store open")
            try:
                self._worker, self._running = await self._started(client)
            except BaseException:
                await self._release()
                raise
        except BaseException:
            self._open = False
            raise

    async def _started(self, client: Client) -> tuple[Worker, "asyncio.Task[None]"]:
        worker = self._make_worker(client)
        running = asyncio.create_task(worker.run(), name="dutiful embedded worker")
        started = asyncio.create_task(worker.started.wait())
        try:
            await asyncio.wait([started, running], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        except BaseException:
            running.cancel()
            await _ended(running)
            if not running.cancelled():
                running.exception()  # marks it as retrieved; the error raised here is more important
            raise
        finally:
            started.cancel()
        client.on_cancel.add(worker.cancel)
        running.add_done_callback(lambda _: client.on_cancel.discard(worker.cancel))
        running.add_done_callback(_log_death)
        return worker, running

    async def close(self, grace: Duration | None = None) -> None:
        """Everything is closed when this returns or raises; ShutdownTimeout if jobs or outcomes were left over.

        Concurrent calls wait for the same end. If it is cancelled, running jobs are interrupted at once, and it still
        returns only when everything is closed.
        """
        limit = self._grace if grace is None else duration(grace, "grace")
        worker, running = self._worker, self._running
        if worker is None or running is None:
            if self._open:
                raise UsageError("it is still opening; cancel the task that opens it, or close it when it is open")
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._end(worker, running, limit), name="dutiful embedded closing")
        closing = self._closing
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            worker.abort()
            await _ended(closing)
            if not closing.cancelled() and (error := closing.exception()) is not None:
                log.warning("%s", error)
            raise

    async def _end(self, worker: Worker, running: "asyncio.Task[None]", grace: timedelta | None) -> None:
        running.remove_done_callback(_log_death)
        worker.stop(grace)
        try:
            await running
        finally:
            try:
                await self._release()
            finally:
                self._worker = self._running = self._closing = None
                self._open = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            await self.close()
        except ShutdownTimeout as late:
            if error is None:
                raise
            log.warning("%s", late)  # the error that the block raised is more important


async def _ended(task: "asyncio.Task[None]") -> None:
    """Waits for the task even if cancelled repeatedly, because it must not be left half closed."""
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue


def _log_death(running: "asyncio.Task[None]") -> None:
    if not running.cancelled() and running.exception() is not None:
        log.error("the embedded worker has ended: %s", running.exception(), exc_info=running.exception())
