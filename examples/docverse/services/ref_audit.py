"""Git ref audit: editions whose branch or tag is gone, because the webhook about it was missed."""

from typing import Any

from examples.docverse import records
from examples.docverse.database import Database
from examples.docverse.git_refs import GitError, GitRepositories
from examples.docverse.ports import Job
from examples.docverse.records import Project
from examples.docverse.services.dashboards import DashboardService
from examples.docverse.services.deletion import DeletionService
from examples.docverse.services.failures import Failures


class RefAudit:
    def __init__(
        self,
        database: Database,
        repositories: GitRepositories,
        deletion: DeletionService,
        dashboards: DashboardService,
    ) -> None:
        self._database = database
        self._repositories = repositories
        self._deletion = deletion
        self._dashboards = dashboards

    async def projects(self) -> list[Project]:
        """Those whose repository is known."""
        return [records.project(row) for row in await self._database.all("audited_projects")]

    async def audit(self, project: Project, job: Job) -> dict[str, list[str]]:
        """Compares a project's editions with its repository; the slugs of those that it flagged, cleared or deleted."""
        assert project.source_repository is not None
        refs = await self._repositories.refs(project.source_repository)
        if not refs:
            # More likely a repository that is broken or was made anew than one whose every ref was deleted.
            raise GitError(f"{project.source_repository} has no branch and no tag; nothing is flagged or deleted")
        found: dict[str, list[str]] = {"flagged": [], "cleared": [], "deleted": []}
        failures = Failures(job)
        for row in await self._database.all("audited_editions", project.id, None):
            if verdict := _verdict(row, refs):
                with failures.kept():
                    await self._apply(verdict, row, refs, project, job, found)
        if await self._database.value("dashboard_due", project.id) is not None:
            await self._dashboards.render(project, job)
        failures.raise_first()
        return found

    async def _apply(
        self, verdict: str, row: Any, refs: dict[str, str], project: Project, job: Job, found: dict[str, list[str]]
    ) -> None:
        async with job.lock("edition", row["id"]):
            edition = await self._database.one("edition_by_id", row["id"])
            current = await self._database.one("audited_editions", project.id, row["id"])
            if edition is None or current is None or _verdict(current, refs) != verdict:
                return  # changed while we waited
            if verdict == "deleted":
                await self._deletion.delete_edition(records.edition(edition), project, "ref_deleted", job)
            else:
                await self._database.run("flag_ref", row["id"], verdict == "flagged")
            found[verdict].append(row["slug"])


def _verdict(row: Any, refs: dict[str, str]) -> str | None:
    """What has to be done with an edition; None for nothing."""
    flagged = row["date_ref_deleted"] is not None
    if row["git_ref"] in refs:
        return "cleared" if flagged else None
    if row["action"] is None:
        return None
    if row["action"] == "delete" and not row["exempt"]:
        return "deleted"
    return None if flagged else "flagged"
