"""The documentation host: a job's record, as users, operators and SQL see it."""

import dataclasses
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from docverse import SUPERUSER, CleanDocverse, Host, hosting, until
from docverse_parts import Held, watched
from docverse_upkeep import GitHub, Repository, run, sql

from dutiful import State
from examples.docverse import public_ids
from examples.docverse.ports import QueueBackend
from examples.docverse.queue_backend import DutifulQueueBackend
from examples.docverse.queue_job import STATUS, QueueJob
from examples.docverse.upkeep import PERIODIC

pytest_plugins = ["docverse_fixtures"]

COLUMNS = [
    "id", "public_id", "backend_job_id", "kind", "status", "phase", "org_id", "project_id", "build_id", "progress",
    "errors", "date_created", "date_started", "date_completed",
]  # fmt: skip


@pytest.mark.req("D8", "D10", "D11", "D15", "D16", "D17", "D18", "D19", "D20", "D21", "D22", "D23", "D24")
async def test_the_api_and_the_sql_view_show_the_same_record_at_every_moment(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    host.edge.refused.add("rubin/guide/v1.x.json")
    build = await project.upload("v1.0.0")
    job_id = await project.signal(build)
    queued = await _both(host, job_id)
    assert queued["status"] == "queued"
    assert queued["phase"] is queued["progress"] is queued["date_started"] is None
    held = Held("point", "v1.0.x.json")
    async with host.working(watched(held)):
        await held.reached.wait()

        async def the_others_have_ended() -> bool:
            progress = (await host.job(job_id))["progress"]
            return progress is not None and progress.get("editions_in_progress") == ["v1.0.x"]

        await until(the_others_have_ended)
        running = await _both(host, job_id)
        assert (running["status"], running["phase"]) == ("in_progress", "editions")
        assert running["progress"]["editions_total"] == 3 and running["date_completed"] is None
        held.released.set()
        await host.ended(job_id)
    ended = await _both(host, job_id)
    assert ended["kind"] == "build_processing" and ended["status"] == "completed_with_errors"
    assert ended["date_created"] <= ended["date_started"] <= ended["date_completed"]
    owner = await host.services.hosting.project("rubin", "guide")
    assert (ended["org_id"], ended["project_id"]) == (owner.org.id, owner.id)
    assert ended["build_id"] == (await host.services.hosting.build(owner, build)).id
    assert [e["item"] for e in ended["errors"]] == [e["slug"] for e in ended["progress"]["editions_failed"]] == ["v1.x"]
    by_subject = await host.jobs.jobs(tenant="rubin", subject={"project_id": owner.id})
    assert [public_ids.spell_job(job.id) for job in by_subject] == [job_id]


@pytest.mark.req("D11", "D125")
async def test_an_id_that_is_mistyped_is_422_and_one_that_is_unknown_404(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    job_id = await project.signal(await project.upload("main"))
    spelled = (await host.job(job_id))["public_id"]
    assert spelled.count("-") == 3 and (await host.job(spelled))["public_id"] == spelled
    wrong = spelled[:-1] + ("1" if spelled[-1] != "1" else "2")
    refused = await host.call("GET", f"/queue/jobs/{wrong}", 422)
    assert "checksum" in refused["detail"]
    unknown = public_ids.spell_job(host.jobs.new_id())
    assert "expired" in (await host.call("GET", f"/queue/jobs/{unknown}", 404))["detail"]
    async with host.working():
        await host.ended(job_id)
    await (await host.jobs.operator("tests")).jobs.delete_finished(timedelta(0))
    await host.call("GET", f"/queue/jobs/{spelled}", 404)


@pytest.mark.req("D11")
async def test_every_answer_that_names_a_job_spells_its_public_id(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    Repository(host, "rubin/theme").commit(dashboard_html="x")
    await GitHub.enroll(host)
    async with host.working():
        build = await project.upload("main")
        named = [await project.signal(build), (await project.build(build))["queue_job"]]
        await host.ended(named[0])
        (entry,) = await project.history("__main")
        named += [entry["queue_job"], await project.assign("__main", build)]
        for path in ("/orgs/rubin/template", f"{project.path}/template"):
            named.append((await host.call("PUT", path, 202, json={"repository": "rubin/theme"}))["queue_job"])
        named.append(await GitHub(host).push("rubin/theme"))
        assert [(await host.ended(job))["public_id"] for job in named] == named


@pytest.mark.req("D19", "D46")
async def test_items_of_progress_are_named_for_what_they_are(host: Host) -> None:
    await host.add_org()
    await host.add_org("other")
    Repository(host, "rubin/theme").commit(dashboard_html="x")
    for org in ("rubin", "other"):
        await host.add_project(org, source_repository="rubin/theme")
    sql(host, "update docverse.organization_credentials set encrypted_credential = 'unreadable' where org_id ="
              " (select id from docverse.organization where slug = 'other')")  # fmt: skip
    shown: dict[str, dict[str, Any]] = {}
    async with host.working():
        template = await host.call("PUT", "/orgs/rubin/template", 202, json={"repository": "rubin/theme"})
        shown["dashboard_sync"] = (await host.ended(template["queue_job"]))["progress"]
        for kind in PERIODIC:
            job = await run(host, kind)
            shown[kind] = (await _both(host, job["public_id"]))["progress"]
    failed = shown["credential_reencrypt"]["orgs_failed"]
    shown["credential_reencrypt"]["orgs_failed"] = []
    assert [(entry["slug"], "no configured key" in entry["error"]) for entry in failed] == [("other", True)]
    both = ["other", "rubin"]
    assert shown == {
        "dashboard_sync": _items("projects", total=1, completed=["guide"]),
        "git_ref_audit": _items("projects", total=2, completed=["other/guide", "rubin/guide"]),
        "lifecycle_eval": _items("orgs", total=2, completed=both),
        "purgatory_cleanup": _items("orgs", total=2, completed=both),
        "credential_reencrypt": _items("orgs", total=2, completed=["rubin"]),
    }


def _items(noun: str, total: int, completed: list[str]) -> dict[str, Any]:
    lists = {"total": total, "completed": completed, "skipped": [], "failed": [], "in_progress": []}
    return {f"{noun}_{name}": value for name, value in lists.items()}


@pytest.mark.req("D20")
async def test_errors_say_what_failed_and_show_nothing_of_the_hosts_code(host: Host) -> None:
    async with host.working():
        job = await host.jobs.enqueue("dashboard_sync", {"template_ids": [0]})
        await host.ended(job.public_id)
    record = await job.record()
    assert record.errors is not None and "Traceback" in record.errors[0]["traceback"]
    (shown,) = (await _both(host, job.public_id))["errors"]
    assert shown == {name: value for name, value in record.errors[0].items() if name != "traceback"}
    assert "template 0 is not tracked any more" in shown["message"]


@pytest.mark.req("D14")
def test_every_state_has_a_status_and_no_status_is_left_out() -> None:
    assert set(STATUS) == set(State)
    assert set(STATUS.values()) == {
        "queued", "in_progress", "completed", "completed_with_errors", "failed", "cancelled",
    }  # fmt: skip


@pytest.mark.req("D10", "D12", "D16", "D17", "D18", "D19", "D20", "D21", "D22", "D23")
def test_the_record_has_the_columns_of_the_design_and_says_which_may_be_null() -> None:
    assert [field.name for field in dataclasses.fields(QueueJob)] == COLUMNS
    hints = get_type_hints(QueueJob)
    nullable = [name for name in COLUMNS if type(None) in getattr(hints[name], "__args__", ())]
    assert nullable == [
        "backend_job_id", "phase", "org_id", "project_id", "build_id", "progress", "errors", "date_started",
        "date_completed",
    ]  # fmt: skip


@pytest.mark.req("D14", "D90")
async def test_a_cancelled_job_is_cancelled_and_its_build_has_failed(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    build = await project.upload("main")
    job_id = await project.signal(build)
    assert await host.jobs.cancel(job_id)
    assert (await host.job(job_id))["status"] == "cancelled"
    assert (await project.build(build))["status"] == "failed"


@pytest.mark.req("D16")
async def test_members_see_the_jobs_of_their_own_organization_only(host: Host) -> None:
    tokens = {}
    for org in ("rubin", "lsst"):
        await host.add_org(org)
        tokens[org] = (await host.call("POST", f"/orgs/{org}/tokens", 201, json={"role": "uploader"}))["token"]
    project = await host.add_project()
    job_id = await project.signal(await project.upload("main"))
    for token in (tokens["rubin"], SUPERUSER):
        await host.call("GET", f"/queue/jobs/{job_id}", token=token)
    await host.call("GET", f"/queue/jobs/{job_id}", 404, token=tokens["lsst"])
    await host.call("GET", f"/queue/jobs/{job_id}", 401, token="unknown")


@pytest.mark.req("D1", "D3", "D25", "D27", "D28", "D29")
async def test_the_backend_stores_delivers_and_answers_what_it_knows(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    build = await project.upload("main")
    backend: QueueBackend = DutifulQueueBackend(host.jobs)
    owner = await host.services.hosting.project("rubin", "guide")
    build_id = (await host.services.hosting.build(owner, build)).id
    payload = {"org": "rubin", "org_id": owner.org.id, "project_id": owner.id, "build_id": build_id}
    job_id = await backend.enqueue("build_processing", payload)
    assert job_id is not None
    assert await backend.get_job_result(job_id) is None
    assert await backend.get_job_metadata(job_id) == {"kind": "build_processing", "state": "ready", "queue": "default"}
    async with host.working():
        await host.ended(job_id)
    assert await backend.get_job_metadata(str(host.jobs.new_id())) is None
    assert await backend.get_job_result("not an id") is None


@pytest.mark.req("D8", "D9", "D12", "D24")
async def test_builds_are_taken_and_their_jobs_shown_while_redis_is_down(
    clean_docverse: CleanDocverse, tmp_path: Path
) -> None:
    async with hosting(clean_docverse.reset(), tmp_path, redis_url="redis://127.0.0.1:1/0") as host:
        await host.add_org()
        project = await host.add_project()
        build = await project.upload("main")
        job_id = await project.signal(build)
        assert (await project.build(build))["status"] == "uploaded"
        job = await _both(host, job_id)
        assert (job["status"], job["backend_job_id"]) == ("queued", None)
        async with host.working():  # a worker of the store needs no broker
            assert (await host.ended(job_id))["status"] == "completed"


async def _both(host: Host, job_id: str) -> dict[str, Any]:
    """The record by the API and by SQL, which are equal."""
    row = await host.services.database.source.fetchrow("select * from docverse.queue_job where public_id = $1", job_id)
    assert list(row.keys()) == COLUMNS
    shown = await host.job(job_id)
    for name in ("date_created", "date_started", "date_completed"):
        shown[name] = shown[name] and datetime.fromisoformat(shown[name])
    stored = {name: value for name, value in row.items() if name != "id"}
    for record in (shown, stored):
        for name, value in (record["progress"] or {}).items():
            if isinstance(value, list):
                record["progress"][name] = sorted(value, key=str)
    assert stored == shown
    return shown


async def test_errors_of_a_job_show_nothing_of_the_hosts_folders(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    site = host.config.objects / "orgs/rubin/projects/guide/site"
    site.parent.mkdir(parents=True)
    site.write_text("a file where a folder should be")
    async with host.working():
        _, job = await project.publish("main")
        body = {"repository": "rubin/none"}
        sync = await host.ended((await host.call("PUT", "/orgs/rubin/template", 202, json=body))["queue_job"])
    assert "in the object store: 'orgs/rubin/projects/guide/site" in str(job["errors"])
    assert "git for-each-ref in rubin/none" in str(sync["errors"])
    for ended in (job, sync):
        assert ended["status"] == "failed" or ended["progress"]["editions_failed"]
        assert str(host.config.folder) not in str(ended)
