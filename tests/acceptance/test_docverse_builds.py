"""The documentation host: builds are uploaded, processed phase by phase, and served at the edge."""

import asyncio
import hashlib
from typing import Any

import pytest
from docverse import SUPERUSER, Host, HostedProject, Json, until
from docverse_parts import Held, PlainJob, Window, watched

from examples.docverse.database import Database
from examples.docverse.services.tracking import slug_of, wanted_editions

pytest_plugins = ["docverse_fixtures"]

HELLO = {"index.html": "<h1>Hello</h1>", "more/a.html": "more", "style.css": "h1 {}"}


@pytest.mark.req("D5", "D6", "D78", "D79", "D88", "D89", "D90")
@pytest.mark.parametrize("mode", ["pointer", "copy"])
async def test_a_build_is_processed_when_it_is_signalled_and_served_by_its_edition(host: Host, mode: str) -> None:
    await host.add_org(mode=mode)
    project = await host.add_project()
    async with host.working():
        build = await project.upload("main", HELLO)
        assert (await project.build(build))["status"] == "pending" and not list(await host.jobs.jobs())
        job = await host.ended(await project.signal(build))
        assert (job["kind"], job["status"], job["errors"]) == ("build_processing", "completed", None)
        assert (await project.build(build))["status"] == "completed"
        assert await project.page() == await project.page("v/__main/") == "<h1>Hello</h1>"
        assert await project.page("v/__main/more/a.html") == "more"
        assert build in await project.page("v/") and "__main" in await project.page("__switcher.json")
        assert "This page does not exist" in await project.page("v/__main/none.html", 404)
        assert await project.signal(build) == (await project.build(build))["queue_job"]
        assert len(list(await host.jobs.jobs())) == 1, "a second signal makes no second job"
    rows = await host.services.database.all("build_objects", await _id(host, project, build))
    assert [(r["key"], r["content_hash"], r["content_type"], r["size"]) for r in rows] == [
        (name, hashlib.sha256(HELLO[name].encode()).hexdigest(), kind, len(HELLO[name]))
        for name, kind in [("index.html", "text/html"), ("more/a.html", "text/html"), ("style.css", "text/css")]
    ]


