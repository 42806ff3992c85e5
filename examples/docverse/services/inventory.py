"""Inventory: what a build consists of, from the object store into the table of objects."""

from examples.docverse.database import Database
from examples.docverse.ports import Job, ObjectStore
from examples.docverse.records import Build


class NoObjects(Exception):
    """The object store has nothing of a build: to publish it would empty its editions."""


class InventoryService:
    def __init__(self, database: Database, objects: ObjectStore) -> None:
        self._database = database
        self._objects = objects

    async def catalog_build(self, build: Build, job: Job) -> int:
        """Records key, content hash, content type and size of every object; run again, it changes nothing."""
        found = await self._objects.objects(build.object_prefix)
        if not found:
            raise NoObjects(f"the object store has no object of build {build.public_id}")
        job.message(f"Cataloging {len(found):,} objects")
        skip = len(build.object_prefix) + 1
        await self._database.run(
            "upsert_objects", build.id, [o.key[skip:] for o in found], [o.content_hash for o in found],
            [o.content_type for o in found], [o.size for o in found],
        )  # fmt: skip
        return len(found)
