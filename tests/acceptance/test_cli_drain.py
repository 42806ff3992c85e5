"""`drain`, `jobs stuck` and `jobs release` as people meet them, with a real worker in a process of its own."""

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import Answer, Project

from dutiful.acting import PauseScope
from dutiful.core import ids
from dutiful.store import Store
from dutiful.testing.store_suite.builders import start_one

Command = Callable[..., Awaitable[Answer]]
JOBS = """
import asyncio
from pathlib import Path
from dutiful import Dutiful

app = Dutiful(heartbeat="200ms")

@app.job
async def email(name: str) -> None:
    Path(f"{name}.begun").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    Path(f"{name}.done").touch()
"""


@pytest.fixture
def project(tmp_path: Path, backend: str, store: Store, request: pytest.FixtureRequest) -> Project:
    (tmp_path / "jobs.py").write_text(JOBS)
    return Project(tmp_path, store.url if backend == "sqlite" else request.getfixturevalue("pg18_url"))


@pytest.fixture
def command(project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return lambda *args: asyncio.to_thread(project.call, monkeypatch, capsys, *args)


@pytest.fixture
def worker(project: Project) -> Iterator[None]:
    with (project.folder / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            project.command("worker"), cwd=project.folder, env=project.environment(), stdout=log, stderr=log
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def until(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.req("L93", "L94")
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)  # what it asks of the stores is tested on both
@pytest.mark.usefixtures("worker")
async def test_a_drain_tells_what_runs_while_it_waits_and_then_that_it_is_safe(
    project: Project, command: Command, store: Store
) -> None:
    folder = project.folder
    await command("enqueue", "email", "name=first")
    until((folder / "first.begun").exists, "the first job runs")

    late = await command("drain", "--kind", "email", "--timeout", "1s", "--resume-on-timeout")
    assert late.code == 1, late.err
    assert "not safe after 1s: 1 still run" in late.out and "dutiful jobs cancel" in late.out
    assert "kind email goes on" in late.err
    assert await store.pauses() == []

    told = folder / "told"
    with told.open("wb") as out:
        draining = subprocess.Popen(  # noqa: ASYNC220 - this test waits for other processes, and for nothing else
            project.command("drain", "--kind", "email", "--timeout", "10m", "--reason", "it moves"),
            cwd=folder,
            env=project.environment(),
            stdout=out,
            stderr=out,
        )
        until(lambda: "kind email paused; 1 still run" in told.read_text(), "it says what it waits for")
        await command("enqueue", "email", "name=second")
        (folder / "go").touch()
        assert draining.wait(120) == 0, told.read_text()
    assert "safe: nothing runs of kind email" in told.read_text()
    assert "to let it go on: dutiful resume kind email" in told.read_text()
    assert (folder / "first.done").exists() and not (folder / "second.begun").exists()

    assert (await command("resume", "kind", "email")).out == "kind email goes on\n"
    until((folder / "second.done").exists, "what waited runs after the resume")
    everything = (await command("drain", "--all", "--timeout", "10m", "--json")).json
    assert everything["safe"] and [p["name"] for p in everything["pauses"]] == ["*"]
    assert "`dutiful resume lane '*'`" in (await command("doctor")).out
    assert (await command("resume", "lane", "*")).out == "lane * goes on\n"


@pytest.mark.req("L93")
async def test_a_drain_that_cannot_end_lists_its_jobs_and_stays_paused(command: Command, store: Store) -> None:
    claim = await start_one(store, kind="email", now=datetime.now(UTC))

    late = await command("drain", "--kind", "email", "--timeout", "0s")

    assert late.code == 1
    assert ids.public(claim.job_id) in late.out and "its worker is gone" in late.out
    assert "still paused: kind email; to let it go on: dutiful resume kind email" in late.err
    again = await command(
        "drain", "--kind", "email", "--queue", claim.queue, "--timeout", "0s", "--resume-on-timeout", "--json"
    )
    assert again.code == 1 and json.loads(again.out)["resumed"] == [{"scope": "queue", "name": claim.queue}]
    assert [pause.name for pause in await store.pauses()] == ["email"], "the pause that was there before stays"
    for wrong, why in (
        (["--kind", "emial"], "there is no kind 'emial'"),
        ([], "say what to drain"),
        (["--kind", "email", "--all"], "not both"),
        (["--kind", "email", "--timeout", "soon"], "--timeout 'soon' is not a length of time"),
    ):
        refused = await command("drain", *wrong)
        assert refused.code == 2 and why in refused.err, wrong


@pytest.mark.req("L93")
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_a_drain_that_somebody_ends_is_not_called_safe(project: Project, store: Store) -> None:
    await start_one(store, kind="email", now=datetime.now(UTC))
    told = project.folder / "told"

    def draining() -> subprocess.Popen[bytes]:
        with told.open("wb") as out:
            command = project.command("drain", "--kind", "email", "--timeout", "10m")
            process = subprocess.Popen(command, cwd=project.folder, env=project.environment(), stdout=out, stderr=out)
        until(lambda: "kind email paused; 1 still run" in told.read_text(), "it waits")
        return process

    first = draining()
    await store.resume(PauseScope.KIND, "email")
    assert first.wait(120) == 1
    assert "not safe: somebody has resumed kind email; 1 still run" in told.read_text()

    second = draining()
    second.send_signal(signal.SIGINT)
    assert second.wait(120) == 130
    assert "interrupted; what is paused stays so; to let it go on: dutiful resume kind email" in told.read_text()
    assert [pause.name for pause in await store.pauses()] == ["email"]


@pytest.mark.req("L73", "L95")
async def test_stuck_jobs_are_listed_and_released(command: Command, store: Store) -> None:
    stuck = await start_one(store, kind="email", now=datetime.now(UTC) - timedelta(hours=2))
    brief = await start_one(store, kind="email", now=datetime.now(UTC))
    name = ids.public(stuck.job_id)

    (listed,) = (await command("jobs", "stuck", "--json")).json["jobs"]
    assert (listed["id"], listed["kind"], listed["state"], listed["attempt"]) == (name, "email", "running", 1)
    assert listed["created_at"] and listed["started_at"]
    assert name in (await command("jobs", "stuck")).out

    assert (await command("jobs", "release")).code == 2
    done = await command("jobs", "release", "--older-than", "1h", "--reason", "it hangs")
    assert (done.code, done.out) == (0, f"{name}  released: ready\n")
    assert (await command("jobs", "stuck")).out == "no job has been running for 1h\n"
    assert (await command("jobs", "release", "--older-than", "1h")).code == 0, "nothing to do is no failure"
    again = await command("jobs", "release", name)
    assert again.code == 1 and "not released" in again.out
    assert (await command("jobs", "release", ids.public(brief.job_id))).code == 0