@pytest.mark.req("D5", "D78")
async def test_a_signal_that_is_lost_halfway_leaves_neither_a_job_nor_a_changed_build(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    await host.add_org()
    project = await host.add_project()
    build = await project.upload("main", HELLO)
    run = Database.run

    async def lose(self: Database, name: str, *args: Any) -> None:
        if name == "set_queue_job":  # the job is enqueued, and nothing is committed
            raise ConnectionError("the connection is gone")
        await run(self, name, *args)

    with monkeypatch.context() as lost:
        lost.setattr(Database, "run", lose)
        signal = {"authorization": f"Bearer {SUPERUSER}"}
        answer = await host.http.patch(f"{project.path}/builds/{build}", json={"status": "uploaded"}, headers=signal)
        assert answer.status_code == 500
    assert (await project.build(build))["status"] == "pending" and not list(await host.jobs.jobs())
    async with host.working():
        assert (await host.ended(await project.signal(build)))["status"] == "completed"


@pytest.mark.req("D84", "D85")
@pytest.mark.parametrize("mode", ["pointer", "copy"])
async def test_the_next_build_replaces_pages_and_removes_those_that_are_gone(host: Host, mode: str) -> None:
    await host.add_org(mode=mode)
    project = await host.add_project()
    async with host.working():
        await project.publish("main", HELLO)
        assert await project.page() == "<h1>Hello</h1>"  # cached now, so a purge is needed
        await project.publish("main", {"index.html": "<h1>Again</h1>", "style.css": "h1 {}", "more": "a file now"})
        assert await project.page() == "<h1>Again</h1>" and await project.page("v/__main/more") == "a file now"
        await project.page("v/__main/more/a.html", 404)
        await project.publish("main", HELLO)
        assert await project.page("v/__main/more/a.html") == "more", "a folder again"
    assert [job.attempt for job in await host.jobs.jobs()] == [1, 1, 1]
    pointer = host.config.folder / "keys/rubin/guide/__main.json"
    copies = host.config.objects / "orgs/rubin/projects/guide/editions/__main"
    assert (pointer.exists(), copies.exists()) == ((True, False) if mode == "pointer" else (False, True))


@pytest.mark.req("D85")
async def test_a_copy_is_a_diff_with_the_pages_after_what_they_need(host: Host) -> None:
    log: list[str] = []
    await host.add_org(mode="copy")
    project = await host.add_project()
    pages = {"index.html": "1", "a.html": "1", "z.css": "1", "same.png": "1", "old.html": "1"}
    async with host.working(watched(_Copies(log))):
        await project.publish("main", pages)
        assert log == ["copy same.png", "copy z.css", "copy a.html", "copy old.html", "copy index.html", "purge"]
        log.clear()
        await project.publish("main", {"index.html": "2", "a.html": "2", "z.css": "2", "same.png": "1"})
        assert log == ["copy z.css", "copy a.html", "copy index.html", "delete old.html", "purge"]


@pytest.mark.req("D7", "D39", "D83", "D46", "D47", "D15")
async def test_phases_follow_each_other_and_editions_are_updated_at_the_same_time(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    held, other = Held("point", "v2.x.json"), Held("point", "v2.1.x.json")

    class Both(Held):
        async def before(self, operation: str, key: str) -> None:
            await asyncio.gather(held.before(operation, key), other.before(operation, key))

    async with host.working(watched(Both("", ""))):
        job_id = await project.signal(await project.upload("v2.1.0"))
        await asyncio.gather(held.reached.wait(), other.reached.wait())  # neither waits for the other

        async def v210_is_done() -> Json | None:
            job = await host.job(job_id)
            return job if job["progress"] and job["progress"].get("editions_completed") else None

        job = await until(v210_is_done)
        assert (job["status"], job["phase"]) == ("in_progress", "editions")
        assert sorted(job["progress"].pop("editions_in_progress")) == ["v2.1.x", "v2.x"]
        assert job["progress"] == {
            "editions_total": 3, "editions_completed": ["v2.1.0"], "editions_skipped": [], "editions_failed": [],
        }  # fmt: skip
        held.released.set()
        other.released.set()
        job = await host.ended(job_id)
    snapshot = await host.jobs.snapshot(job_id)
    assert snapshot is not None
    assert [phase.name for phase in snapshot.phases] == ["inventory", "tracking", "editions", "dashboard"]
    began = [phase.started_at for phase in snapshot.phases]
    ended = [phase.ended_at for phase in snapshot.phases]
    assert all(end <= begin for end, begin in zip(ended, began[1:], strict=False) if end and begin)
    assert sorted(job["progress"]["editions_completed"]) == ["v2.1.0", "v2.1.x", "v2.x"]
    assert job["progress"]["editions_in_progress"] == []


@pytest.mark.req("D47", "D19")
async def test_the_inventory_says_how_many_objects_it_catalogs(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    build = await project.upload("main", {f"{n}.html": "page" for n in range(1_247)})
    async with host.working(), host.services.database.transaction() as other:
        await other.source.execute("lock table docverse.build_object in exclusive mode")  # so that the inventory waits
        job_id = await project.signal(build)

        async def message() -> Json | None:
            job = await host.job(job_id)
            return job if job["progress"] else None

        job = await until(message)
        assert (job["phase"], job["progress"]) == ("inventory", {"message": "Cataloging 1,247 objects"})
        await other.source.execute("rollback")
        assert (await host.ended(job_id))["status"] == "completed"


@pytest.mark.req("D40", "D87", "D89", "D90", "D122", "D20")
@pytest.mark.parametrize("mode", ["pointer", "copy"])
async def test_one_edition_that_fails_stops_no_other_and_is_repaired_later(host: Host, mode: str) -> None:
    await host.add_org(mode=mode)
    project = await host.add_project()
    repair = _break(host, mode, "v2.x")
    async with host.working():
        build, job = await project.publish("v2.1.0")
        assert job["status"] == (await project.build(build))["status"] == "completed_with_errors"
        assert sorted(job["progress"]["editions_completed"]) == ["v2.1.0", "v2.1.x"]
        (failure,) = job["progress"]["editions_failed"]
        assert failure["slug"] == "v2.x" and failure["error"]
        assert [error["item"] for error in job["errors"]] == ["v2.x"]
        assert "v2.1.0" in await project.page("v/v2.1.x/")
        await project.page("v/v2.x/", 404)
        record = await host.jobs.find(job["public_id"])
        assert record is not None and record.attempt == 1, "it is not retried by itself"
        repair()
        done = await host.ended(await project.assign("v2.x", build))
        assert done["status"] == "completed" and "v2.1.0" in await project.page("v/v2.x/")


class Raising(Window):
    """Fails whatever writes to a key with an ending."""

    def __init__(self, ending: str, message: str) -> None:
        self._ending, self._message = ending, message

    async def before(self, operation: str, key: str) -> None:
        if key.endswith(self._ending):
            raise OSError(self._message)


@pytest.mark.req("D20", "D40", "D42", "D87")
@pytest.mark.parametrize(
    "message",
    ["no bucket\0here", "cannot reach https://ada:hunter22@store", "x" * 2_000_000],
    ids=["no text", "a secret", "megabytes"],
)
async def test_whatever_the_error_of_an_edition_says_it_stops_no_other_and_shows_no_secret(
    host: Host, message: str
) -> None:
    await host.add_org()
    project = await host.add_project()
    async with host.working(watched(Raising("guide/v2.x.json", message))):
        _, job = await project.publish("v2.1.0")
    assert job["status"] == "completed_with_errors", job["errors"]
    (failure,), (error,) = job["progress"]["editions_failed"], job["errors"]
    assert failure == {"slug": "v2.x", "error": f"{error['type']}: {error['message']}"}
    assert "hunter22" not in str(job) and len(failure["error"]) < 1_000


@pytest.mark.req("D123", "D90", "D115", "D116", "D118", "D119")
@pytest.mark.parametrize("mode", ["pointer", "copy"])  # the edge fails, or the object store
async def test_a_build_all_of_whose_editions_fail_has_failed_after_three_attempts(host: Host, mode: str) -> None:
    await host.add_org(mode=mode)
    project = await host.add_project()
    _break(host, mode, "__main")
    async with host.working():
        build, job = await project.publish("main")
    assert (job["status"], (await project.build(build))["status"]) == ("failed", "failed")
    record = await host.jobs.find(job["public_id"])
    assert record is not None and (record.attempt, record.max_attempts) == (3, 3)
    assert job["progress"]["editions_failed"][0]["slug"] == "__main"
    operator = await host.jobs.operator("tests")
    waits = [attempt.error for attempt in (await operator.jobs.attempts(record.id)) if attempt.error]
    assert len(waits) == 2


@pytest.mark.req("D85", "D91")
async def test_a_build_without_an_inventory_is_not_assigned_and_empties_no_edition(host: Host) -> None:
    await host.add_org(mode="copy")
    project = await host.add_project()
    async with host.working():
        await project.publish("main", HELLO)
    unsignalled, cancelled = await project.upload("main"), await project.upload("main")
    await host.jobs.cancel(await project.signal(cancelled))
    for build in (unsignalled, cancelled):
        body = {"build": build}
        refused = await host.call("PATCH", f"{project.path}/editions/__main", 409, json=body)
        assert "has no inventory" in refused["detail"]
    assert await project.page() == "<h1>Hello</h1>"


@pytest.mark.req("D79", "D85")
async def test_a_build_whose_objects_are_gone_has_failed_and_empties_no_edition(host: Host) -> None:
    await host.add_org(mode="copy")
    project = await host.add_project()
    async with host.working():
        await project.publish("main", HELLO)
        lost = await project.upload("main")
        await host.services.objects.delete_prefix(f"orgs/rubin/projects/guide/builds/{lost}")
        job = await host.ended(await project.signal(lost))
        assert job["status"] == "failed" and "no object of build" in str(job["errors"])
        assert await project.page() == "<h1>Hello</h1>"


@pytest.mark.req("D117", "D86")
async def test_a_second_run_changes_nothing(host: Host) -> None:
    await host.add_org(mode="copy")
    project = await host.add_project()
    log: list[str] = []
    async with host.working():
        build, _ = await project.publish("v1.0.0", HELLO)
    histories = {slug: await project.history(slug) for slug in ("v1.0.0", "v1.x", "v1.0.x")}
    assert [len(history) for history in histories.values()] == [1, 1, 1]
    assert {history[0]["build"] for history in histories.values()} == {build}
    before = await _objects(host, project, build)
    async with host.working(watched(_Copies(log))):
        again = await host.jobs.enqueue("build_processing", {"build_id": await _id(host, project, build)})
        job = await host.ended(str(again.id))
    assert job["status"] == "completed" and sorted(job["progress"]["editions_completed"]) == [
        "v1.0.0",
        "v1.0.x",
        "v1.x",
    ]
    assert log == [], "no page was copied, no edition purged"
    assert await _objects(host, project, build) == before
    assert {slug: await project.history(slug) for slug in histories} == histories


@pytest.mark.req("D79", "D117")
async def test_an_inventory_that_is_made_again_has_what_the_object_store_has_now(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    build = await project.upload("main", HELLO)
    owner = await host.services.hosting.project("rubin", "guide")
    row = await host.services.hosting.build(owner, build)
    await host.services.build_processing.inventory(row.id, PlainJob())
    await host.services.objects.delete([f"{row.object_prefix}/style.css"])
    await host.services.objects.put(f"{row.object_prefix}/index.html", b"<h1>Changed</h1>")

    await host.services.build_processing.inventory(row.id, PlainJob())

    objects = {one["key"]: one["size"] for one in await host.services.database.all("build_objects", row.id)}
    assert objects == {"index.html": len("<h1>Changed</h1>"), "more/a.html": len("more")}


@pytest.mark.req("D80", "D81", "D82")
async def test_refs_are_tracked_by_mode_and_rewrite_rules(host: Host) -> None:
    await host.add_org(
        rules=[{"match": "tickets/*", "slug": "*"}, {"match": "dependabot/*", "ignore": True}],
    )
    project = await host.add_project(default_ref="trunk")
    for slug, ref in (("Preview", "tickets/DM-1"), ("Latest", "trunk"), ("Asked", "dependabot/y")):
        await host.call("POST", f"{project.path}/editions", 201, json={"slug": slug, "title": slug, "git_ref": ref})
    tracked: dict[str, list[str]] = {}
    async with host.working():
        drafts = ("trunk", "tickets/DM-1", "dependabot/x", "dependabot/y", "a/b", "a-b")
        for ref in (*drafts, "v2.1.0", "v2.1.1", "v3.0.0", "v2.0.9"):
            _, job = await project.publish(ref)
            tracked[ref] = sorted(job["progress"]["editions_completed"])
        assert (await project.edition("v2.x"))["git_ref"] == "v2.1.1", "an old release's fix does not lead the stream"
    (clash,) = tracked.pop("a-b")
    assert clash.startswith("a-b-"), "another ref has that slug"
    assert tracked == {
        "trunk": ["Latest", "__main"],
        "tickets/DM-1": ["Preview"],
        "dependabot/x": [],
        "dependabot/y": ["Asked"],
        "a/b": ["a-b"],
        "v2.1.0": ["v2.1.0", "v2.1.x", "v2.x"],
        "v2.1.1": ["v2.1.1", "v2.1.x", "v2.x"],
        "v3.0.0": ["v3.0.0", "v3.0.x", "v3.x"],
        "v2.0.9": ["v2.0.9", "v2.0.x"],
    }


@pytest.mark.req("D80", "D81")
async def test_a_release_that_is_shown_leads_its_streams_also_if_its_job_has_failed_afterwards(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    async with host.working(watched(Raising("__dashboard.html", "the object store is away"))):
        build, job = await project.publish("v2.1.0")
    assert (job["status"], (await project.build(build))["status"]) == ("failed", "failed")
    assert "v2.1.0" in await project.page("v/v2.x/")
    async with host.working():
        _, job = await project.publish("v2.0.9")
    assert sorted(job["progress"]["editions_completed"]) == ["v2.0.9", "v2.0.x"]
    assert "v2.1.0" in await project.page("v/v2.x/")


@pytest.mark.req("D81", "D82")
async def test_two_refs_that_want_the_same_slug_at_the_same_moment_get_an_edition_each(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    async with host.working():
        async with host.services.database.transaction() as other:
            await other.source.execute("lock table docverse.edition in share row exclusive mode")  # none is created
            jobs = [await project.signal(await project.upload(ref)) for ref in ("a/b", "a-b")]

            async def both_want_it() -> bool:
                waiting = "select from pg_locks where relation = 'docverse.edition'::regclass and not granted"
                return len(await host.services.database.source.fetch(waiting)) == 2

            await until(both_want_it)
        slugs = [(await host.ended(job))["progress"]["editions_completed"] for job in jobs]
    assert sorted(len(one) for one in slugs) == [1, 1] and slugs[0] != slugs[1], slugs


@pytest.mark.req("D80")
@pytest.mark.parametrize(
    ("git_ref", "slug"),
    [("tickets/DM-7", "DM-7"), ("u/ada/x", "ada-x"), ("skip", None), ("feature/a b", "feature-a-b"), ("...", "ref")],
)
def test_the_first_rule_that_fits_gives_the_slug(git_ref: str, slug: str | None) -> None:
    rules: list[dict[str, Any]] = [
        {"match": "tickets/*", "slug": "*"}, {"match": "u/*", "slug": "*"}, {"match": "skip", "ignore": True},
    ]  # fmt: skip
    assert slug_of(git_ref, rules) == slug


@pytest.mark.req("D82", "D117")
async def test_tracking_gives_the_same_editions_whenever_it_is_asked(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    owner = await host.services.hosting.project("rubin", "guide")
    first = [wanted.slug for wanted in wanted_editions("v1.2.3", owner, ["v1.2.2", "v2.0.0", "v1.2.3-rc1"])]
    assert first == ["v1.2.3", "v1.x", "v1.2.x"]
    later = [wanted.slug for wanted in wanted_editions("v1.2.3", owner, ["v1.3.0"])]
    assert later == ["v1.2.3", "v1.2.x"] and project.slug == "guide"


def _break(host: Host, mode: str, slug: str) -> Any:
    """Lets updates of an edition fail; returns what mends it."""
    if mode == "pointer":
        key = f"rubin/guide/{slug}.json"
        host.edge.refused.add(key)
        return lambda: host.edge.refused.remove(key)
    blocking = host.config.objects / f"orgs/rubin/projects/guide/editions/{slug}"
    blocking.parent.mkdir(parents=True, exist_ok=True)
    blocking.write_text("a file where a folder has to be")
    return blocking.unlink


async def _id(host: Host, project: HostedProject, build: str) -> int:
    owner = await host.services.hosting.project(project.org, project.slug)
    return (await host.services.hosting.build(owner, build)).id


async def _objects(host: Host, project: HostedProject, build: str) -> list[Any]:
    """With the transaction that wrote each row last."""
    return list(
        await host.services.database.source.fetch(
            "select o.xmin::text, o.* from docverse.build_object o where build_id = $1 order by key",
            await _id(host, project, build),
        )
    )


class _Copies(Held):
    """Notes what an edition's update does in copy mode."""

    def __init__(self, log: list[str]) -> None:
        super().__init__("", "")
        self._log = log

    async def before(self, operation: str, key: str) -> None:
        if operation in ("copy", "delete"):
            self._log.append(f"{operation} {key.rpartition('/')[2]}")
        elif operation == "purge" and "/v/" in key:
            self._log.append("purge")
