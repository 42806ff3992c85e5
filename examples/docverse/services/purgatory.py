"""Purgatory cleanup: content is deleted for good when its organization's retention is over."""

from datetime import timedelta

from examples.docverse.database import Database
from examples.docverse.ports import ObjectStore
from examples.docverse.records import Org
from examples.docverse.services.failures import Failures

BATCH = 100


class PurgatoryService:
    def __init__(self, database: Database, objects: ObjectStore) -> None:
        self._database = database
        self._objects = objects

    async def set_retention(self, org: Org, retention: timedelta) -> None:
        await self._database.run("set_retention", org.id, retention)

    async def clean(self, org: Org, batch: int = BATCH) -> int:
        """Deletes what has expired, in batches; the number of objects.

        A row is forgotten after its objects are gone: a worker that dies in between deletes nothing twice, and leaves
        nothing that no row names.
        """
        deleted, after, failures = 0, 0, Failures()
        while rows := await self._database.all("expired_purgatory", org.id, batch, after):
            gone = []
            for row in rows:
                with failures.kept():
                    deleted += await self._objects.delete_prefix(row["object_prefix"])
                    gone.append(row["id"])
            await self._database.run("forget_purgatory", gone)
            after = rows[-1]["id"]
        failures.raise_first()
        return deleted
