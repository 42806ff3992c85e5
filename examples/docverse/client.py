"""A client of the host's API, as a project's CI or an admin uses it."""

import asyncio
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

POLL = 0.05
Json = dict[str, Any]


class CallError(Exception):
    """The API refused a call; the message is its answer."""


@dataclass(frozen=True)
class Client:
    http: httpx2.AsyncClient
    token: str

    async def call(self, method: str, path: str, **given: Any) -> Any:
        answer = await self.http.request(method, path, headers={"authorization": f"Bearer {self.token}"}, **given)
        if answer.status_code >= 400:
            raise CallError(f"{answer.status_code}: {answer.json().get('detail')}")
        return answer.json()

    async def build(self, project: str, git_ref: str, pages: Mapping[str, str]) -> str:
        """Makes a build and uploads its pages; `project` is `org/slug`. It is processed when it is signalled."""
        build: str = (await self.call("POST", f"{path_of(project)}/builds", json={"git_ref": git_ref}))["id"]
        await self.call("PUT", f"{path_of(project)}/builds/{build}/content", content=tarball(pages))
        return build

    async def signal(self, project: str, build: str) -> str:
        """Signals that a build is uploaded; its job."""
        patched = await self.call("PATCH", f"{path_of(project)}/builds/{build}", json={"status": "uploaded"})
        return str(patched["queue_job"])

    async def publish(self, project: str, git_ref: str, pages: Mapping[str, str]) -> tuple[str, Json]:
        """A build that is processed; its id, and its job when that has ended."""
        build = await self.build(project, git_ref, pages)
        return build, await self.ended(await self.signal(project, build))

    async def assign(self, project: str, edition: str, build: str) -> Json:
        patched = await self.call("PATCH", f"{path_of(project)}/editions/{edition}", json={"build": build})
        return await self.ended(patched["queue_job"])

    async def ended(self, job: str) -> Json:
        """Waits until a job has ended."""
        while True:
            found: Json = await self.call("GET", f"/queue/jobs/{job}")
            if found["date_completed"] is not None:
                return found
            await asyncio.sleep(POLL)


def path_of(project: str) -> str:
    org, _, slug = project.partition("/")
    return f"/orgs/{org}/projects/{slug}"


def tarball(pages: Mapping[str, str | bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in pages.items():
            data = text.encode() if isinstance(text, str) else text
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()
