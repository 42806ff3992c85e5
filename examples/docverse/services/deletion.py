"""Soft deletion: editions and builds disappear, and their content waits in purgatory."""

from uuid import UUID

from examples.docverse import records
from examples.docverse.database import Database
from examples.docverse.layout import pointer_key, purgatory_prefix
from examples.docverse.ports import Job, ObjectStore
from examples.docverse.records import Build, Edition, Project
from examples.docverse.services.edges import Edges
from examples.docverse.services.editions import LockLost
from examples.docverse.services.failures import Failures


class DeletionService:
    """Each step can be repeated: what a dead worker has begun is finished by the next attempt or the next night."""

    def __init__(self, database: Database, objects: ObjectStore, edges: Edges) -> None:
        self._database = database
        self._objects = objects
        self._edges = edges

    async def delete_edition(self, edition: Edition, project: Project, reason: str, job: Job) -> None:
        """The caller holds the edition's lock, read it, and then has made sure that it is still to be deleted.

        The row is deleted last: until then the slug is taken, so no new edition can be where this one's content is.
        """
        layout = project.layout
        fence = await self._database.value("deleting", edition.id, edition.fence)
        if fence is None:
            raise LockLost(f"edition {edition.slug} was changed by another job")
        await self._condemn(project, edition.id, None, layout.edition(edition.slug), reason, job.id)
        edge = await self._edges.of(project.org)
        if not await edge.unpoint(pointer_key(project.org.slug, project.slug, edition.slug), fence):
            raise LockLost(f"edition {edition.slug} was pointed to a build by a later job")
        await self._move(edition.id, None)
        await self._objects.delete([layout.metadata(edition.slug)])
        await edge.purge(layout.edition_path(edition.slug))
        await edge.purge(f"{project.slug}/__editions/{edition.slug}.json")
        await self._database.run("delete_edition", edition.id, fence)

    async def delete_build(self, build: Build, project: Project, reason: str, job: Job) -> bool:
        """False if an edition shows it meanwhile. The row is deleted first, so that no edition can begin to."""
        await self._condemn(project, None, build.id, build.object_prefix, reason, job.id)
        async with self._database.transaction() as transaction:
            locked = await transaction.value("lock_build", build.id)
            orphan = locked and await transaction.value("orphan_builds", project.org.id, build.id)
            if not orphan:
                return False
            await transaction.run("delete_build", build.id)
        await self._move(None, build.id)
        return True

    async def finish(self, org_id: int, failures: Failures) -> int:
        """Moves the content of builds whose worker died before it did; the number of them."""
        moved = 0
        for row in await self._database.all("unmoved_builds", org_id):
            with failures.kept():
                await self._move(None, row["build_id"])
                moved += 1
        return moved

    async def _condemn(
        self, project: Project, edition: int | None, build: int | None, prefix: str, reason: str, job: UUID
    ) -> None:
        name = f"edition-{edition}-{job}" if build is None else f"build-{build}-{job}"
        target = purgatory_prefix(project.org.slug, name)
        await self._database.run("condemn", project.org.id, edition, build, target, prefix, reason)

    async def _move(self, edition: int | None, build: int | None) -> None:
        for row in await self._database.all("condemned", edition, build):
            await self._objects.move(row["moved_from"], row["object_prefix"])
            await self._database.run("moved", row["id"])

    async def project_of(self, project_id: int) -> Project:
        return records.project(await self._database.one("project_by_id", project_id))
