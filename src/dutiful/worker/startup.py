"""Waits for the store when a worker starts: it may be restarting, full, or start at the same time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from types import EllipsisType
from typing import TypeVar

from dutiful.core.errors import StoreAway, StoreBusy
from dutiful.observe.outage import OutageLog

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 0.5


class StartLimit:
    """The time that a worker may wait for the store until it has started; None: without limit.

    `busy`, if given, is for a lock that another transaction holds: it ends by itself, and a store that is away may not.
    """

    def __init__(self, timeout: timedelta | None, *, busy: timedelta | EllipsisType | None = ...) -> None:
        self._end = _after(timeout)
        self._end_busy = self._end if busy is ... else _after(busy)

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
                end = self._end_busy if isinstance(error, StoreBusy) else self._end
                if end is not None and time.monotonic() + pause > end:
                    raise
                outages.failed("start", error)
            if stopping is None:
                await asyncio.sleep(pause)
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), pause)
                    return None
            pause = min(pause * 2, LONGEST_PAUSE)


def _after(timeout: timedelta | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout.total_seconds()
