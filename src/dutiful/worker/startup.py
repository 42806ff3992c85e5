"""Waits for the store when a worker starts: it may be restarting, full, or start at the same time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

from dutiful.core.errors import StoreAway, StoreBusy
from dutiful.observe.outage import OutageLog

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 0.5


class StartLimit:
    """The time that a worker may wait for the store until it has started; None: without limit."""

    def __init__(self, timeout: timedelta | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout.total_seconds()

    async def wait_for(
        self, start: Callable[[], Awaitable[T]], outages: OutageLog, stopping: asyncio.Event | None = None
    ) -> T | None:
        """Calls `start` again while the store is away, or another transaction has locked what it needs.

        None if it was stopped meanwhile.

        Raises the error when the time is over, and at once one that waiting does not mend: a wrong password, a missing
        schema.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                started = await start()
                outages.works("start")
                return started
            except (StoreAway, StoreBusy) as error:
                if self._end is not None and time.monotonic() + pause > self._end:
                    raise
                outages.failed("start", error)
            if stopping is None:
                await asyncio.sleep(pause)
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), pause)
                    return None
            pause = min(pause * 2, LONGEST_PAUSE)
