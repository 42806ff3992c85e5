"""A worker inside the user's own process, opened and closed in a fixed order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import TracebackType
from typing import Self

from dutiful.client import Client
from dutiful.core.duration import Duration, duration
from dutiful.core.errors import ShutdownTimeout, UsageError
from dutiful.worker.worker import Worker

log = logging.getLogger("dutiful.embedded")
opening = logging.getLogger("dutiful.opening")


class Embedded:
    """`async with app.embedded():` works on jobs in the background until the block ends.

    Opening: settings, store, kinds and their retry policies, worker, webhooks, recovery of what a dead process left,
    retention, and only then the first claim. Closing: no more claims, services stopped, running jobs drained; past the
    grace they are interrupted and given a last chance; webhooks under way ended, watchers removed, the store closed if
    nobody else on this event loop holds it; and ShutdownTimeout at the very end, if jobs had to be interrupted or
    outcomes could not be stored.
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
        """Returns when the worker looks for jobs; raises what kept it from that, with everything closed again."""
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
                running.exception()  # it matters less than what we raise
            raise
        finally:
            started.cancel()
        client.on_cancel.add(worker.cancel)
        running.add_done_callback(lambda _: client.on_cancel.discard(worker.cancel))
        running.add_done_callback(_tell_of_death)
        return worker, running

    async def close(self, grace: Duration | None = None) -> None:
        """Everything is cleaned up when this returns or raises; ShutdownTimeout if not all went well.

        Whoever calls it while it closes waits for the same end. If it is cancelled, running jobs are interrupted at
        once; and it still ends only when everything is cleaned up.
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
        running.remove_done_callback(_tell_of_death)
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except ShutdownTimeout as late:
            if error is None:
                raise
            log.warning("%s", late)  # what the block itself raised matters more


async def _ended(task: "asyncio.Task[None]") -> None:
    """Wait for it, however often we are told to go: what it has in hand must not be left half closed."""
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            continue


def _tell_of_death(running: "asyncio.Task[None]") -> None:
    if not running.cancelled() and running.exception() is not None:
        log.error("the embedded worker has ended: %s", running.exception(), exc_info=running.exception())
