"""Organizations, their tokens and projects."""

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import Field

from examples.bodies import Body, Line
from examples.docverse.api.access import Called, FoundProject, Services
from examples.docverse.records import Org, Project
from examples.docverse.storage.edge import org_token

router = APIRouter()


class NewOrg(Body):
    slug: str
    title: Line = Field(max_length=200)
    publishing_mode: Literal["pointer", "copy"] = "pointer"
    rewrite_rules: list[dict[str, Any]] = Field(default_factory=list)


class NewToken(Body):
    role: Literal["uploader", "admin"]


class NewProject(Body):
    slug: str
    title: Line = Field(max_length=200)
    source_repository: str | None = None
    default_ref: str = "main"


@router.post("/orgs", status_code=201)
async def add_org(new: NewOrg, called: Called, services: Services) -> dict[str, Any]:
    called.check_superuser()
    token = org_token(services.config.edge_secret, new.slug)
    org = await services.hosting.add_org(new.slug, new.title, new.publishing_mode, new.rewrite_rules, token)
    return show_org(org)


@router.post("/orgs/{org}/tokens", status_code=201)
async def add_token(org: str, new: NewToken, called: Called, services: Services) -> dict[str, Any]:
    called.check(org, admin=True)
    return {"token": await services.hosting.add_token(await services.hosting.org(org), new.role), "role": new.role}


@router.post("/orgs/{org}/projects", status_code=201)
async def add_project(org: str, new: NewProject, called: Called, services: Services) -> dict[str, Any]:
    called.check(org, admin=True)
    owner = await services.hosting.org(org)
    return show_project(
        await services.hosting.add_project(owner, new.slug, new.title, new.source_repository, new.default_ref)
    )


@router.get("/orgs/{org}/projects/{project}")
async def project(project: FoundProject) -> dict[str, Any]:
    return show_project(project)


def show_org(org: Org) -> dict[str, Any]:
    return {
        "slug": org.slug,
        "title": org.title,
        "publishing_mode": org.publishing_mode,
        "rewrite_rules": org.rewrite_rules,
    }


def show_project(project: Project) -> dict[str, Any]:
    return {
        "org": project.org.slug,
        "slug": project.slug,
        "title": project.title,
        "source_repository": project.source_repository,
        "default_ref": project.default_ref,
    }
