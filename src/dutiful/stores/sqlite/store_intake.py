"""The store's face to those who enqueue."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from dutiful.core.job import Inserted, NewJob
from dutiful.stores.sqlite import intake
from dutiful.stores.sqlite.threads import Threaded
from dutiful.stores.sqlite.within import borrowed


class SqliteIntake(Threaded):
    async def insert(
        self, jobs: Sequence[NewJob], *, hint: bool = False, now: datetime | None = None
    ) -> list[Inserted]:
        return await self._write(lambda db: intake.insert(db, jobs, self._clock(now)))

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        return self.insert_within_sync(connection, jobs)

    def insert_within_sync(self, connection: Any, jobs: Sequence[NewJob]) -> list[Inserted]:
        with borrowed(connection, self._driver, self._path) as db:
            return intake.insert(db, jobs, self._clock(None))
