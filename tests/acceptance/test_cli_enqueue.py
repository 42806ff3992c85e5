"""`enqueue`: what is accepted, what is refused and how, and waiting for the result."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Project

from dutiful.core import ids
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from dutiful.store.queries import JobFilter


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
