"""Dashboards: a project's pages about its editions, rendered from what the database says at that moment."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from examples.docverse import public_ids
from examples.docverse.database import Database
from examples.docverse.layout import MAIN
from examples.docverse.ports import Job, ObjectStore
from examples.docverse.records import Org, Project
from examples.docverse.rendering import NAMES, render
from examples.docverse.services.edges import Edges


def describe(row: Any, project: Project, site: str) -> dict[str, Any]:
    """An edition as it is shown in dashboards, switchers and metadata files."""
    url = f"{site}/{project.org.slug}/{project.slug}/"
    return {
        "slug": row["slug"],
        "title": row["title"],
        "kind": row["kind"],
        "url": url if row["slug"] == MAIN else f"{url}v/{row['slug']}/",
        "git_ref": row["git_ref"],
        "build": None if row["build"] is None else public_ids.spell(row["build"]),
        "date_updated": row["date_updated"].isoformat(),
        "ref_deleted": row["date_ref_deleted"] is not None,
    }


class MetadataWriter:
    """Writes `__editions/{slug}.json`; callers hold the edition's lock."""

    def __init__(self, database: Database, objects: ObjectStore, edges: Edges, site: str) -> None:
        self._database = database
        self._objects = objects
        self._edges = edges
        self._site = site

    async def write(self, edition_id: int, project: Project) -> None:
        row = await self._database.one("shown_edition", edition_id)
        if row is None:
            return  # deleted meanwhile
        key = project.layout.metadata(row["slug"])
        await self._objects.put(key, _json(describe(row, project, self._site)))
        edge = await self._edges.of(project.org)
        await edge.purge(f"{project.slug}/__editions/{row['slug']}.json")


class DashboardService:
    def __init__(
        self, database: Database, objects: ObjectStore, edges: Edges, metadata: MetadataWriter, site: str
    ) -> None:
        self._database = database
        self._objects = objects
        self._edges = edges
        self._metadata = metadata
        self._site = site

    async def render(self, project: Project, job: Job) -> None:
        """Writes the project's files under its lock, then each edition's metadata under the edition's lock.

        What is shown is read with the lock held, so the render that comes last shows the newest state.
        """
        async with job.lock("project", project.id):
            due = await self._database.value("dashboard_due", project.id)
            rows = await self._database.all("shown_editions", project.id)
            editions = [describe(row, project, self._site) for row in rows]
            pages = await render(await self._templates(project), _shown(project, editions))
            layout = project.layout
            await self._objects.put(layout.dashboard, pages["dashboard.html"])
            await self._objects.put(layout.not_found, pages["404.html"])
            await self._objects.put(layout.switcher, _json(_switcher(editions)))
            edge = await self._edges.of(project.org)
            await edge.purge(f"{project.slug}/__dashboard.html")
            await edge.purge(f"{project.slug}/__switcher.json")
        # All of them have ended before an error goes on: the end of the attempt releases the locks of those that write.
        writes = (self._write_metadata(row["id"], project, job) for row in rows)
        for ended in await asyncio.gather(*writes, return_exceptions=True):
            if ended is not None:
                raise ended
        await self._database.run("dashboard_rendered", project.id, due)

    async def _write_metadata(self, edition_id: int, project: Project, job: Job) -> None:
        async with job.lock("edition", edition_id):
            await self._metadata.write(edition_id, project)

    async def _templates(self, project: Project) -> dict[str, str]:
        """The organization's own, or the project's; empty if it has none."""
        own = await self._database.one("template_of_project", project.id)
        texts: dict[str, str] = {}
        if own is not None:
            for name in NAMES:
                with suppress(KeyError):
                    texts[name] = (await self._objects.get(f"{own['object_prefix']}/{name}")).decode()
        return texts


async def try_out(templates: Mapping[str, str]) -> None:
    """Renders templates with an example; TemplateFailed if that does not work."""
    org = Org(1, "example", "Example", "pointer", [])
    edition = {
        "slug": MAIN, "title": "Example", "kind": "main", "url": "https://docs.example.org/", "git_ref": "main",
        "build": public_ids.spell(1), "date_updated": "2026-01-01T00:00:00+00:00", "ref_deleted": False,
    }  # fmt: skip
    await render(templates, _shown(Project(1, "example", "Example", None, "main", org), [edition]))


def _shown(project: Project, editions: list[dict[str, Any]]) -> dict[str, Any]:
    """What templates may show."""
    org = {"slug": project.org.slug, "title": project.org.title}
    about = {"slug": project.slug, "title": project.title, "source_repository": project.source_repository}
    return {"project": about, "org": org, "editions": editions}


def _switcher(editions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"name": e["title"], "version": e["slug"], "url": e["url"], "preferred": e["slug"] == MAIN}
        for e in editions
        if e["build"] is not None
    ]


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()
