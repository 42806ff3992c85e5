"""Deletes finished jobs when their time is over, in small steps, for as long as there are any."""

import asyncio
import time
from datetime import timedelta
from uuid import UUID

from dutiful.delivery import Lines
from dutiful.store import Duties, Survey

BATCH = 1_000
# At most this share of the time goes into deleting, so that it never starves the work itself.
SHARE = 0.6
REST = 60.0
FROM_START = 600.0


class Retention:
    name = "retention"

    def __init__(self, duties: Duties, keep: timedelta | None) -> None:
        self._duties = duties
        self._keep = keep
        self._cursor: UUID | None = None
        self._not_before = 0.0
        self._wrapped = time.monotonic()

    async def tick(self, survey: Survey) -> Lines | None:
        if self._keep is not None and time.monotonic() >= self._not_before:
            more = True
            while more:
                began = time.monotonic()
                more = await self._step(self._keep)
                if more:
                    await asyncio.sleep((time.monotonic() - began) * (1 / SHARE - 1))
            self._not_before = time.monotonic() + REST
        return None

    async def _step(self, keep: timedelta) -> bool:
        """One batch; returns whether there may be more. The cursor spares a walk over what was deleted before."""
        retained = await self._duties.retain(keep, BATCH, self._cursor)
        if retained.cursor is not None:
            self._cursor = retained.cursor
            return True
        if time.monotonic() - self._wrapped > FROM_START:
            # What was too young when the cursor passed it is found again from the start.
            self._cursor, self._wrapped = None, time.monotonic()
        return False
