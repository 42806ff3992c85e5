"""A job as its user sees it over HTTP, and the server as a process."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from api import AdminApi, admin_api, public
from command_line import Project
from uuid_utils.compat import uuid7

from dutiful import Context, Dutiful

STATUS = {
    "id", "kind", "state", "created_at", "run_at", "started_at", "finished_at", "progress", "phases", "result", "error",
}  # fmt: skip


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app) as admin:
        yield admin


@pytest.fixture
async def open_house(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app, public_status=True) as admin:
        yield admin


@pytest.mark.req("D11")
async def test_a_user_sees_the_status_of_a_job_and_nothing_else(admin: AdminApi) -> None:
    dead, done = public(admin.dead["acme"][0]), public(admin.done["acme"])
    seen = (await admin.get(f"/{dead}", "acme viewer")).json()
    assert set(seen) == STATUS
    assert (seen["id"], seen["kind"], seen["state"]) == (dead, "fetch", "failed")
    assert seen["error"] == "connection 456 is closed"
    assert (await admin.get(f"/{done}/", "acme viewer")).json()["result"] == "Hello acme-secret"
    assert (await admin.get(f"/{dead}", "globex viewer")).status_code == 404
    assert (await admin.get(f"/{public(uuid7())}", "acme viewer")).status_code == 404
    for malformed in (
        "nonsense",
        dead.lower(),
        dead[:-1] + ("0" if dead[-1] != "0" else "1"),
        str(admin.dead["acme"][0]),
    ):
        assert (await admin.get(f"/{malformed}", "acme viewer")).status_code == 422, malformed
    assert (await admin.get(f"/{dead}", None)).status_code == 401


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_public_status_needs_only_the_id_and_shows_nothing_more(open_house: AdminApi) -> None:
    admin = open_house
    assert (await admin.get(f"/{public(admin.dead['acme'][0])}", None)).json()["state"] == "failed"
    assert (await admin.get("/admin/dlq/", None)).status_code == 401


async def test_a_user_follows_a_job_as_events_without_its_insides(app: Dutiful) -> None:
    @app.job
    async def work(ctx: Context, password: str) -> int:
        ctx.progress(40, "nearly")
        return 7

    async with admin_api(app) as admin, app.embedded(grace="5s"):
        job = await app.enqueue("work", {"password": "hunter2"}, tenant="acme", delay="300ms", subject={"order": 77001})
        reported = await admin.follow(f"/{job.public_id}/events", "acme viewer", "event: completed")
        assert reported[0] == 200 and reported[1]["content-type"].startswith("text/event-stream")
        frames = [dict(line.split(": ", 1) for line in part.split("\n")) for part in reported[2].strip().split("\n\n")]
        events = {frame["event"]: json.loads(frame["data"]) for frame in frames if "event" in frame}
        assert next(iter(events)) == "snapshot" and set(events["snapshot"]["job"]) == STATUS
        assert events["completed"]["data"] == {"state": "completed", "result": 7}
        for secret in ("hunter2", "77001", "acme", "worker", "correlation"):
            assert secret not in reported[2]
        assert (await admin.get(f"/{job.public_id}/events", "globex viewer")).status_code == 404
        assert not (await app.client()).watcher.streams, "a client that disconnects leaves nothing behind"


def test_a_server_answers_ends_its_streams_when_asked_to_stop_and_leaves_with_0(tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/jobs.db").write_jobs()
    job = project.run("enqueue", "greet", "name=Ada", "--delay", "1h")
    job_id = re.search(r"\w{7}(-\w{7}){3}", job.out)
    made = project.run("tokens", "create", "--name", "ada", "--role", "manager", "--json")
    token = re.search(r"dtf_[\w-]{43}", made.out)
    assert job_id is not None and token is not None, job.err + made.err
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            project.command("server", "--port", "0", "--log-format", "json"),
            cwd=tmp_path, env=project.environment(), stdout=log, stderr=log,
        )  # fmt: skip
    try:
        asyncio.run(_use(server, _address(server, tmp_path / "log"), token[0], job_id[0]))
        assert server.wait(60) == 0, (tmp_path / "log").read_text()
    finally:
        server.kill()
        server.wait()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert any(line["logger"] == "uvicorn.access" and '/readyz HTTP/1.1" 200' in line["message"] for line in lines)
    assert lines[-1]["message"] == "server stopped" and lines[-1]["logger"] == "dutiful.web"


def _address(server: "subprocess.Popen[bytes]", log: Path) -> str:
    until = time.monotonic() + 120
    while not (found := re.search(r"running on (http://[\d.:]+)", log.read_text())):
        assert server.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.02)
    return found[1]


async def _use(server: "subprocess.Popen[bytes]", address: str, token: str, job_id: str) -> None:
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=address, headers=headers, timeout=60) as http:
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.get("/api/jobs/admin/queue/")).json()["jobs"][0]["job_id"] == job_id
        async with http.stream("GET", f"/api/jobs/{job_id}/events") as stream:
            pieces: Any = stream.aiter_text()
            text = ""
            while "snapshot" not in text:
                text += await anext(pieces)
            os.kill(server.pid, signal.SIGTERM)
            async for _ in pieces:
                pass  # it ends, or httpx2 would raise


def test_without_its_packages_the_server_says_what_to_install(tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/jobs.db").write_jobs()
    (tmp_path / "uvicorn.py").write_text("raise ImportError('no uvicorn here')")
    done = subprocess.run(
        [sys.executable, "-m", "dutiful.cli", "server"],
        cwd=tmp_path,
        env=project.environment(PYTHONPATH=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2 and "pip install 'dutiful[web]'" in done.stderr, done.stderr
