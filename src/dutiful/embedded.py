"""A worker inside the user's own process, opened and closed in a fixed order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
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
    grace they are interrupted and given a last chance; webhooks under way ended, watchers removed, the store closed;
    and ShutdownTimeout at the very end, if jobs had to be interrupted or outcomes could not be stored.
    """

    def __init__(
        self,
        opened: Callable[[], Awaitable[Client]],
        make_worker: Callable[[Client], Worker],
        close: Callable[[], Awaitable[None]],
        grace: Duration | None = None,
    ) -> None:
        self._opened = opened
        self._make_worker = make_worker
        self._close = close
        self._grace = None if grace is None else duration(grace, "grace")
        self._worker: Worker | None = None
        self._running: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Returns when the worker looks for jobs; raises what kept it from that, with everything closed again."""
        if self._running is not None:
            raise UsageError("it is open already; make another one for another process")
        client = await self._opened()
        opening.debug("store open")
        try:
            self._worker = self._make_worker(client)
            self._running = asyncio.create_task(self._worker.run(), name="dutiful embedded worker")
            started = asyncio.create_task(self._worker.started.wait())
            await asyncio.wait([started, self._running], return_when=asyncio.FIRST_COMPLETED)
            started.cancel()
            if self._running.done():
                self._running.result()
        except BaseException:
            await self._abandon()
            raise
        self._running.add_done_callback(_tell_of_death)

    async def close(self, grace: Duration | None = None) -> None:
        """Everything is cleaned up when this returns or raises; ShutdownTimeout if not all went well."""
        worker, running = self._worker, self._running
        self._worker = self._running = None
        if worker is None or running is None:
            return
        running.remove_done_callback(_tell_of_death)
        worker.stop(self._grace if grace is None else duration(grace, "grace"))
        try:
            await asyncio.shield(running)
        finally:
            await self._close()

    async def _abandon(self) -> None:
        running, self._running, self._worker = self._running, None, None
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await self._close()

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


def _tell_of_death(running: "asyncio.Task[None]") -> None:
    if not running.cancelled() and running.exception() is not None:
        log.error("the embedded worker has ended: %s", running.exception(), exc_info=running.exception())
