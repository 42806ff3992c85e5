"""Who calls: the superuser, or a member of one organization."""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, HTTPException, Request

from examples.docverse.factory import Docverse
from examples.docverse.records import Build, Edition, Project


@dataclass(frozen=True)
class Caller:
    """`org` is None for the superuser, who may do everything."""

    org: str | None
    role: str

    def check(self, org: str, *, admin: bool = False) -> None:
        # As if it did not exist, because members need not know what others have.
        if self.org not in (None, org):
            raise HTTPException(404, f"there is no organization {org}, or it is not yours")
        if admin and self.role == "uploader":
            raise HTTPException(403, "this needs the token of an admin")

    def check_superuser(self) -> None:
        if self.org is not None:
            raise HTTPException(403, "this needs the superuser's token")


def docverse(request: Request) -> Docverse:
    services: Docverse = request.app.state.docverse
    return services


Services = Annotated[Docverse, Depends(docverse)]


async def caller(request: Request, services: Services) -> Caller:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise HTTPException(401, "authenticate with `Authorization: Bearer …`", {"WWW-Authenticate": "Bearer"})
    if hmac.compare_digest(token.encode(), services.config.superuser_token.encode()):
        return Caller(None, "superuser")
    row = await services.database.one("token", hashlib.sha256(token.encode()).hexdigest())
    if row is None:
        raise HTTPException(401, "the token is not known", {"WWW-Authenticate": "Bearer"})
    return Caller(row["org_slug"], row["role"])


Called = Annotated[Caller, Depends(caller)]


async def found_project(org: str, project: str, called: Called, services: Services) -> Project:
    called.check(org)
    return await services.hosting.project(org, project)


FoundProject = Annotated[Project, Depends(found_project)]


async def found_build(build: str, project: FoundProject, services: Services) -> Build:
    return await services.hosting.build(project, build)


async def found_edition(edition: str, project: FoundProject, services: Services) -> Edition:
    return await services.hosting.edition(project, edition)


FoundBuild = Annotated[Build, Depends(found_build)]
FoundEdition = Annotated[Edition, Depends(found_edition)]
