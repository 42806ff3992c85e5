"""Editions: one is pointed to a build, under its lock, and never to an older one unless an admin says so."""

from collections.abc import Callable

from examples.docverse import public_ids
from examples.docverse.database import Database
from examples.docverse.layout import folders_of, pointer_key
from examples.docverse.ports import Job, ObjectInfo, ObjectStore, Pointer
from examples.docverse.records import Build, Edition, Project
from examples.docverse.services.dashboards import MetadataWriter
from examples.docverse.services.edges import Edges


class EditionGone(Exception):
    """The edition was deleted while a build was on its way to it."""


class LockLost(Exception):
    """Another job has written to the edition since this one got its lock, which was lost: it changes nothing more."""


class EditionService:
    def __init__(self, database: Database, objects: ObjectStore, edges: Edges, metadata: MetadataWriter) -> None:
        self._database = database
        self._objects = objects
        self._edges = edges
        self._metadata = metadata

    async def update(
        self,
        edition: Edition,
        build: Build,
        project: Project,
        job: Job,
        *,
        assigned: bool = False,
        on_skip: Callable[[str], None] = lambda newer: None,
    ) -> bool:
        """Points the edition to the build; True if it was skipped, because the edition has a newer one.

        `on_skip` gets the id of the newer one, which may not be the edition's any more when the lock is released. A
        build that an admin has `assigned` is applied even if it is older, unless another one was assigned later.
        """
        async with job.lock("edition", edition.id):
            current = await self._database.one("current_build", edition.id)
            if current is None:
                raise EditionGone(f"edition {edition.slug} was deleted")
            if not assigned and current["date_created"] is not None and current["date_created"] > build.date_created:
                on_skip(public_ids.spell(current["public_id"]))
                return True
            done = current["build_id"] == build.id and current["publishing_build_id"] is None
            if assigned:
                later = await self._database.value("assigned_later", edition.id, job.id)
                if later is not None:
                    on_skip(public_ids.spell(later))
                    return True
                # A newer build may have come since an earlier attempt, and stays.
                done = await self._database.value("assigned_before", edition.id, build.id, job.id)
            if not done:
                await self._publish(edition, build, project, current["fence"], job, assigned=assigned)
            # Else an earlier attempt of this job has published it, and perhaps died before it wrote the metadata.
            await self._metadata.write(edition.id, project)
            return False

    async def _publish(
        self, edition: Edition, build: Build, project: Project, seen: int, job: Job, *, assigned: bool
    ) -> None:
        # A lock is no fence, because a paused worker loses it: each writer has a number, and the database and the edge
        # refuse one that comes after a higher one.
        fence = await self._database.value("publishing", edition.id, build.id, seen)
        if fence is None:
            raise LockLost(f"edition {edition.slug} was changed by another job")
        edge = await self._edges.of(project.org)
        if project.org.publishing_mode == "pointer":
            key = pointer_key(project.org.slug, project.slug, edition.slug)
            if not await edge.point(key, Pointer(build.public_id, build.object_prefix), fence):
                raise LockLost(f"edition {edition.slug} was pointed to a build by a later job")
        else:
            await self._copy(edition, build, project)
        await edge.purge(project.layout.edition_path(edition.slug))
        async with self._database.transaction() as transaction:
            reason = "assigned" if assigned else "tracked"
            await transaction.run("log_history", edition.id, build.id, reason, job.id)
            if await transaction.value("published", edition.id, build.id, fence) is None:
                raise LockLost(f"edition {edition.slug} was changed by another job")

    async def _copy(self, edition: Edition, build: Build, project: Project) -> None:
        """Compares what is there, not what should be there, because an earlier attempt may have got half way."""
        target = project.layout.edition(edition.slug)
        there = {info.key[len(target) + 1 :]: info.content_hash for info in await self._objects.objects(target)}
        rows = await self._database.all("build_objects", build.id)
        wanted = {row["key"]: ObjectInfo(**row) for row in rows}
        changed = [info for key, info in wanted.items() if there.get(key) != info.content_hash]
        gone = [key for key in there if key not in wanted]
        # Where keys are paths, a file has no room beside a folder of its name: what is in the way goes first.
        folders = set[str]().union(*map(folders_of, wanted))
        early = {key for key in gone if key in folders or not folders_of(key).isdisjoint(wanted)}
        await self._objects.delete([f"{target}/{key}" for key in early])
        for info in sorted(changed, key=_copy_order):
            await self._objects.copy(f"{build.object_prefix}/{info.key}", f"{target}/{info.key}")
        await self._objects.delete([f"{target}/{key}" for key in gone if key not in early])


def _copy_order(info: ObjectInfo) -> tuple[int, str]:
    """What pages need comes before them, and the front page last: no page that is served lacks its parts."""
    if info.content_type != "text/html":
        return 0, info.key
    return (2 if info.key == "index.html" else 1), info.key
