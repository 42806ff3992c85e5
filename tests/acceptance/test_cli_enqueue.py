"""`enqueue`: what is accepted, what is refused and how, and waiting for the result."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from command_line import Project

from dutiful import Dutiful
from dutiful.core import ids
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from dutiful.store.queries import JobFilter
from faults import until
from postgres_proxy import Proxy


@pytest.fixture
def project(tmp_path: Path, backend: str, store: Store, request: pytest.FixtureRequest) -> Project:
    """On both stores; `store` is the same database, open in this process."""
    url = store.url if backend == "sqlite" else request.getfixturevalue("pg18_url")
    return Project(tmp_path, url).write_jobs()


@pytest.fixture
def sqlite_project(tmp_path: Path, sqlite_path: Path) -> Project:
    return Project(tmp_path, f"sqlite:///{sqlite_path}").write_jobs()


@pytest.fixture
def working(sqlite_project: Project) -> Iterator[Project]:
    """A project with a worker."""
    sqlite_project.run("migrate")
    with subprocess.Popen(
        sqlite_project.command("worker"),
        cwd=sqlite_project.folder,
        env=sqlite_project.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield sqlite_project
        process.terminate()


async def test_a_job_is_stored_as_asked_for(project: Project, store: Store) -> None:
    answer = project.run(
        "enqueue", "greet", "name=Ada", "times=2", "--queue", "mail", "--priority", "7", "--delay", "1h",
        "--tenant", "acme", "--correlation-id", "order-17", "--max-attempts", "9", "--unique", "ada", "--json",
    ).json  # fmt: skip

    (job,) = await store.queries.jobs(JobFilter())
    assert (answer["id"], answer["uuid"], answer["created"]) == (ids.public(job.id), str(job.id), True)
    assert answer["created_at"].endswith("Z")
    assert (job.kind, job.queue, job.priority, job.state) == ("greet", "mail", 7, State.SCHEDULED)
    assert (job.tenant, job.correlation_id, job.max_attempts) == ("acme", "order-17", 9)
    assert job.payload == {"name": "Ada", "times": 2}
    assert job.created_by
    assert job.run_at is not None
    assert 3590 < (job.run_at - job.created_at).total_seconds() < 3610

    again = project.run("enqueue", "greet", "name=Ada", "--tenant", "acme", "--unique", "ada")
    assert again.out.strip() == ids.public(job.id)
    assert "already" in again.err


async def test_a_job_waits_for_those_that_it_depends_on(project: Project, store: Store) -> None:
    first = project.run("enqueue", "greet", "name=Ada").out.strip()
    second = project.run("enqueue", "greet", "name=Bob", "--depends-on", first, "--on-failure", "run", "--json").json
    unknown = project.run("enqueue", "greet", "name=Eve", "--depends-on", ids.public(UUID(int=7)))

    assert second["state"] == "blocked"
    assert [ids.public(job.id) for job in await store.queries.dependencies(ids.parse(second["id"]))] == [first]
    assert unknown.code == 1 and "depends_on: there is no job" in unknown.err
    assert "greet, ready" in project.run("jobs", "show", second["id"]).out


async def test_a_job_of_the_command_line_is_on_record(project: Project, store: Store) -> None:
    stored = project.run("enqueue", "greet", "name=Ada", "--tenant", "acme", "--reason", "asked by phone").out.strip()
    assert project.run("enqueue", "greet").code == 2

    refused, ended, begun = await store.audit.search(AuditFilter())
    assert [event.outcome for event in (begun, ended, refused)] == ["requested", "succeeded", "refused"]
    assert {(event.action, event.target) for event in (begun, ended, refused)} == {("job.enqueue", "greet")}
    assert (ended.tenant, ended.reason, ended.origin) == ("acme", "asked by phone", "cli")
    assert ended.principal == (await store.queries.jobs(JobFilter()))[0].created_by
    assert ended.after == {"job": stored, "made": True}


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (["--payload", '{"name": "Ada"}'], "Ada"),
        (["--payload", "@payload.json"], "Eve"),
        (["name=12345"], "12345"),  # a number to JSON, a text to this kind
        (['name="quoted"'], "quoted"),
        (["name=a=b"], "a=b"),
    ],
)
def test_a_payload_may_come_in_many_ways(
    sqlite_project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    name: str,
) -> None:
    (sqlite_project.folder / "payload.json").write_text('{"name": "Eve"}')

    answer = sqlite_project.call(monkeypatch, capsys, "enqueue", "greet", *args, "--json")

    assert answer.json["payload"] == {"name": name}


def test_a_payload_may_come_from_stdin(sqlite_project: Project) -> None:
    answer = sqlite_project.run("enqueue", "greet", "--payload", "-", "--json", stdin='{"name": "Bob"}')

    assert answer.json["payload"] == {"name": "Bob"}


@pytest.mark.parametrize(
    ("args", "reported"),
    [
        (["gret", "name=Ada"], "no kind 'gret'; this app has: explode, greet"),
        (["greet"], "'name'"),
        (["greet", "name=Ada", "times=many"], "'times'"),
        (["greet", "name=Ada", "times=1.5"], "got `float`"),
        (["greet", "name=Ada", "colour=red"], "'colour'"),
        (["greet", "Ada"], "key=value"),
        (["greet", "name=Ada", "name=Bob"], "twice"),
        (["greet", "--payload", "{oops"], "not JSON"),
        (["greet", "--payload", "[1]"], "not an object"),
        (["greet", "--payload", "@nowhere.json"], "nowhere.json"),
        (["greet", "name=Ada", "--payload", "{}"], "not both"),
        (["greet", "--payload", "@big.json"], "more than the limit"),
        (["greet", "name=Ada", "--priority", "-5"], "priority -5"),
        (["greet", "name=Ada", "--priority", "high"], "--priority"),
        (["greet", "name=Ada", "--max-attempts", "0"], "max_attempts"),
        (["greet", "name=Ada", "--run-at", "2030-01-31T09:00"], "no time zone"),
        (["greet", "name=Ada", "--run-at", "tomorrow"], "not a time"),
        (["greet", "name=Ada", "--delay", "soon"], "delay 'soon'"),
        (["greet", "name=Ada", "--delay", "1h", "--run-at", "2030-01-31T09:00Z"], "not both"),
        (["greet", "name=Ada", "--unique-for", "7d"], "give the key with --unique"),
        (["greet", "name=Ada", "--unique", "a", "--unique-for", "window"], "or a length of time as in 7d"),
        (["greet", "name=Ada", "--unique", "a", "--unique-for", "-1d"], "or a length of time as in 7d"),
        (["greet", "name=Ada", "--not-during", "at night"], "must be a cron expression and a length"),
        (["greet", "name=Ada", "--not-during", "* * * * * for 1h"], "leave no time"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    sqlite_project: Project,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    reported: str,
) -> None:
    (sqlite_project.folder / "big.json").write_text(json.dumps({"name": "x" * 300_000}))

    answer = sqlite_project.call(monkeypatch, capsys, "enqueue", *args)

    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1), answer
    assert reported in answer.err


def test_waiting_prints_the_result_or_fails_with_the_job(working: Project) -> None:
    done = working.run("enqueue", "greet", "name=Ada", "--wait", "--timeout", "20s")
    failed = working.run("enqueue", "explode", "--wait", "--timeout", "20s")

    assert done.code == 0, done.err
    assert done.out.splitlines()[1] == '"Hello Ada"'
    assert failed.code == 1
    assert "ValueError: oops" in failed.err
    shown = working.run("jobs", "show", failed.out.strip(), "--full")
    assert "raise ValueError" in shown.out
    assert "failed" in shown.out


def test_waiting_has_an_end_and_the_job_goes_on(sqlite_project: Project) -> None:
    answer = sqlite_project.run("enqueue", "greet", "name=Ada", "--wait", "--timeout", "100ms")

    assert answer.code == 1
    assert "is not final after 100ms; it continues" in answer.err
    assert sqlite_project.run("jobs", "list", "--state", "ready", "--json").json["jobs"]


MARKING = """
from pathlib import Path
from uuid import UUID
from dutiful import Dutiful

