"""What admins set for the host's upkeep: templates, lifecycle rules, retention, credentials."""

from datetime import timedelta
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import Field

from examples.bodies import Body
from examples.docverse import public_ids
from examples.docverse.api.access import Called, FoundEdition, FoundProject, Services

router = APIRouter(prefix="/orgs/{org}")
LONGEST = 3_650


class Template(Body):
    repository: str
    git_ref: str = "main"
    path: str = Field(default="", max_length=200)


class Rule(Body):
    enabled: bool = True
    action: Literal["flag", "delete"] = "delete"
    older_than_days: float | None = Field(default=None, gt=0, le=LONGEST)

    @property
    def older_than(self) -> timedelta | None:
        return None if self.older_than_days is None else timedelta(days=self.older_than_days)


class Retention(Body):
    days: float = Field(ge=0, le=LONGEST)


class Credential(Body):
    secret: str = Field(min_length=16, max_length=500)


class Exemption(Body):
    exempt: bool


@router.put("/template", status_code=202)
async def put_template(org: str, given: Template, called: Called, services: Services) -> dict[str, Any]:
    called.check(org, admin=True)
    owner = await services.hosting.org(org)
    job = await services.templates.track(owner, None, given.repository, given.git_ref, given.path)
    return {"queue_job": public_ids.spell_job(job)}


@router.put("/projects/{project}/template", status_code=202)
async def put_override(
    org: str, given: Template, called: Called, project: FoundProject, services: Services
) -> dict[str, Any]:
    called.check(org, admin=True)
    job = await services.templates.track(project.org, project, given.repository, given.git_ref, given.path)
    return {"queue_job": public_ids.spell_job(job)}


@router.get("/rules")
async def rules(org: str, called: Called, services: Services) -> list[dict[str, Any]]:
    called.check(org)
    return await services.lifecycle.rules(await services.hosting.org(org))


@router.put("/rules/{rule}")
async def put_rule(org: str, rule: str, given: Rule, called: Called, services: Services) -> list[dict[str, Any]]:
    called.check(org, admin=True)
    owner = await services.hosting.org(org)
    await services.lifecycle.set_rule(
        owner, None, rule, enabled=given.enabled, action=given.action, older_than=given.older_than
    )
    return await services.lifecycle.rules(owner)


@router.put("/projects/{project}/rules/{rule}")
async def put_project_rule(
    org: str, rule: str, given: Rule, called: Called, project: FoundProject, services: Services
) -> list[dict[str, Any]]:
    called.check(org, admin=True)
    await services.lifecycle.set_rule(
        project.org, project, rule, enabled=given.enabled, action=given.action, older_than=given.older_than
    )
    return await services.lifecycle.rules(project.org)


@router.put("/retention")
async def put_retention(org: str, given: Retention, called: Called, services: Services) -> dict[str, float]:
    called.check(org, admin=True)
    await services.purgatory.set_retention(await services.hosting.org(org), timedelta(days=given.days))
    return {"days": given.days}


@router.put("/credentials/github", status_code=204)
async def put_credential(org: str, given: Credential, called: Called, services: Services) -> None:
    """The secret that signs webhooks. It can be replaced, and is never shown."""
    called.check(org, admin=True)
    await services.credentials.put((await services.hosting.org(org)).id, "github", given.secret)


@router.put("/projects/{project}/editions/{edition}/lifecycle")
async def put_exemption(
    org: str, given: Exemption, called: Called, edition: FoundEdition, services: Services
) -> dict[str, bool]:
    called.check(org, admin=True)
    await services.lifecycle.set_exempt(edition, given.exempt)
    return {"exempt": given.exempt}
