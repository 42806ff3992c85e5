"""`drain`, `jobs stuck` and `jobs release` as people meet them, with a real worker in a process of its own."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from command_line import Answer, Project

from dutiful.core import ids
from dutiful.store import Store
from dutiful.store.control import PauseScope
from dutiful.store.workers import WorkerRecord
from dutiful.stores.sqlite.engine.file_lock import FileLock
from suite.builders import T0, start_one

Command = Callable[..., Awaitable[Answer]]
JOBS = """
import asyncio
from pathlib import Path
from uuid import UUID
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
def worker(project: Project) -> Iterator[subprocess.Popen[bytes]]:
    with (project.folder / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            project.command("worker"), cwd=project.folder, env=project.environment(), stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def frozen(worker: "subprocess.Popen[bytes]", project: Project) -> bool:
    """Stops it, unless it holds the lock of a SQLite file: then no other process could write."""
    worker.send_signal(signal.SIGSTOP)
    os.waitpid(worker.pid, os.WUNTRACED)
    scheme, _, file = project.url.partition(":///")
    locks = [FileLock(file, name) for name in ("turn", "lock")] if scheme == "sqlite" else []
    for lock in locks:
        lock.open()
    free = all(lock.try_acquire() for lock in locks)
    for lock in locks:
        lock.close()
    if not free:
        worker.send_signal(signal.SIGCONT)
    return free


def until(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.req("L93", "L94")
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)  # what it asks of the stores is tested on both
@pytest.mark.usefixtures("worker")
async def test_a_drain_reports_what_runs_while_it_waits_and_then_that_it_is_safe(
    project: Project, command: Command, store: Store
) -> None:
    folder = project.folder
    await command("enqueue", "email", "name=first")
    until((folder / "first.begun").exists, "the first job runs")

    late = await command("drain", "--kind", "email", "--timeout", "1s", "--resume-on-timeout")
    assert late.code == 1, late.err
    assert "not safe after 1s: 1 job still runs" in late.out and "dutiful jobs cancel" in late.out
    assert "resumed: kind email" in late.err
    assert await store.control.pauses() == []

    reported = folder / "reported"
    with reported.open("wb") as out:
        draining = subprocess.Popen(  # noqa: ASYNC220 - this test waits for other processes, and for nothing else
            project.command("drain", "--kind", "email", "--timeout", "10m", "--reason", "it moves"),
            cwd=folder,
            env=project.environment(),
            stdout=out,
            stderr=out,
        )
        until(lambda: "kind email paused; 1 job still runs" in reported.read_text(), "it says what it waits for")
        await command("enqueue", "email", "name=second")
        (folder / "go").touch()
        assert draining.wait(120) == 0, reported.read_text()
    assert "safe: nothing runs of kind email" in reported.read_text()
    assert "to resume: dutiful resume kind email" in reported.read_text()
    assert (folder / "first.done").exists() and not (folder / "second.begun").exists()

    assert (await command("resume", "kind", "email")).out == "kind email is resumed\n"
    until((folder / "second.done").exists, "what waited runs after the resume")
    everything = (await command("drain", "--all", "--timeout", "10m", "--json")).json
    assert everything["safe"] and [p["name"] for p in everything["pauses"]] == ["*"]
    assert "`dutiful resume lane '*'`" in (await command("doctor")).out
    assert (await command("resume", "lane", "*")).out == "lane * is resumed\n"


@pytest.mark.req("L93")
async def test_a_worker_that_was_stopped_keeps_a_drain_from_being_safe_until_it_is_ended(
    project: Project, command: Command, worker: "subprocess.Popen[bytes]"
) -> None:
    made = await command("enqueue", "email", "name=first")
    until((project.folder / "first.begun").exists, "it runs")
    until(lambda: frozen(worker, project), "it is frozen, and not while it writes")
    job_id = made.out.split()[0]
    assert (await command("jobs", "release", job_id, "--reason", "its worker is frozen")).code == 0

    unsafe = await command("drain", "--kind", "email", "--timeout", "3s")

    assert unsafe.code == 1, unsafe.out
    assert f"kill -CONT {worker.pid}" in unsafe.out and f"kill -KILL {worker.pid}" in unsafe.out
    assert "process stopped" in (await command("workers")).out
    sick = await command("doctor")
    assert sick.code == 1 and f"`kill -CONT {worker.pid}`" in sick.out
    assert (await command("drain", "--kind", "email", "--gone", f"{socket.gethostname()}:{worker.pid}")).code == 2
    worker.kill()
    worker.wait()
    assert (await command("drain", "--kind", "email", "--timeout", "10m")).code == 0
    assert not (project.folder / "first.done").exists()


@pytest.mark.req("L93")
async def test_what_holds_a_drain_up_fits_a_terminal_and_says_once_what_to_do(command: Command, store: Store) -> None:
    claims = [await start_one(store, kind="import_file", now=datetime.now(UTC)) for _ in range(3)]

    late = await command("drain", "--kind", "import_file", "--timeout", "0s")

    assert "not safe after 0ms: 3 jobs still run" in late.out
    table = [line for line in late.out.splitlines() if any(ids.public(claim.job_id) in line for claim in claims)]
    assert len(table) == 3 and late.out.count("→") == 1 and "dutiful jobs release ID" in late.out


@pytest.mark.req("L93")
@pytest.mark.usefixtures("worker")
async def test_a_queue_without_jobs_is_drained_while_a_worker_serves_it(project: Project, command: Command) -> None:
    until(lambda: "lanes" in (project.folder / "worker.log").read_text(), "the worker is there")
    assert (await command("drain", "--queue", "default", "--timeout", "10m")).code == 0
    rare = await command("drain", "--queue", "rare", "--timeout", "10m")
    assert rare.code == 0 and "no live worker or job has the queue rare; check the spelling" in rare.err


@pytest.mark.req("L93")
async def test_a_drain_that_cannot_end_lists_its_jobs_and_stays_paused(command: Command, store: Store) -> None:
    claim = await start_one(store, kind="email", now=datetime.now(UTC))

    late = await command("drain", "--kind", "email", "--timeout", "0s")

    assert late.code == 1
    assert ids.public(claim.job_id) in late.out and "its worker is gone" in late.out
    assert "still paused: kind email; to resume: dutiful resume kind email" in late.err
    again = await command(
        "drain", "--kind", "email", "--queue", claim.queue, "--timeout", "0s", "--resume-on-timeout", "--json"
    )
    assert again.code == 1 and json.loads(again.out)["resumed"] == [{"scope": "queue", "name": claim.queue}]
    assert [pause.name for pause in await store.control.pauses()] == ["email"], "the pause that was there before stays"
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
async def test_a_drain_that_is_resumed_is_not_called_safe(project: Project, store: Store) -> None:
    await start_one(store, kind="email", now=datetime.now(UTC))
    reported = project.folder / "reported"

    def draining() -> subprocess.Popen[bytes]:
        with reported.open("wb") as out:
            command = project.command("drain", "--kind", "email", "--timeout", "10m")
            process = subprocess.Popen(command, cwd=project.folder, env=project.environment(), stdout=out, stderr=out)
        until(lambda: "kind email paused; 1 job still runs" in reported.read_text(), "it waits")
        return process

    first = draining()
    await store.control.resume(PauseScope.KIND, "email")
    assert first.wait(120) == 1
    assert "not safe: resumed meanwhile: kind email; 1 job still runs" in reported.read_text()

    second = draining()
    second.send_signal(signal.SIGINT)
    assert second.wait(120) == 130
    assert "interrupted; what is paused stays paused; to resume: dutiful resume kind email" in reported.read_text()
    assert [pause.name for pause in await store.control.pauses()] == ["email"]


@pytest.mark.req("L73", "L95")
async def test_stuck_jobs_are_listed_and_released(command: Command, store: Store) -> None:
    stuck = await start_one(store, kind="email", now=datetime.now(UTC) - timedelta(hours=2))
    brief = await start_one(store, kind="email", now=datetime.now(UTC))
    name = ids.public(stuck.job_id)

    (listed,) = (await command("jobs", "stuck", "--json")).json["jobs"]
    assert (listed["id"], listed["kind"], listed["state"], listed["attempt"]) == (name, "email", "running", 1)
    assert listed["created_at"] and listed["started_at"]
    assert name in (await command("jobs", "stuck")).out
    host = socket.gethostname()
    ada = WorkerRecord(
        id=UUID(listed["worker_id"]),
        name="web-1:4711",
        host=host,
        pid=4711,
        started_at=T0,
        seen_at=T0,
        lanes={},
        kinds=[],
    )
    await store.workers.heartbeat(ada, timedelta(hours=1))
    assert (await command("jobs", "stuck", "--json")).json["jobs"][0]["worker"] == "web-1:4711"
    assert "web-1:4711" in (await command("jobs", "stuck")).out
    for verb in ("stuck", "release"):
        misspelt = await command("jobs", verb, "--kind", "nope", "--older-than", "0s")
        assert (misspelt.code, misspelt.out) == (0, "no job is running\n")
        assert misspelt.err == "note: no live worker or job has the kind nope; check the spelling\n"
    assert (await command("jobs", "stuck", "--kind", listed["kind"], "--older-than", "99d")).err == ""

    assert (await command("jobs", "release")).code == 2
    done = await command("jobs", "release", "--older-than", "1h", "--reason", "it hangs")
    assert (done.code, done.out) == (0, f"{name}  released: ready\n")
    assert (await command("jobs", "stuck")).out == "no job has been running for 1h\n"
    assert (await command("jobs", "release", "--older-than", "1h")).code == 0, "nothing to do is no failure"
    again = await command("jobs", "release", name)
    assert again.code == 1 and "not released" in again.out
    assert (await command("jobs", "release", ids.public(brief.job_id))).code == 0
