"""Organizations, projects, builds and editions, as their owners make and change them."""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from examples.docverse import public_ids, records
from examples.docverse.database import Database
from examples.docverse.git_refs import check_ref, check_repository, is_ref
from examples.docverse.layout import MAIN
from examples.docverse.ports import ObjectStore, QueueBackend
from examples.docverse.records import Build, Edition, Org, Project
from examples.docverse.services.credentials import Credentials
from examples.docverse.storage.tarball import LIMITS, Limits, unpack

_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")
_EDITION_SLUG = re.compile(r"(?=.{1,80}$)[A-Za-z0-9][A-Za-z0-9.-]*|__main")
QueueIn = Callable[[Any], QueueBackend]
"""The queue whose jobs are stored in the transaction of a connection."""


class Refused(ValueError):
    """Something that is not done; the message says why."""


class NotFound(LookupError):
    """There is none, or not in this organization."""


class Conflict(Exception):
    """It exists already, or is in another state."""


def check_slug(slug: str) -> str:
    if not _SLUG.fullmatch(slug):
        raise Refused(f"slug {slug[:60]!r} may have lower-case letters, digits and hyphens only, 60 at most")
    return slug


def check_edition_slug(slug: str) -> str:
    if not _EDITION_SLUG.fullmatch(slug):
        raise Refused(f"slug {slug[:80]!r} may have letters, digits, hyphens and dots only, 80 at most")
    return slug


