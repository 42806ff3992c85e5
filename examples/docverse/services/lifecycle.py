"""Lifecycle rules: which drafts are stale, which builds are orphans, and their deletion."""

from datetime import timedelta
from typing import Any

from examples.docverse import records
from examples.docverse.database import Database
from examples.docverse.ports import Job
from examples.docverse.records import Edition, Org, Project
from examples.docverse.services.dashboards import DashboardService
from examples.docverse.services.deletion import DeletionService
from examples.docverse.services.failures import Failures
from examples.docverse.services.hosting import Refused

RULES = ("draft_inactivity", "build_orphan", "ref_deleted")


class LifecycleService:
    def __init__(self, database: Database, deletion: DeletionService, dashboards: DashboardService) -> None:
        self._database = database
        self._deletion = deletion
        self._dashboards = dashboards

    async def set_rule(
        self, org: Org, project: Project | None, rule: str, *, enabled: bool, action: str, older_than: timedelta | None
    ) -> None:
        """A project's rule replaces that of its organization."""
        if rule not in RULES:
            raise Refused(f"rule {rule[:40]!r} must be one of: {', '.join(RULES)}")
        if rule == "ref_deleted":
            if older_than is not None:
                raise Refused("ref_deleted does not wait: leave older_than_days out")
        elif older_than is None:
            raise Refused(f"{rule} needs older_than_days")
        elif action == "flag":
            raise Refused(f"{rule} deletes: only ref_deleted can flag")
        await self._database.run(
            "put_rule", org.id, None if project is None else project.id, rule, enabled, action, older_than
        )

    async def rules(self, org: Org) -> list[dict[str, Any]]:
        return [
            {
                "project": row["project"],
                "rule": row["rule"],
                "enabled": row["enabled"],
                "action": row["action"],
                "older_than_days": None if row["older_than"] is None else row["older_than"] / timedelta(days=1),
            }
            for row in await self._database.all("rules_of_org", org.id)
        ]

    async def set_exempt(self, edition: Edition, exempt: bool) -> None:
        await self._database.run("set_exempt", edition.id, exempt)

    async def orgs(self) -> list[Org]:
        return [records.org(row) for row in await self._database.all("orgs")]

    async def evaluate(self, org: Org, job: Job) -> dict[str, int]:
        """Soft-deletes what the rules of an organization match; how many of each."""
        failures = Failures(job)
        finished = await self._deletion.finish(org.id, failures)
        drafts = 0
        for row in await self._database.all("stale_drafts", org.id, None):
            with failures.kept():
                drafts += await self._delete_draft(org, row["id"], job)
        builds = 0
        for row in await self._database.all("orphan_builds", org.id, None):
            with failures.kept():
                build = records.build(await self._database.one("build_by_id", row["id"]))
                project = await self._deletion.project_of(build.project_id)
                builds += await self._deletion.delete_build(build, project, "build_orphan", job)
        for row in await self._database.all("due_dashboards", org.id):
            with failures.kept():
                await self._dashboards.render(await self._deletion.project_of(row["id"]), job)
        failures.raise_first()
        return {"drafts": drafts, "builds": builds, "finished": finished}

    async def _delete_draft(self, org: Org, edition_id: int, job: Job) -> bool:
        async with job.lock("edition", edition_id):
            row = await self._database.one("edition_by_id", edition_id)
            # A build may have reached it while we waited.
            if row is None or await self._database.value("stale_drafts", org.id, edition_id) is None:
                return False
            edition = records.edition(row)
            project = await self._deletion.project_of(edition.project_id)
            await self._deletion.delete_edition(edition, project, "draft_inactivity", job)
            return True
