"""Dashboard sync: a template repository has changed, so its files are copied and dashboards rendered again."""

import asyncio
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateSyntaxError
from jinja2.sandbox import SandboxedEnvironment

from examples.docverse import records
from examples.docverse.database import Database
from examples.docverse.git_refs import GitFile, GitRepositories, check_ref, check_repository
from examples.docverse.layout import template_prefix
from examples.docverse.ports import Job, ObjectStore, QueueBackend
from examples.docverse.records import Org, Project
from examples.docverse.rendering import NAMES, TemplateFailed
from examples.docverse.services.dashboards import DashboardService, try_out
from examples.docverse.services.hosting import QueueIn, Refused
from examples.docverse.storage.object_store import BadKey, check_key

MOST_FILES, LARGEST_FILE = 100, 1_000_000


class TemplateRefused(Exception):
    """The repository's files are not a template; trying again changes nothing."""


@dataclass(frozen=True)
class Push:
    """A push of a branch or tag to a repository, as a webhook reports it."""

    delivery_id: str
    repository: str
    git_ref: str


class TemplateService:
    """Which repositories are tracked, and what follows from a push to one."""

    def __init__(self, database: Database, queue_in: QueueIn) -> None:
        self._database = database
        self._queue_in = queue_in

    async def track(self, org: Org, project: Project | None, repository: str, git_ref: str, path: str) -> str:
        """Tracks a template repository and enqueues its first sync; the job's id."""
        if path.strip("/"):
            try:
                check_key(path.strip("/"))
            except BadKey as error:
                raise Refused(f"path: {error}") from None
        template_id: int = await self._database.value(
            "put_template", org.id, None if project is None else project.id, check_repository(repository),
            check_ref(git_ref), path.strip("/"),
        )  # fmt: skip
        return await self._enqueue(self._queue_in(None), org, {template_id: None if project is None else project.id})

    async def pushed(self, org: Org, push: Push) -> str | None:
        """Enqueues one sync of all templates that track the ref; None if there is none, or it was received before."""
        async with self._database.transaction() as transaction:
            if await transaction.value("record_delivery", org.id, push.delivery_id) is None:
                return None
            rows = await transaction.all("templates_of_ref", org.id, push.repository, push.git_ref)
            tracked = {row["id"]: row["project_id"] for row in rows}
            return await self._enqueue(self._queue_in(transaction.source), org, tracked) if tracked else None

    async def _enqueue(self, queue: QueueBackend, org: Org, tracked: dict[int, int | None]) -> str:
        """`tracked` has the project of each template; a job of one project's templates is found by that project."""
        about: dict[str, Any] = {"org": org.slug, "org_id": org.id}
        if len(projects := {*tracked.values()}) == 1 and None not in projects:
            about["project_id"] = projects.pop()
        job = await queue.enqueue("dashboard_sync", {**about, "template_ids": [*tracked]})
        assert job is not None
        return job


class DashboardSync:
    def __init__(
        self, database: Database, objects: ObjectStore, repositories: GitRepositories, dashboards: DashboardService
    ) -> None:
        self._database = database
        self._objects = objects
        self._repositories = repositories
        self._dashboards = dashboards

    async def sync(self, template_ids: list[int], job: Job) -> list[str]:
        """Copies the files of these templates to the object store; their commits."""
        return [await self._sync(template_id, job) for template_id in template_ids]

    async def _sync(self, template_id: int, job: Job) -> str:
        """Copies a template's files of the newest commit; the commit.

        The commit is read with the lock held, so the sync that comes last has the newest one. Files of a commit never
        change, and dashboards use them only when all are there.
        """
        async with job.lock("template", template_id):
            template = await self._database.one("template", template_id)
            if template is None:
                raise TemplateRefused(f"template {template_id} is not tracked any more")
            org = records.org(await self._database.one("org_by_id", template["org_id"]))
            refs = await self._repositories.refs(template["repository"])
            if (commit := refs.get(template["git_ref"])) is None:
                raise TemplateRefused(f"{template['repository']} has no branch or tag {template['git_ref']}")
            files = await self._repositories.files(template["repository"], commit, template["path"])
            check_files(files)
            contents = {file.path: await self._repositories.read(template["repository"], file) for file in files}
            await asyncio.to_thread(check_syntax, contents)
            try:
                await try_out({path: data.decode() for path, data in contents.items() if path in NAMES})
            except TemplateFailed as error:
                raise TemplateRefused(str(error)) from None
            job.message(f"Copying {len(files):,} files of {template['repository']} at {commit[:12]}")
            prefix = template_prefix(org.slug, template["project_slug"], commit)
            for path, data in contents.items():
                await self._objects.put(f"{prefix}/{path}", data)
            await self._database.run("template_synced", template_id, commit, prefix)
            return commit

    async def affected(self, template_ids: list[int]) -> list[Project]:
        """The project of an override; all projects of the organization otherwise; each once."""
        found: dict[int, Project] = {}
        for template_id in template_ids:
            template = await self._database.one("template", template_id)
            if template is None:
                continue
            if template["project_id"] is not None:
                rows = [await self._database.one("project_by_id", template["project_id"])]
            else:
                rows = await self._database.all("projects_of_org", template["org_id"])
            found |= {row["id"]: records.project(row) for row in rows if row is not None}
        return [*found.values()]

    async def render(self, project: Project, job: Job) -> None:
        await self._dashboards.render(project, job)


def check_files(files: list[GitFile]) -> None:
    """Refuses what cannot be a template before any of it is read."""
    if not any(file.path.endswith(".html") for file in files):
        raise TemplateRefused("the folder has no template, such as dashboard.html or 404.html")
    if len(files) > MOST_FILES:
        raise TemplateRefused(
            f"the folder has {len(files):,} files, over {MOST_FILES}: keep templates in one of their own"
        )
    for file in files:
        if file.size > LARGEST_FILE:
            raise TemplateRefused(f"{file.path} has over {LARGEST_FILE:,} bytes")
        try:
            check_key(file.path)
        except BadKey as error:
            raise TemplateRefused(f"{file.path}: {error}") from None


def check_syntax(contents: dict[str, bytes]) -> None:
    """Refuses templates that cannot be parsed before anything is written."""
    for path, data in contents.items():
        try:
            if path.endswith(".html"):
                SandboxedEnvironment().parse(data.decode())
        except (UnicodeDecodeError, RecursionError) as error:
            raise TemplateRefused(f"{path}: {error}") from None
        except TemplateSyntaxError as error:
            raise TemplateRefused(f"{path}, line {error.lineno}: {error.message}") from None
