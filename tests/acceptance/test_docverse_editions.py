"""The documentation host: two jobs on one edition or project, the stale-build guard, and rollbacks."""

import ast
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from docverse import Host, HostedProject, Json, until
from docverse_parts import Held, Log, PlainJob, Window, watched

import examples.docverse.services
from examples.docverse.database import Database
from examples.docverse.factory import Docverse
from examples.docverse.records import Build, Edition, Project
from examples.docverse.services.editions import EditionService, LockLost
from examples.docverse.storage.edge import Value

pytest_plugins = ["docverse_fixtures"]

SERVICES = Path(examples.docverse.services.__file__ or "").parent


@pytest.mark.req("D1", "D4")
def test_services_import_neither_dutiful_nor_a_broker() -> None:
    imported = {
        name.partition(".")[0]
        for file in (*SERVICES.glob("*.py"), SERVICES.parent / "ports.py")
        for node in ast.walk(ast.parse(file.read_text()))
        for name in _names(node)
    }
    assert imported.isdisjoint({"dutiful", "arq", "redis", "asyncpg"}), imported
    assert "asyncio" in imported


@pytest.mark.req("D4", "D39", "D60", "D61", "D53", "D54", "D64", "D65", "D70", "D84")
async def test_a_build_is_processed_by_plain_functions_that_take_their_locks_themselves(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    await host.add_org()
    project = await host.add_project()
    build = await project.upload("main")
    log: list[str] = []
    monkeypatch.setattr(Database, "run", _noted(Database.run, log))
    monkeypatch.setattr(Database, "value", _noted(Database.value, log))
    job = PlainJob(log)
    async with watched(Log(log))(host.config, lambda connection: None) as services:
        progress = await services.build_processing.process(await _id(host, project, build), job)
    assert progress == {
        "editions_total": 1, "editions_completed": ["__main"], "editions_skipped": [], "editions_failed": [],
        "editions_in_progress": [],
    }  # fmt: skip
    assert log == [
        "Cataloging 2 objects",
        "Finding the editions of main",
        "editions __main",
        "lock edition",  # held for the whole update
        "point rubin/guide/__main.json",
        "purge rubin/guide/v/__main",
        "log_history",
        "published",
        "put __editions/__main.json",
        "purge rubin/guide/__editions/__main.json",
        "unlock edition",
        "completed __main",
        "Rendering the dashboard",
        "lock project",
        "put __dashboard.html",
        "put __404.html",
        "put __switcher.json",
        "purge rubin/guide/__dashboard.html",
        "purge rubin/guide/__switcher.json",
        "unlock project",  # only then the locks of editions
        "lock edition",
        "put __editions/__main.json",
        "purge rubin/guide/__editions/__main.json",
        "unlock edition",
    ]


@pytest.mark.req("D58", "D59", "D60", "D63")
async def test_only_a_newer_current_build_lets_an_update_be_skipped_and_before_any_write(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    older, newer = await project.upload("main"), await project.upload("main")
    log: list[str] = []
    async with watched(Log(log))(host.config, lambda connection: None) as services:

        async def update(public_id: str, **options: Any) -> bool:
            edition, build, owner = await _rows(services, project, public_id)
            log.clear()
            return await _editions(services).update(edition, build, owner, PlainJob(), **options)

        assert await update(older) is False, "an edition without a build takes any"
        assert await update(newer) is False
        assert await update(newer) is False, "the same build is not outdated"
        assert await update(older) is True
        assert log == [], "a skip comes before any write"
        await services.database.source.execute(
            "update docverse.build set date_created = (select max(date_created) from docverse.build)"
        )
        assert await update(older) is False, "one of the same moment is not outdated"
        assert [entry["build"] for entry in await project.history("__main")] == [older, newer, older]


@pytest.mark.req("D48", "D49", "D62", "D63", "D14", "D21", "D22", "D23")
async def test_of_two_racing_builds_the_newer_one_stays_and_the_older_one_says_why_it_was_skipped(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    older, newer = await project.upload("main"), await project.upload("main")
    held = Held("point", "__main.json")
    async with host.working(watched(held)):
        first = await project.signal(newer)
        await held.reached.wait()  # the newer one has the lock
        second = await project.signal(older)
        await _waits_for_lock(host, second)
        held.released.set()
        done, skipped = await host.ended(first), await host.ended(second)
    assert (done["status"], skipped["status"]) == ("completed", "completed")
    assert done["progress"]["editions_completed"] == ["__main"]
    assert skipped["progress"]["editions_skipped"] == [{"slug": "__main", "reason": f"superseded by build {newer}"}]
    assert skipped["progress"]["editions_completed"] == []
    assert (await project.edition("__main"))["build"] == newer
    assert [entry["build"] for entry in await project.history("__main")] == [newer]


@pytest.mark.req("D49", "D56", "D58", "D63")
async def test_a_newer_build_waits_for_an_older_one_and_then_replaces_it(host: Host) -> None:
    await host.add_org(mode="copy")
    project = await host.add_project()
    older, newer = await project.upload("main", {"index.html": "older"}), await project.upload("main")
    held = Held("copy", "index.html")
    async with host.working(watched(held)):
        first = await project.signal(older)
        await held.reached.wait()
        second = await project.signal(newer)
        await _waits_for_lock(host, second)
        held.released.set()
        await host.ended(first)
        assert (await host.ended(second))["progress"]["editions_completed"] == ["__main"]
        assert "main" in await project.page()
    assert [entry["build"] for entry in await project.history("__main")] == [newer, older]
    record = await host.jobs.find(second)
    assert record is not None and record.attempt == 1, "what the edition shows is read with the lock held"


@pytest.mark.req("D91", "D92", "D93", "D17", "D18")
@pytest.mark.parametrize("mode", ["pointer", "copy"])
async def test_an_admin_rolls_an_edition_back_in_one_job(host: Host, mode: str) -> None:
    await host.add_org(mode=mode)
    project = await host.add_project()
    async with host.working():
        old, _ = await project.publish("main", {"index.html": "old"})
        new, _ = await project.publish("main", {"index.html": "new"})
        assert await project.page() == "new"
        before = len(list(await host.jobs.jobs()))
        job = await host.ended(await project.assign("__main", old))
        assert len(list(await host.jobs.jobs())) == before + 1
        assert (job["kind"], job["status"], job["phase"]) == ("edition_update", "completed", "dashboard")
        assert job["project_id"] is not None and job["build_id"] is None
        assert job["progress"]["editions_completed"] == ["__main"], "what became of the edition stays to be seen"
        assert await project.page() == "old" and old in await project.page("v/")
        assert [(e["build"], e["reason"]) for e in await project.history("__main")] == [
            (old, "assigned"), (new, "tracked"), (old, "tracked"),
        ]  # fmt: skip
        await project.publish("main", {"index.html": "newest"})
        assert await project.page() == "newest", "tracking goes on"


@pytest.mark.req("D63", "D93", "D117")
async def test_a_second_attempt_of_a_rollback_does_not_undo_a_build_that_came_meanwhile(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    async with host.working():
        old, _ = await project.publish("main", {"index.html": "old"})
        await project.publish("main", {"index.html": "new"})
    job = PlainJob()
    edition, build, _ = await _rows(host.services, project, old)
    await host.services.edition_update.editions(edition.id, build.id, job)
    assert await project.page() == "old"
    async with host.working():
        newest, _ = await project.publish("main", {"index.html": "newest"})
    history = await project.history("__main")

    await host.services.edition_update.editions(edition.id, build.id, job)  # its dashboard was not rendered

    assert await project.page() == "newest" and (await project.edition("__main"))["build"] == newest
    assert await project.history("__main") == history


@pytest.mark.req("D49", "D93")
async def test_of_two_assignments_the_later_one_stays_in_whatever_order_they_are_done(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    async with host.working():
        one, _ = await project.publish("main", {"index.html": "one"})
        other, _ = await project.publish("main", {"index.html": "other"})
        await project.publish("main", {"index.html": "newest"})
    edition, first, _ = await _rows(host.services, project, other)
    _, second, _ = await _rows(host.services, project, one)
    earlier, later = PlainJob(), PlainJob()
    earlier.id, later.id = host.jobs.new_id(), host.jobs.new_id()
    await host.services.edition_update.editions(edition.id, second.id, later)

    progress = await host.services.edition_update.editions(edition.id, first.id, earlier)  # it had to be tried again

    assert await project.page() == "one" and (await project.edition("__main"))["build"] == one
    skipped = {"slug": "__main", "reason": f"superseded by build {one}"}
    assert (progress["editions_completed"], progress["editions_skipped"]) == ([], [skipped])
    assert f"skipped __main: superseded by build {one}" in earlier.log


@pytest.mark.req("D49", "D93", "D70")
async def test_a_rollback_waits_for_the_build_that_is_being_published(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    async with host.working():
        old, _ = await project.publish("main", {"index.html": "old"})
    held = Held("purge", "v/__main")  # between the key and the history
    async with host.working(watched(held)):
        new = await project.upload("main", {"index.html": "new"})
        publishing = await project.signal(new)
        await held.reached.wait()
        rollback = await project.assign("__main", old)
        await _waits_for_lock(host, rollback)
        held.released.set()
        assert (await host.ended(publishing))["progress"]["editions_completed"] == ["__main"]
        assert (await host.ended(rollback))["status"] == "completed"
        assert await project.page() == "old"
    metadata = json.loads(await project.page("__editions/__main.json"))
    assert metadata["build"] == (await project.edition("__main"))["build"] == old


@pytest.mark.req("D66", "D54")
async def test_the_last_render_shows_the_newest_state_because_it_reads_inside_the_lock(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    held = Held("put", "__dashboard.html")
    async with host.working(watched(held)):
        first = await project.signal(await project.upload("main"))
        await held.reached.wait()  # it has read the editions, and has the lock
        build = await project.upload("v1.0.0")
        second = await project.signal(build)
        await _waits_for_lock(host, second, phase="dashboard")
        connection = await asyncpg.connect(host.config.database_url)
        await connection.execute("update docverse.edition set title = 'Renamed meanwhile' where slug = '__main'")
        await connection.close()
        held.released.set()
        await host.ended(first)
        await host.ended(second)
        dashboard = await project.page("v/")
    assert "Renamed meanwhile" in dashboard and dashboard.rstrip().endswith("</html>")


@pytest.mark.req("D67", "D68")
async def test_metadata_of_editions_is_written_in_parallel(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    async with host.working():
        await project.publish("v1.0.0")
    log: list[str] = []
    held = Held("put", "v1.x.json")

    class HeldLog(Log):
        async def before(self, operation: str, key: str) -> None:
            await held.before(operation, key)

    async with watched(HeldLog(log))(host.config, lambda connection: None) as services:
        owner = await services.hosting.project("rubin", "guide")
        rendering = asyncio.create_task(services.dashboards.render(owner, PlainJob()))
        await held.reached.wait()

        async def the_others_are_written() -> bool:
            return sum(line.startswith("put __editions/") for line in log) == 3

        await until(the_others_are_written)
        held.released.set()
        await rendering
    assert sum(line.startswith("put __editions/") for line in log) == 4


class OneFails(Window):
    """Fails the metadata of the main edition while that of another one is being written."""

    def __init__(self) -> None:
        self._other, self._failed = asyncio.Event(), asyncio.Event()

    async def before(self, operation: str, key: str) -> None:
        if (operation, key.rpartition("/")[2]) == ("put", "__main.json"):
            await self._other.wait()
            self._failed.set()
            raise OSError("the object store is away")
        if (operation, key.rpartition("/")[2]) == ("put", "v1.x.json"):
            self._other.set()
            await self._failed.wait()
            for _ in range(100):  # turns of the event loop, in which the error is on its way
                await asyncio.sleep(0)


@pytest.mark.req("D50", "D65")
async def test_a_render_that_fails_leaves_no_write_behind(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    async with host.working():
        await project.publish("v1.0.0")
    job = PlainJob()
    async with watched(OneFails())(host.config, lambda connection: None) as services:
        owner = await services.hosting.project("rubin", "guide")
        with pytest.raises(OSError, match="is away"):
            await services.dashboards.render(owner, job)
        assert job.held == [], "its locks would be released while it writes"


@pytest.mark.req("D63", "D50")
async def test_an_older_build_does_not_take_the_place_of_one_whose_worker_died_halfway(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    older, newer = await project.upload("main", {"index.html": "older"}), await project.upload("main")
    held = Held("purge", "v/__main")
    async with watched(held)(host.config, lambda connection: None) as services:
        edition, build, owner = await _rows(services, project, newer)
        dying = asyncio.create_task(_editions(services).update(edition, build, owner, PlainJob()))
        await held.reached.wait()
        dying.cancel()  # the edge shows the newer build, and the database does not know it
        await asyncio.gather(dying, return_exceptions=True)
        _, build, _ = await _rows(services, project, older)
        gave_way: list[str] = []
        assert await _editions(services).update(edition, build, owner, PlainJob(), on_skip=gave_way.append) is True
        assert gave_way == [newer]
    assert "older" not in await project.page()


@pytest.mark.req("D63", "D84")
async def test_a_page_that_is_looked_up_while_the_next_build_is_published_is_not_cached(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    await host.add_org()
    project = await host.add_project()
    keys = host.edge._keys
    async with host.working():
        await project.publish("main", {"index.html": "old"})
        get = keys.get

        async def overtaken(key: str) -> Value | None:
            found = await get(key)
            monkeypatch.setattr(keys, "get", get)
            await project.publish("main", {"index.html": "new"})
            return found

        monkeypatch.setattr(keys, "get", overtaken)
        assert await project.page() == "old"
        assert await project.page() == "new"


@pytest.mark.req("D50", "D63")
async def test_an_update_whose_edition_was_changed_since_it_was_read_writes_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    await host.add_org(mode="copy")  # where no edge refuses it
    project = await host.add_project()
    older, newer = await project.upload("main"), await project.upload("main")
    log: list[str] = []
    value = Database.value
    async with watched(Log(log))(host.config, lambda connection: None) as services:
        edition, build, owner = await _rows(services, project, older)
        _, other, _ = await _rows(services, project, newer)

        async def late(self: Database, name: str, *args: Any) -> Any:
            if name == "publishing":  # the lock was lost, and another job was faster
                await self.source.execute(
                    "update docverse.edition set build_id = $1, fence = fence + 1 where id = $2", other.id, edition.id
                )
            return await value(self, name, *args)

        monkeypatch.setattr(Database, "value", late)
        with pytest.raises(LockLost, match="changed by another job"):
            await _editions(services).update(edition, build, owner, PlainJob())
    assert log == []


class Aftermath(PlainJob):
    """Calls something as soon as the lock of an edition is released."""

    def __init__(self, after: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._after = after

    @asynccontextmanager
    async def _lock(self, namespace: str, key: int) -> AsyncIterator[None]:
        async with super()._lock(namespace, key):
            yield
        if namespace == "edition":
            await self._after()


@pytest.mark.req("D48", "D62")
async def test_a_skip_names_the_build_it_gave_way_to_whatever_becomes_of_the_edition_afterwards(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    older, newer = await project.upload("main"), await project.upload("main")
    async with host.working():
        await host.ended(await project.signal(newer))
    _, build, _ = await _rows(host.services, project, older)
    forget = "update docverse.edition set build_id = null, publishing_build_id = null"
    job = Aftermath(lambda: host.services.database.source.execute(forget))
    progress = await host.services.build_processing.editions(build.id, ["__main"], job)
    skipped = {"slug": "__main", "reason": f"superseded by build {newer}"}
    assert (progress["editions_skipped"], progress["editions_failed"]) == ([skipped], [])


@pytest.mark.req("D58")
async def test_a_newer_build_that_failed_to_be_published_does_not_keep_an_older_one_away(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    older, newer = await project.upload("main", {"index.html": "older"}), await project.upload("main")
    key = "rubin/guide/__main.json"
    async with host.working():
        host.edge.refused.add(key)
        assert (await host.ended(await project.signal(newer)))["status"] == "failed"
        host.edge.refused.remove(key)
        job = await host.ended(await project.signal(older))
    assert (job["status"], job["progress"]["editions_completed"]) == ("completed", ["__main"])
    assert await project.page() == "older" and (await project.edition("__main"))["build"] == older


def _names(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module)):
            return [module]
    return []


def _noted(run: Any, log: list[str]) -> Any:
    async def noted(self: Database, name: str, *args: Any) -> Any:
        answer = await run(self, name, *args)
        if name in ("log_history", "published"):
            log.append(name)
        return answer

    return noted


def _editions(services: Docverse) -> EditionService:
    return services.build_processing._editions


async def _rows(services: Docverse, project: HostedProject, build: str) -> tuple[Edition, Build, Project]:
    owner = await services.hosting.project(project.org, project.slug)
    return await services.hosting.edition(owner, "__main"), await services.hosting.build(owner, build), owner


async def _id(host: Host, project: HostedProject, build: str) -> int:
    return (await _rows(host.services, project, build))[1].id


async def _waits_for_lock(host: Host, job_id: str, phase: str = "editions") -> None:
    """Returns when a job is in a phase whose lock another one holds; it stays there until that one is released."""

    async def there() -> Json | None:
        job = await host.job(job_id)
        return job if job["phase"] == phase else None

    await until(there)
