"""Build processing: inventory, tracking, editions, dashboard. Plain async code, in that order."""

import asyncio
from typing import TypedDict

from examples.docverse import records
from examples.docverse.database import Database
from examples.docverse.ports import Job
from examples.docverse.records import Build, Edition, Project
from examples.docverse.services.dashboards import DashboardService
from examples.docverse.services.editions import EditionService
from examples.docverse.services.inventory import InventoryService
from examples.docverse.services.tracking import TrackingService


class SkippedEdition(TypedDict):
    slug: str
    reason: str


class FailedEdition(TypedDict):
    slug: str
    error: str


class EditionsProgress(TypedDict):
    """What became of the editions, as the job's record shows it."""

    editions_total: int
    editions_completed: list[str]
    editions_skipped: list[SkippedEdition]
    editions_failed: list[FailedEdition]
    editions_in_progress: list[str]


class BuildProcessing:
    """Each step can be run again: one that was done before changes nothing."""

    def __init__(
        self,
        database: Database,
        inventory: InventoryService,
        tracking: TrackingService,
        editions: EditionService,
        dashboards: DashboardService,
    ) -> None:
        self._database = database
        self._inventory = inventory
        self._tracking = tracking
        self._editions = editions
        self._dashboards = dashboards

    async def process(self, build_id: int, job: Job) -> EditionsProgress:
        """All steps in a row; in a worker each is a phase of the job."""
        await self.inventory(build_id, job)
        slugs = await self.tracking(build_id, job)
        results = await self.editions(build_id, slugs, job)
        await self.dashboard(build_id, job)
        return results

    async def inventory(self, build_id: int, job: Job) -> int:
        build, _ = await self._read(build_id)
        await self._database.run("processing", build.id, job.id)
        return await self._inventory.catalog_build(build, job)

    async def tracking(self, build_id: int, job: Job) -> list[str]:
        build, project = await self._read(build_id)
        job.message(f"Finding the editions of {build.git_ref}")
        return [edition.slug for edition in await self._tracking.evaluate(build, project)]

    async def editions(self, build_id: int, slugs: list[str], job: Job) -> EditionsProgress:
        """Updates all of them at once. One that fails stops no other; its error is part of the result."""
        build, project = await self._read(build_id)
        rows = [await self._database.one("edition", project.id, slug) for slug in slugs]
        editions = [records.edition(row) for row in rows if row is not None]
        progress = EditionsProgress(
            editions_total=len(editions),
            editions_completed=[],
            editions_skipped=[],
            editions_failed=[],
            editions_in_progress=[],
        )
        job.start_editions_phase(edition.slug for edition in editions)
        ended = await asyncio.gather(
            *(self._update_single_edition(edition, build, project, job, progress) for edition in editions),
            return_exceptions=True,
        )
        failed = {failure["slug"] for failure in progress["editions_failed"]}
        for edition, error in zip(editions, ended, strict=True):
            if isinstance(error, BaseException) and edition.slug not in failed:
                raise error  # not of this edition: the job was cancelled, say, or has lost a lock
        return progress

    async def dashboard(self, build_id: int, job: Job) -> None:
        _, project = await self._read(build_id)
        job.message("Rendering the dashboard")
        await self._dashboards.render(project, job)

    async def _update_single_edition(
        self, edition: Edition, build: Build, project: Project, job: Job, progress: EditionsProgress
    ) -> None:
        slug = edition.slug

        def mark_skipped(newer: str) -> None:
            reason = f"superseded by build {newer}"
            job.mark_edition_skipped(slug, reason)
            progress["editions_skipped"].append({"slug": slug, "reason": reason})

        try:
            if not await self._editions.update(edition, build, project, job, on_skip=mark_skipped):
                job.mark_edition_completed(slug)
                progress["editions_completed"].append(slug)
        except Exception as error:
            if (text := job.mark_edition_failed(slug, error)) is not None:
                progress["editions_failed"].append({"slug": slug, "error": text})
            raise

    async def _read(self, build_id: int) -> tuple[Build, Project]:
        build = records.build(await self._database.one("build_by_id", build_id))
        return build, records.project(await self._database.one("project_by_id", build.project_id))