def check_rules(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for rule in rules:
        if problem := _problem(rule):
            raise Refused(f"rewrite rule {rule}: {problem}")
    return rules


def _problem(rule: dict[str, Any]) -> str | None:
    match, slug = rule.get("match"), rule.get("slug")
    if not isinstance(match, str) or match.count("*") > 1 or not is_ref(match.replace("*", "x")):
        return "match must be a git ref with at most one *"
    if set(rule) == {"match", "ignore"} and rule["ignore"] is True:
        return None
    if set(rule) != {"match", "slug"} or not isinstance(slug, str):
        return 'give it either a slug or "ignore": true, and nothing else'
    if slug.count("*") > match.count("*"):
        return "slug may have a * only if match has one, and only one"
    # What a * stands for is made fit when a build comes, so any letter is as good.
    if slug == MAIN or not _EDITION_SLUG.fullmatch(slug.replace("*", "x")):
        return "slug may have letters, digits, hyphens and dots only, and a *"
    return None


class HostingService:
    def __init__(self, database: Database, objects: ObjectStore, queue_in: QueueIn, credentials: Credentials) -> None:
        self._database = database
        self._objects = objects
        self._queue_in = queue_in
        self._credentials = credentials

    async def add_org(
        self, slug: str, title: str, publishing_mode: str, rules: list[dict[str, Any]], edge_token: str
    ) -> Org:
        async with self._database.transaction() as transaction:
            row = await transaction.one("add_org", check_slug(slug), title, publishing_mode, check_rules(rules))
            if row is None:
                raise Conflict(f"there is an organization {slug} already")
            org = records.org(row)
            await self._credentials.within(transaction).put(org.id, "edge", edge_token)
        return org

    async def org(self, slug: str) -> Org:
        row = await self._database.one("org", slug)
        if row is None:
            raise NotFound(f"there is no organization {slug}")
        return records.org(row)

    async def add_token(self, org: Org, role: str) -> str:
        token = secrets.token_urlsafe(24)
        await self._database.run("add_token", hashlib.sha256(token.encode()).hexdigest(), org.id, role)
        return token

    async def add_project(
        self, org: Org, slug: str, title: str, source_repository: str | None, default_ref: str
    ) -> Project:
        repository = None if source_repository is None else check_repository(source_repository)
        async with self._database.transaction() as transaction:
            project_id = await transaction.value(
                "add_project", org.id, check_slug(slug), title, repository, check_ref(default_ref)
            )
            if project_id is None:
                raise Conflict(f"there is a project {slug} already")
            await transaction.run("add_edition", project_id, MAIN, title, "main", "main", {})
        return await self.project(org.slug, slug)

    async def project(self, org: str, slug: str) -> Project:
        row = await self._database.one("project", org, slug)
        if row is None:
            raise NotFound(f"there is no project {slug} in organization {org}")
        return records.project(row)

    async def add_build(self, project: Project, git_ref: str) -> Build:
        number = public_ids.new()
        prefix = project.layout.build(public_ids.spell(number))
        return records.build(
            await self._database.one("add_build", number, project.id, check_ref(git_ref), prefix)
        )  # fmt: skip

    async def build(self, project: Project, public_id: str) -> Build:
        row = await self._database.one("build", project.id, public_ids.read(public_id))
        if row is None:
            raise NotFound(f"there is no build {public_id} of project {project.slug}")
        return records.build(row)

    async def upload(self, build: Build, tarball: Path, digest: str, limits: Limits = LIMITS) -> int:
        """Unpacks a tarball into the object store; nothing is written if it is refused."""
        if build.status != "pending":
            raise Conflict(f"build {build.public_id} is {build.status}: make a new build for other content")
        loop = asyncio.get_running_loop()

        # Aside first: while the body came in, another upload may have been published.
        aside = f"{build.object_prefix}-{uuid4().hex}"

        def write(name: str, data: IO[bytes]) -> None:
            asyncio.run_coroutine_threadsafe(self._objects.put(f"{aside}/{name}", data), loop).result()

        try:
            number = await asyncio.to_thread(unpack, tarball, write, limits)
            async with self._database.transaction() as transaction:
                # Locks the build, so that it cannot be signalled before its content is in place.
                if await transaction.value("content_uploaded", build.id, digest) is None:
                    raise Conflict(f"build {build.public_id} was signalled or deleted meanwhile: make a new build")
                await self._objects.delete_prefix(build.object_prefix)  # of an upload before
                await self._objects.move(aside, build.object_prefix)
        finally:
            await self._objects.delete_prefix(aside)
        return number

    async def signal_uploaded(self, build: Build, project: Project) -> Build:
        """Enqueues the processing of a build, together with its change of status; once, however often it is asked."""
        if not await self._database.value("has_content", build.id):
            raise Conflict(f"build {build.public_id} has no content: upload its tarball first")
        async with self._database.transaction() as transaction:
            if await transaction.value("signal_uploaded", build.id) is not None:
                payload = {**_references(project), "build_id": build.id}
                job = await self._queue_in(transaction.source).enqueue("build_processing", payload)
                await transaction.run("set_queue_job", build.id, job)
        return await self.build(project, build.public_id)

    async def add_edition(self, project: Project, slug: str, title: str, git_ref: str | None) -> Edition:
        check_edition_slug(slug)
        mode, params = ("manual", {}) if git_ref is None else ("git_ref", {"git_ref": check_ref(git_ref)})
        if await self._database.value("add_edition", project.id, slug, title, "draft", mode, params) is None:
            raise Conflict(f"there is an edition {slug} already: PATCH its build, or choose another slug")
        return await self.edition(project, slug)

    async def edition(self, project: Project, slug: str) -> Edition:
        row = await self._database.one("edition", project.id, slug)
        if row is None:
            raise NotFound(f"there is no edition {slug} of project {project.slug}")
        return records.edition(row)

    async def assign(self, edition: Edition, build: Build, project: Project) -> str:
        """Enqueues the update of an edition to a build that an admin names; the job's id."""
        if not await self._database.value("has_inventory", build.id):
            raise Conflict(
                f"build {build.public_id} is {build.status} and has no inventory: signal that it is uploaded, or retry "
                "its job"
            )
        payload = {**_references(project), "edition_id": edition.id, "assigned_build_id": build.id}
        job = await self._queue_in(None).enqueue("edition_update", payload)
        assert job is not None
        return job


def _references(project: Project) -> dict[str, Any]:
    """What a job is about, so that it can be found by it."""
    return {"org": project.org.slug, "org_id": project.org.id, "project_id": project.id}
