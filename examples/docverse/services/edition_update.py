"""Edition update: an admin assigns a build to an edition, perhaps an older one."""

from examples.docverse import records
from examples.docverse.database import Database
from examples.docverse.ports import Job
from examples.docverse.services.build_processing import EditionsProgress
from examples.docverse.services.dashboards import DashboardService
from examples.docverse.services.editions import EditionGone, EditionService


class EditionUpdate:
    def __init__(self, database: Database, editions: EditionService, dashboards: DashboardService) -> None:
        self._database = database
        self._editions = editions
        self._dashboards = dashboards

    async def editions(self, edition_id: int, assigned_build_id: int, job: Job) -> EditionsProgress:
        row = await self._database.one("edition_by_id", edition_id)
        if row is None:
            raise EditionGone(f"edition {edition_id} was deleted")
        edition = records.edition(row)
        build = records.build(await self._database.one("build_by_id", assigned_build_id))
        project = records.project(await self._database.one("project_by_id", edition.project_id))
        job.start_editions_phase([edition.slug])
        progress = EditionsProgress(
            editions_total=1, editions_completed=[], editions_skipped=[], editions_failed=[], editions_in_progress=[]
        )

        def mark_skipped(later: str) -> None:
            reason = f"superseded by build {later}"
            job.mark_edition_skipped(edition.slug, reason)
            progress["editions_skipped"].append({"slug": edition.slug, "reason": reason})

        try:
            if not await self._editions.update(edition, build, project, job, assigned=True, on_skip=mark_skipped):
                job.mark_edition_completed(edition.slug)
                progress["editions_completed"].append(edition.slug)
        except Exception as error:
            job.mark_edition_failed(edition.slug, error)
            raise
        return progress

    async def dashboard(self, edition_id: int, job: Job) -> None:
        row = await self._database.one("edition_by_id", edition_id)
        if row is not None:
            job.message("Rendering the dashboard")
            await self._dashboards.render(
                records.project(await self._database.one("project_by_id", row["project_id"])), job
            )
