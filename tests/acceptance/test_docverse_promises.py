"""The documentation host: promises in numbers, such as how often, how many and which lock."""

import ast
import asyncio
import inspect
import textwrap
from typing import Any

import asyncpg
import pytest
from docverse import Host, HostedProject, until
from docverse_parts import Held, Window, watched
from docverse_upkeep import FailingStore, Repository, on_store, sql

from dutiful import State
from examples.docverse import jobs, upkeep

pytest_plugins = ["docverse_fixtures"]
LOCKS = "select classid, objid, granted from pg_locks where locktype = 'advisory' and objsubid = 2"
WAITS = "select next_at - ended_at from dutiful.attempt"
PATIENT = ("build_processing", "edition_update", "dashboard_sync")


class Writes(Window):
    """The files of the project that were written, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def after(self, operation: str, key: str) -> None:
        if operation in ("put", "point"):
            self.names.append(key.rpartition("/")[2])


@pytest.mark.req("D88")
async def test_the_dashboard_is_rendered_once_after_all_editions(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    writes = Writes()
    async with host.working(watched(writes)):
        _, job = await project.publish("v1.0.0")
    assert len(job["progress"]["editions_completed"]) == 3
    pages = [name for name in writes.names if name in ("__dashboard.html", "__404.html", "__switcher.json")]
    assert pages == ["__dashboard.html", "__404.html", "__switcher.json"], "once, however many editions there are"
    begun = writes.names.index("__dashboard.html")
    pointed = [at for at, name in enumerate(writes.names) if name in ("v1.0.0.json", "v1.x.json", "v1.0.x.json")]
    assert len([at for at in pointed if at < begun]) == 6, "each edition's key and metadata come before"


@pytest.mark.req("D115", "D116", "D120", "D121", "D127")
async def test_each_kind_has_attempts_of_its_own(host: Host) -> None:
    edition = {"edition_id": 0, "assigned_build_id": 0}
    payloads: list[dict[str, Any]] = [{"build_id": 0}, edition, {"template_ids": [0]}, *[{}] * 4]
    kinds = dict(zip((*PATIENT, *upkeep.PERIODIC), payloads, strict=True))
    records = [await (await host.jobs.enqueue(kind, payload)).record() for kind, payload in kinds.items()]
    assert {record.kind: record.max_attempts for record in records} == {
        **dict.fromkeys(PATIENT, 3), **dict.fromkeys(upkeep.PERIODIC, 2),
    }  # fmt: skip


@pytest.mark.req("D116", "D127")
@pytest.mark.parametrize("kind", PATIENT)
async def test_the_second_wait_is_twice_as_long_as_the_first(host: Host, kind: str) -> None:
    await host.add_org()
    project = await host.add_project()
    Repository(host, "rubin/theme").commit(dashboard_html="x")
    async with host.working():
        build, _ = await project.publish("main")
    failing = FailingStore(host.config.objects, "templates" if kind == "dashboard_sync" else "__editions", 3)
    if kind == "build_processing":
        failing.part = "site"
    async with host.working(on_store(failing)):
        job_id = await _start(host, project, kind, build)
        ended = await host.ended(job_id)
    assert (ended["kind"], ended["status"]) == (kind, "failed")
    record = await host.jobs.find(job_id)
    assert record is not None and record.attempt == 3
    waits = [wait for (wait,) in sql(host, f"{WAITS} where job_id = %s order by claim_id", record.id)]
    assert len(waits) == 2 and waits[1] > 1.4 * waits[0], waits  # 50 and 100 ms, each with some jitter


class FromTheStart(Window):
    """Lets the first render fail, and stops the second inventory."""

    def __init__(self) -> None:
        self.inventories = 0
        self.failed = False
        self.reached, self.released = asyncio.Event(), asyncio.Event()

    async def before(self, operation: str, key: str) -> None:
        if operation == "list" and "/builds/" in key:
            self.inventories += 1
            if self.inventories == 2:
                self.reached.set()
                await self.released.wait()
        elif key.endswith("__dashboard.html") and not self.failed:
            self.failed = True
            raise OSError("the object store is away")


@pytest.mark.req("D118", "D119")
async def test_a_retry_begins_with_the_inventory_and_without_the_progress_of_the_first_attempt(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    window = FromTheStart()
    async with host.working(watched(window)):
        job_id = await project.signal(await project.upload("main"))
        async with asyncio.timeout(30):
            await window.reached.wait()

        async def begun_again() -> bool:
            job = await host.job(job_id)
            return (job["phase"], job["progress"]) == ("inventory", None)

        await until(begun_again)
        window.released.set()
        ended = await host.ended(job_id)
    assert (ended["status"], window.inventories) == ("completed", 2)
    record = await host.jobs.find(job_id)
    assert record is not None and record.attempt == 2


PHASES = {
    "build_processing": {"inventory", "tracking", "editions", "dashboard"},
    "edition_update": {"editions", "dashboard"},
    "dashboard_sync": {"dashboard"},
}


@pytest.mark.req("D15", "D118", "D127")
@pytest.mark.parametrize("kind", PATIENT)
async def test_every_phase_of_a_second_attempt_is_its_own(host: Host, kind: str) -> None:
    await host.add_org()
    project = await host.add_project()
    Repository(host, "rubin/theme").commit(dashboard_html="x")
    async with host.working():
        build, _ = await project.publish("main")
    async with host.working(on_store(FailingStore(host.config.objects, "__dashboard", 1))):
        job_id = await _start(host, project, kind, build)
        assert (await host.ended(job_id))["kind"] == kind
    snapshot = await host.jobs.snapshot(job_id)
    assert snapshot is not None and (snapshot.job.attempt, snapshot.job.state) == (2, State.COMPLETED)
    began = snapshot.job.started_at
    assert began is not None
    assert {phase.name for phase in snapshot.phases} == PHASES[kind]
    assert all(phase.started_at is not None and phase.started_at >= began for phase in snapshot.phases)


async def _start(host: Host, project: HostedProject, kind: str, build: str) -> str:
    """Starts a job of one of the patient kinds, as users do; `build` is for edition_update."""
    if kind == "build_processing":
        return await project.signal(await project.upload("main"))
    if kind == "edition_update":
        return await project.assign("__main", build)
    body = {"repository": "rubin/theme"}
    return str((await host.call("PUT", "/orgs/rubin/template", 202, json=body))["queue_job"])


@pytest.mark.req("D52", "D55", "D56", "D57")
async def test_editions_are_locked_by_class_1_and_projects_by_class_2_and_a_contender_waits(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    held = Held("put", "__dashboard.html")
    async with host.working(watched(held)):
        first = await project.signal(await project.upload("main"))
        await held.reached.wait()
        second = await project.signal(await project.upload("main"))

        async def one_waits() -> bool:
            job = await host.job(second)
            return (job["status"], job["phase"]) == ("in_progress", "dashboard")

        await until(one_waits)
        owner = await host.services.hosting.project("rubin", "guide")
        assert await _locks(host) == [(2, owner.id, True)]
        held.released.set()
        assert [(await host.ended(job))["status"] for job in (first, second)] == ["completed"] * 2
        assert await _locks(host) == []
    held = Held("point", "__main.json")
    async with host.working(watched(held)):
        job = await project.signal(await project.upload("main"))
        await held.reached.wait()
        edition = await host.services.hosting.edition(owner, "__main")
        assert await _locks(host) == [(1, edition.id, True)]
        held.released.set()
        await host.ended(job)


@pytest.mark.req("D52", "D56")
async def test_an_operator_who_takes_an_editions_lock_by_sql_makes_its_builds_wait(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    owner = await host.services.hosting.project("rubin", "guide")
    edition = await host.services.hosting.edition(owner, "__main")
    operator = await asyncpg.connect(host.config.database_url)
    await operator.execute("select pg_advisory_lock(1, $1)", edition.id)
    async with host.working():
        job = await project.signal(await project.upload("main"))

        async def waits() -> bool:
            return (1, edition.id, False) in await _locks(host)

        await until(waits)

        async def says_so() -> bool:  # progress is stored a moment later
            progress = (await host.job(job))["progress"]
            return progress is not None and progress["editions_in_progress"] == ["__main"]

        await until(says_so)
        await operator.close()
        assert (await host.ended(job))["status"] == "completed"


async def _locks(host: Host) -> list[tuple[int, int, bool]]:
    """The advisory locks of two numbers in this database."""
    connection = await asyncpg.connect(host.config.database_url)
    try:
        rows = await connection.fetch(
            f"{LOCKS} and database = (select oid from pg_database where datname = current_database())"
        )
        return [(row["classid"], row["objid"], row["granted"]) for row in rows]
    finally:
        await connection.close()


@pytest.mark.req("D122")
async def test_a_retry_of_the_job_repairs_the_edition_that_failed(host: Host) -> None:
    await host.add_org()
    project = await host.add_project()
    key = "rubin/guide/v2.x.json"
    host.edge.refused.add(key)
    async with host.working():
        build, job = await project.publish("v2.1.0")
        assert job["status"] == "completed_with_errors"
        host.edge.refused.remove(key)
        record = await host.jobs.find(job["public_id"])
        assert record is not None
        again = await (await host.jobs.operator("ada")).jobs.retry(record.id)
        ended = await host.ended(str(again.job_id))
        assert ended["status"] == "completed" and "v2.1.0" in await project.page("v/v2.x/")
        assert (await project.build(build))["status"] == "completed"
        assert [len(await project.history(slug)) for slug in ("v2.1.0", "v2.x")] == [1, 1], "the others are left alone"


@pytest.mark.req("D6")
def test_a_worker_function_is_a_thin_call_into_the_service_layer() -> None:
    functions = [
        node
        for module in (jobs, upkeep)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(module))))
        if isinstance(node, ast.AsyncFunctionDef) and any(a.arg == "ctx" for a in node.args.args)
    ]
    assert len(functions) == 11
    for function in functions:
        calls = {ast.unparse(node) for node in ast.walk(function) if isinstance(node, ast.Attribute)}
        assert any(call.startswith("docverse.") for call in calls), f"{function.name} calls no service"
        statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt)]
        branches = [node for node in statements if isinstance(node, ast.If | ast.For | ast.While | ast.Try)]
        assert len(statements) <= 8 and not branches, f"{function.name} decides something itself"
