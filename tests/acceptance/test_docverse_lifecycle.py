"""lifecycle_eval: stale drafts and orphan builds go to purgatory, by the rules of organizations and projects."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from docverse import CleanDocverse, Host, Json, hosting, installed, until
from docverse_parts import PlainJob
from docverse_upkeep import FailingStore, Together, Waiting, attempts, on_store, replaced, result_of, rule, run, sql

from databases import Postgres
from examples.docverse.jobs import docverse_app
from examples.docverse.records import Org, Project
from examples.docverse.upkeep import PERIODIC

SECRET = "a secret of sixteen or more"


@pytest.fixture(scope="module")
def clean(postgres18: Postgres) -> Iterator[CleanDocverse]:
    with installed(postgres18) as clean:
        yield clean


@pytest.fixture
async def host(clean: CleanDocverse, tmp_path: Path) -> AsyncIterator[Host]:
    async with hosting(clean.reset(), tmp_path) as host:
        yield host


def age(host: Host, slug: str, days: int) -> None:
    sql(
        host,
        "update docverse.edition set date_updated = clock_timestamp() - make_interval(days => %s) where slug = %s",
        days,
        slug,
    )


@pytest.mark.req("D97", "D98")
@pytest.mark.parametrize("mode", ["pointer", "copy"])
async def test_stale_drafts_and_orphan_builds_go_to_purgatory(host: Host, mode: str) -> None:
    await host.add_org(mode=mode)
    guide = await host.add_project()
    await rule(host, "draft_inactivity", older_than_days=30)
    await rule(host, "build_orphan", older_than_days=10)
    async with host.working():
        orphan, _ = await guide.publish("main", {"index.html": "old"})
        shown, _ = await guide.publish("main", {"index.html": "new"})
        draft, _ = await guide.publish("tickets-1", {"index.html": "stale"})
        await guide.publish("tickets-2", {"index.html": "fresh"})
        await guide.publish("tickets-3", {"index.html": "exempt"})
        for slug in ("__main", "tickets-1", "tickets-3"):
            age(host, slug, 31)
        await host.call("PUT", f"{guide.path}/editions/tickets-3/lifecycle", json={"exempt": True})
        sql(host, "update docverse.build set date_created = date_created - interval '11 days'")

        job = await run(host, "lifecycle_eval")

        assert job["status"] == "completed"
        assert await result_of(host, job) == {"rubin": {"drafts": 1, "builds": 2, "finished": 0}}
        assert await guide.page() == "new"
        assert await guide.page("v/tickets-3/") == "exempt" and await guide.page("v/tickets-2/") == "fresh"
        await guide.page("v/tickets-1/", 404)
        await guide.page("__editions/tickets-1.json", 404)
        assert "tickets-1" not in await guide.page("v/") and "tickets-2" in await guide.page("v/")
        for gone in (orphan, draft):
            await host.call("GET", f"{guide.path}/builds/{gone}", 404)
        await host.call("GET", f"{guide.path}/editions/tickets-1", 404)
        await host.call("GET", f"{guide.path}/builds/{shown}")
        kept = await host.services.objects.objects("purgatory/rubin")
        texts = {(await host.services.objects.get(info.key)).decode() for info in kept}
        assert texts == {"old", "stale"}
        assert all(row == (True,) for row in sql(host, "select date_moved is not null from docverse.purgatory"))
        assert (await result_of(host, await run(host, "lifecycle_eval"))) == {
            "rubin": {"drafts": 0, "builds": 0, "finished": 0}
        }
        _, again = await guide.publish("tickets-1", {"index.html": "back"})
        assert again["status"] == "completed" and await guide.page("v/tickets-1/") == "back"


@pytest.mark.req("D97", "D98", "D120")
async def test_what_cannot_be_deleted_keeps_nothing_behind_it_from_being_deleted(host: Host) -> None:
    await host.add_org()
    await rule(host, "draft_inactivity", older_than_days=30)
    await rule(host, "build_orphan", older_than_days=10)
    guide = await host.add_project()
    async with host.working():
        for slug in ("a-draft", "b-draft"):
            await guide.publish(slug)
            age(host, slug, 31)
        orphan = await guide.upload("main")
        sql(host, "update docverse.build set date_created = date_created - interval '11 days' where git_ref = 'main'")
        host.edge.refused.add("rubin/guide/a-draft.json")
        job = await run(host, "lifecycle_eval")
        assert "a-draft" in str(job["errors"]) and job["status"] == "failed"
        await guide.edition("a-draft")
        await host.call("GET", f"{guide.path}/editions/b-draft", 404)
        await host.call("GET", f"{guide.path}/builds/{orphan}", 404)
        assert "b-draft" not in await guide.page("v/")


@pytest.mark.req("D97")
async def test_a_projects_rule_replaces_that_of_its_organization(host: Host) -> None:
    await host.add_org()
    projects = [await host.add_project(slug=slug) for slug in ("patient", "off", "plain")]
    await rule(host, "draft_inactivity", older_than_days=5)
    await rule(host, "draft_inactivity", projects[0].path, older_than_days=50)
    await rule(host, "draft_inactivity", projects[1].path, older_than_days=5, enabled=False)
    async with host.working():
        for project in projects:
            await project.publish("draft")
        age(host, "draft", 20)
        await run(host, "lifecycle_eval")
    rows = sql(
        host,
        "select p.slug from docverse.edition e join docverse.project p on p.id = e.project_id"
        " where e.date_deleted is not null",
    )
    assert rows == [("plain",)]


@pytest.mark.req("D98")
async def test_organizations_are_evaluated_at_the_same_time(host: Host) -> None:
    for org in ("rubin", "other", "third"):
        await host.add_org(org)
    async with host.working(replaced(lifecycle=lambda services: Together(services.lifecycle, "evaluate", 3))):
        assert (await run(host, "lifecycle_eval"))["status"] == "completed"


async def test_a_draft_that_a_build_reaches_meanwhile_is_kept(host: Host) -> None:
    await host.add_org()
    guide = await host.add_project()
    await rule(host, "draft_inactivity", older_than_days=30)
    async with host.working():
        await guide.publish("draft", {"index.html": "one"})
        age(host, "draft", 31)

        async def published() -> None:
            sql(host, "update docverse.edition set date_updated = clock_timestamp() where slug = 'draft'")

        org = await host.services.hosting.org("rubin")
        assert (await host.services.lifecycle.evaluate(org, Waiting(published)))["drafts"] == 0
        assert await guide.page("v/draft/") == "one"


async def test_a_build_that_an_edition_takes_meanwhile_is_kept(host: Host) -> None:
    await host.add_org()
    guide = await host.add_project()
    await rule(host, "build_orphan", older_than_days=1)
    async with host.working():
        old, _ = await guide.publish("main", {"index.html": "old"})
        await guide.publish("main", {"index.html": "new"})
        sql(host, "update docverse.build set date_created = date_created - interval '2 days'")
        build = await host.services.hosting.build(await host.services.hosting.project("rubin", "guide"), old)
        await host.ended(await guide.assign("__main", old))

        project: Project = await host.services.hosting.project("rubin", "guide")

        async def nothing() -> None: ...

        deletion = host.services.lifecycle._deletion
        assert not await deletion.delete_build(build, project, "build_orphan", Waiting(nothing))
        assert await guide.page() == "old"


@pytest.mark.req("D97")
async def test_an_old_build_that_waits_to_be_processed_or_assigned_is_no_orphan(host: Host) -> None:
    await host.add_org()
    guide = await host.add_project()
    await rule(host, "build_orphan", older_than_days=1, enabled=False)
    async with host.working():
        assigned, _ = await guide.publish("main", {"index.html": "old"})
        halfway, _ = await guide.publish("main", {"index.html": "halfway"})
        orphan, _ = await guide.publish("main", {"index.html": "orphan"})
        await guide.publish("main", {"index.html": "new"})
    waiting = await guide.upload("main")
    await guide.signal(waiting)
    await guide.assign("__main", assigned)
    owner = await host.services.hosting.project("rubin", "guide")
    number = (await host.services.hosting.build(owner, halfway)).id
    sql(host, "update docverse.edition set publishing_build_id = %s", number)  # as a worker that died leaves it
    sql(host, "update docverse.build set date_created = date_created - interval '2 days'")

    assert (await host.services.lifecycle.evaluate(owner.org, PlainJob()))["builds"] == 0, "the rule is off"
    await rule(host, "build_orphan", older_than_days=1)
    assert (await host.services.lifecycle.evaluate(owner.org, PlainJob()))["builds"] == 1

    kept = [build["id"] for build in await host.call("GET", f"{guide.path}/builds")]
    assert {waiting, assigned, halfway} < set(kept) and orphan not in kept


async def test_an_update_to_a_build_that_is_being_deleted_waits_and_is_refused(host: Host) -> None:
    await host.add_org()
    guide = await host.add_project()
    async with host.working():
        old, _ = await guide.publish("main", {"index.html": "old"})
        new, _ = await guide.publish("main", {"index.html": "new"})
        with psycopg.connect(host.config.database_url) as deleting:  # as delete_build does
            (found,) = deleting.execute(
                "select id from docverse.build where git_ref = 'main' order by id limit 1 for update"
            ).fetchall()
            job = await guide.assign("__main", old)
            await _waits_for_a_lock(host)
            deleting.execute("update docverse.build set date_deleted = clock_timestamp() where id = %s", found)
        ended = await host.ended(job)
        assert ended["status"] == "failed"
        assert await guide.page() == "new" and (await guide.edition("__main"))["build"] == new


async def _waits_for_a_lock(host: Host) -> None:
    waiting = (
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        " and strpos(query, 'publishing_build_id') > 0"
    )

    async def look() -> bool:
        return sql(host, waiting) != [(0,)]

    await until(look)


@pytest.mark.req("D120")
@pytest.mark.parametrize("mode", ["pointer", "copy"])
async def test_an_evaluation_that_is_interrupted_is_finished_by_its_second_attempt(host: Host, mode: str) -> None:
    await host.add_org(mode=mode)
    guide = await host.add_project()
    await rule(host, "draft_inactivity", older_than_days=30)
    await rule(host, "build_orphan", older_than_days=10)
    async with host.working():
        await guide.publish("draft", {"index.html": "stale"})
        await guide.publish("main", {"index.html": "new"})
    age(host, "draft", 31)
    sql(host, "update docverse.build set date_created = date_created - interval '11 days'")
    async with host.working(on_store(FailingStore(host.config.objects, "orgs/rubin", 1))):
        job = await run(host, "lifecycle_eval")
        assert (job["status"], await attempts(host, job)) == ("completed", 2)
        await guide.page("v/draft/", 404)
        kept = await host.services.objects.objects("purgatory/rubin")
        assert len(kept) == (1 if mode == "pointer" else 2)
        assert sql(host, "select count(*) from docverse.purgatory where date_moved is null") == [(0,)]


@pytest.mark.req("D98", "D120")
async def test_a_dashboard_that_could_not_be_rendered_is_rendered_by_the_next_run(host: Host) -> None:
    await host.add_org()
    await host.add_org("other")  # so that the job has not failed, and is not tried again
    guide = await host.add_project()
    await rule(host, "draft_inactivity", older_than_days=30)
    async with host.working():
        await guide.publish("draft", {"index.html": "stale"})
        await guide.publish("main", {"index.html": "new"})
    age(host, "draft", 31)
    async with host.working(on_store(FailingStore(host.config.objects, "__dashboard", 1))):
        job = await run(host, "lifecycle_eval")
        assert job["status"] == "completed_with_errors" and "v/draft/" in await guide.page("v/")
        again = await run(host, "lifecycle_eval")
        assert again["status"] == "completed" and "v/draft/" not in await guide.page("v/")
    assert sql(host, "select count(*) from docverse.project where dashboard_due is not null") == [(0,)]


@pytest.mark.req("D120", "D121")
async def test_periodic_jobs_are_tried_twice_and_then_wait_for_the_next_run(host: Host) -> None:
    app = docverse_app(host.config)
    assert {name for name, kind in app.kinds.items() if kind.policy.retry.max_attempts == 2} == set(PERIODIC)

    class Broken:
        async def orgs(self) -> list[Org]:
            raise OSError("the database is away")

        projects = orgs

    broken = lambda _: Broken()  # noqa: E731
    async with host.working(replaced(lifecycle=broken, ref_audit=broken)):
        for kind in PERIODIC:
            job = await run(host, kind)
            assert (job["status"], await attempts(host, job)) == ("failed", 2), kind
    async with host.working():
        for kind in PERIODIC:
            assert (await run(host, kind))["status"] == "completed", kind


@pytest.mark.req("D105")
async def test_the_app_schedules_nothing_itself(host: Host) -> None:
    async with host.working():
        await run(host, "lifecycle_eval")
        assert await (await host.jobs.operator()).schedules.all() == []


@pytest.mark.req("D114")
async def test_a_periodic_job_is_one_job_over_all_organizations(host: Host) -> None:
    for org in ("rubin", "other"):
        await host.add_org(org)
    async with host.working():
        for kind in PERIODIC:
            job = await run(host, kind)
            assert (job["status"], job["org_id"], job["project_id"]) == ("completed", None, None)
            result = await result_of(host, job)
            if kind != "git_ref_audit":  # that goes by project
                assert set(result.get("objects", result)) == {"rubin", "other"}, kind
    assert sql(host, "select count(*) from docverse.queue_job") == [(len(PERIODIC),)]


@pytest.mark.parametrize(
    ("name", "given", "reported"),
    [
        ("drafts", {"older_than_days": 3}, "must be one of: draft_inactivity"),
        ("draft_inactivity", {}, "needs older_than_days"),
        ("draft_inactivity", {"older_than_days": 3, "action": "flag"}, "only ref_deleted can flag"),
        ("draft_inactivity", {"older_than_days": 0}, "greater than 0"),
        ("draft_inactivity", {"older_than_days": 1e9}, "less than or equal"),
        ("ref_deleted", {"older_than_days": 3}, "does not wait"),
        ("ref_deleted", {"action": "burn"}, "flag"),
    ],
)
async def test_a_rule_that_cannot_hold_is_refused(host: Host, name: str, given: Json, reported: str) -> None:
    await host.add_org()
    refused = await host.call("PUT", f"/orgs/rubin/rules/{name}", 422, json=given)
    assert reported in json.dumps(refused)
    assert await host.call("GET", "/orgs/rubin/rules") == []


async def test_only_an_organizations_admins_change_its_upkeep(host: Host) -> None:
    await host.add_org()
    await host.add_org("other")
    guide = await host.add_project()
    tokens = {
        (org, role): (await host.call("POST", f"/orgs/{org}/tokens", 201, json={"role": role}))["token"]
        for org, role in (("other", "admin"), ("rubin", "uploader"))
    }
    asks = [
        ("/orgs/rubin/rules/ref_deleted", {}),
        (f"{guide.path}/rules/ref_deleted", {}),
        ("/orgs/rubin/retention", {"days": 0}),
        ("/orgs/rubin/credentials/github", {"secret": SECRET}),
        ("/orgs/rubin/template", {"repository": "rubin/theme"}),
        (f"{guide.path}/template", {"repository": "rubin/theme"}),
        (f"{guide.path}/editions/__main/lifecycle", {"exempt": True}),
    ]
    for path, body in asks:
        await host.call("PUT", path, 404, json=body, token=tokens["other", "admin"])
        await host.call("PUT", path, 403, json=body, token=tokens["rubin", "uploader"])
    await host.call("GET", "/orgs/rubin/rules", 404, token=tokens["other", "admin"])
    assert sql(host, "select count(*) from docverse.lifecycle_rule") == [(0,)]
