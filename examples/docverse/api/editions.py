"""Editions: what they show, what they have shown, and their reassignment."""

from typing import Any

from fastapi import APIRouter
from pydantic import Field

from examples.bodies import Body, Line
from examples.docverse import public_ids
from examples.docverse.api.access import Called, FoundEdition, FoundProject, Services
from examples.docverse.services.dashboards import describe

router = APIRouter(prefix="/orgs/{org}/projects/{project}/editions")


class NewEdition(Body):
    slug: str
    title: Line = Field(max_length=200)
    git_ref: str | None = None


class EditionPatch(Body):
    build: str


@router.get("")
async def editions(project: FoundProject, services: Services) -> list[dict[str, Any]]:
    rows = await services.database.all("shown_editions", project.id)
    return [describe(row, project, services.config.edge_url) for row in rows]


@router.post("", status_code=201)
async def add_edition(
    new: NewEdition, org: str, called: Called, project: FoundProject, services: Services
) -> dict[str, Any]:
    called.check(org, admin=True)
    made = await services.hosting.add_edition(project, new.slug, new.title, new.git_ref)
    return describe(await services.database.one("shown_edition", made.id), project, services.config.edge_url)


@router.get("/{edition}")
async def edition(edition: FoundEdition, project: FoundProject, services: Services) -> dict[str, Any]:
    return describe(await services.database.one("shown_edition", edition.id), project, services.config.edge_url)


@router.get("/{edition}/history")
async def history(edition: FoundEdition, services: Services) -> list[dict[str, Any]]:
    return [
        {
            "build": public_ids.spell(row["public_id"]),
            "git_ref": row["git_ref"],
            "reason": row["reason"],
            "queue_job": public_ids.spell_job(row["queue_job"]),
            "date_created": row["date_created"],
        }
        for row in await services.database.all("history", edition.id)
    ]


@router.patch("/{edition}", status_code=202)
async def patch(
    patch: EditionPatch, org: str, called: Called, edition: FoundEdition, project: FoundProject, services: Services
) -> dict[str, Any]:
    """Assigns a build, also an older one."""
    called.check(org, admin=True)
    build = await services.hosting.build(project, patch.build)
    return {"queue_job": public_ids.spell_job(await services.hosting.assign(edition, build, project))}