app = Dutiful()

@app.job
async def audit() -> str:
    Path("ran").touch()
    return "done"
"""


@pytest.mark.req("D106", "D107")
async def test_it_stores_the_job_hints_at_it_and_runs_nothing(project: Project, store: Store) -> None:
    (project.folder / "jobs.py").write_text(MARKING)

    answer = project.run("enqueue", "audit")

    (job,) = await store.queries.jobs(JobFilter())
    assert (answer.code, answer.out, answer.err) == (0, ids.public(job.id) + "\n", "")
    assert (job.state, job.attempt, (project.folder / "ran").exists()) == (State.READY, 0, False)


@pytest.mark.req("D106")
async def test_an_idle_worker_that_does_not_poll_gets_the_job(project: Project, store: Store) -> None:
    app = Dutiful(project.url, poll="1h")

    @app.job
    async def greet(name: str, times: int = 1) -> str:
        return name * times

    async with app, app.embedded():
        client = await app.client()
        await (await greet.enqueue(name="first")).result(timeout="30s")  # by now it listens

        enqueued = ids.parse(project.run("enqueue", "greet", "name=Ada").out.strip())

        assert await client.result(enqueued, "30s") == "Ada"


@pytest.mark.req("D106")
@pytest.mark.parametrize("backend", ["postgres18"])
async def test_a_repeated_command_after_a_lost_reply_finds_the_job_that_has_run_since(
    project: Project, store: Store
) -> None:
    command = ("enqueue", "greet", "name=Ada", "--unique", "nightly-29384940", "--unique-for", "7d")

    async def once_stored(_: bytes) -> bool:
        proxy.shut = bool(await store.queries.jobs(JobFilter(kind="greet")))
        return proxy.shut

    async with Proxy(project.url) as proxy:
        proxy.cut(once_stored)
        lost = await asyncio.to_thread(Project(project.folder, proxy.url).run, *command)
    assert (lost.code, lost.out, lost.err.count("\n")) == (69, "", 1), lost
    async with Dutiful(project.url) as app:
        app.job(name="greet")(_greet)
        async with app.embedded():
            (first,) = await store.queries.jobs(JobFilter(kind="greet"))
            await until(lambda: _ended(store), "the job has run")

    again = project.run(*command)

    assert (again.code, again.out.strip()) == (0, ids.public(first.id))
    assert [job.id for job in await store.queries.jobs(JobFilter(kind="greet"))] == [first.id]
    assert project.run(*command[:-2]).out.strip() == ids.public(first.id), "the key is held, whatever is asked for now"


async def _greet(name: str) -> str:
    return name


async def _ended(store: Store) -> bool:
    (job,) = await store.queries.jobs(JobFilter(kind="greet"))
    return job.state.final


@pytest.mark.req("D113")
async def test_a_job_enqueued_in_a_maintenance_window_is_due_at_its_end(project: Project, store: Store) -> None:
    window = ("--not-during", "0 0 1 * * for 24d")

    moved = project.run("enqueue", "greet", "name=Ada", "--run-at", "2030-01-02T09:00Z", *window)
    kept = project.run("enqueue", "greet", "name=Bob", "--run-at", "2030-01-26T09:00Z", *window)
    at_once = project.run("enqueue", "greet", "name=Eve", "--not-during", "0 0 29 2 * for 1s")

    assert moved.err == "that is in a maintenance window; the job is due at its end, 2030-01-25 00:00:00 UTC\n"
    assert (kept.err, at_once.err) == ("", "")
    due = {job.payload["name"]: (job.state, job.run_at) for job in await store.queries.jobs(JobFilter())}
    assert [state for state, _ in due.values()].count(State.SCHEDULED) == 2
    assert due["Ada"][1] and due["Ada"][1].isoformat() == "2030-01-25T00:00:00+00:00"
    assert due["Bob"][1] and due["Bob"][1].isoformat() == "2030-01-26T09:00:00+00:00"
    assert due["Eve"][0] is State.READY


@pytest.mark.req("D106")
def test_a_database_that_is_away_is_reported_and_the_command_fails(tmp_path: Path) -> None:
    project = Project(tmp_path, "postgresql://postgres@127.0.0.1:9/nowhere").write_jobs()

    answer = project.run("enqueue", "greet", "name=Ada")

    assert (answer.code, answer.out, answer.err.count("\n")) == (69, "", 1)
    assert "check that it runs, then try again" in answer.err


async def test_a_key_outlives_its_job_and_is_still_answered(project: Project, store: Store) -> None:
    command = ("enqueue", "greet", "name=Ada", "--unique", "a", "--unique-for", "forever", "--json")
    first = project.run(*command).json
    project.run("jobs", "cancel", first["id"])
    assert project.run("jobs", "delete-finished", "--older-than", "0s").code == 0

    again = project.run(*command).json

    assert again == {"id": first["id"], "uuid": first["uuid"], "created": False}


@pytest.mark.req("D106")
def test_a_job_is_stored_while_redis_is_away_and_that_is_reported(sqlite_project: Project) -> None:
    answer = sqlite_project.run("enqueue", "greet", "name=Ada", DUTIFUL_REDIS_URL="redis://127.0.0.1:9/0")

    assert answer.code == 0 and "Redis is away" in answer.err
    listed = sqlite_project.run("jobs", "list", "--state", "ready", "--json").json["jobs"]
    assert [job["id"] for job in listed] == [answer.out.strip()]
