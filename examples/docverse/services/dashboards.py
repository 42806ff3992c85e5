"""Dashboards: a project's pages about its editions, rendered from what the database says at that moment."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, TemplateNotFound
from jinja2.sandbox import SandboxedEnvironment

from examples.docverse import public_ids
from examples.docverse.database import Database
from examples.docverse.layout import MAIN
from examples.docverse.ports import Job, ObjectStore
from examples.docverse.records import Project
from examples.docverse.services.edges import Edges

BUILT_IN = Path(__file__).parents[1] / "templates"


class _Templates(BaseLoader):
    """Templates of a repository; those that it lacks are the built-in ones."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def get_source(self, environment: Any, template: str) -> tuple[str, str | None, Any]:
        try:
            return self._texts[template], None, None
        except KeyError:
            raise TemplateNotFound(template) from None


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
            rows = await self._database.all("shown_editions", project.id)
            editions = [describe(row, project, self._site) for row in rows]
            templates = await self._templates(project)
            shown = {"project": project, "org": project.org, "editions": editions}
            layout = project.layout
            await self._objects.put(layout.dashboard, _render(templates, "dashboard.html", shown))
            await self._objects.put(layout.not_found, _render(templates, "404.html", shown))
            await self._objects.put(layout.switcher, _json(_switcher(editions)))
            edge = await self._edges.of(project.org)
            await edge.purge(f"{project.slug}/__dashboard.html")
            await edge.purge(f"{project.slug}/__switcher.json")
        await asyncio.gather(*(self._write_metadata(row["id"], project, job) for row in rows))

    async def _write_metadata(self, edition_id: int, project: Project, job: Job) -> None:
        async with job.lock("edition", edition_id):
            await self._metadata.write(edition_id, project)

    async def _templates(self, project: Project) -> dict[str, str]:
        texts = {path.name: path.read_text() for path in BUILT_IN.glob("*.html")}
        own = await self._database.one("template_of_project", project.id)
        if own is not None:
            for name in texts:
                try:
                    texts[name] = (await self._objects.get(f"{own['object_prefix']}/{name}")).decode()
                except KeyError:
                    continue
        return texts


def _render(templates: Mapping[str, str], name: str, shown: Mapping[str, Any]) -> bytes:
    # Templates come from repositories of the organizations, so they are not trusted with more than what is shown.
    environment = SandboxedEnvironment(loader=_Templates(templates), autoescape=True)
    return environment.get_template(name).render(shown).encode()


def _switcher(editions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"name": e["title"], "version": e["slug"], "url": e["url"], "preferred": e["slug"] == MAIN}
        for e in editions
        if e["build"] is not None
    ]


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode()
