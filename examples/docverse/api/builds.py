"""Builds: made, uploaded, and signalled as uploaded, which starts their processing."""

import hashlib
import tempfile
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, HTTPException, Request

from examples.bodies import Body
from examples.docverse import public_ids, records
from examples.docverse.api.access import FoundBuild, FoundProject, Services
from examples.docverse.records import Build
from examples.docverse.storage.tarball import LIMITS

router = APIRouter(prefix="/orgs/{org}/projects/{project}/builds")


class NewBuild(Body):
    git_ref: str


class BuildPatch(Body):
    status: Literal["uploaded"]


@router.post("", status_code=201)
async def add_build(new: NewBuild, project: FoundProject, services: Services) -> dict[str, Any]:
    return show(await services.hosting.add_build(project, new.git_ref))


@router.get("")
async def builds(project: FoundProject, services: Services) -> list[dict[str, Any]]:
    return [show(records.build(row)) for row in await services.database.all("builds_of_project", project.id, 100)]


@router.get("/{build}")
async def build(build: FoundBuild) -> dict[str, Any]:
    return show(build)


@router.put("/{build}/content", status_code=201)
async def upload(build: FoundBuild, request: Request, services: Services) -> dict[str, Any]:
    """The body is a .tar.gz of the built pages."""
    summed, size = hashlib.sha256(), 0
    with tempfile.TemporaryDirectory(prefix="upload-") as folder:
        tarball = Path(folder) / "content.tar.gz"
        with tarball.open("wb") as file:
            async for piece in request.stream():
                size += len(piece)
                if size > LIMITS.packed:
                    raise HTTPException(413, f"the tarball has over {LIMITS.packed:,} bytes: publish less")
                summed.update(piece)
                file.write(piece)
        number = await services.hosting.upload(build, tarball, summed.hexdigest())
    return {"objects": number, "sha256": summed.hexdigest()}


@router.patch("/{build}", status_code=202)
async def patch(patch: BuildPatch, build: FoundBuild, project: FoundProject, services: Services) -> dict[str, Any]:
    return show(await services.hosting.signal_uploaded(build, project))


def show(build: Build) -> dict[str, Any]:
    return {
        "id": build.public_id,
        "git_ref": build.git_ref,
        "status": build.status,
        "date_created": build.date_created,
        "queue_job": None if build.queue_job is None else public_ids.spell_job(build.queue_job),
    }
