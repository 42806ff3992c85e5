"""`encryption`, and how the command line and the API show sealed jobs, on both stores."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from api import admin_api
from command_line import Project

from dutiful import Dutiful, JobFailed, KeyRing
from dutiful.core import ids
from dutiful.payload.key_ring import new_key
from dutiful.store import Store

JOBS = """
from dutiful import Context, Dutiful, Retry

app = Dutiful()

@app.job(encrypted=True, retry=Retry(max_attempts=1))
async def greet(ctx: Context, name: str) -> str:
    ctx.progress(50, f"greeting {name}")
    if name.endswith("?"):
        raise ValueError(f"who is {name}")
    return f"Hello {name}"
"""
OLD, NEW = f"old:{new_key()}", f"new:{new_key()}"
SEALED = {"$sealed": {"key": "old"}}


@pytest.fixture
def project(tmp_path: Path, backend: str, store: Store, request: pytest.FixtureRequest) -> Project:
    url = store.url if backend == "sqlite" else request.getfixturevalue("pg18_url")
    (tmp_path / "jobs.py").write_text(JOBS)
    return Project(tmp_path, url)


async def run_all(project: Project, key: str) -> None:
    """Runs the jobs that wait, in this process."""
    declared: dict[str, Any] = {}
    exec(JOBS, declared)
    app: Dutiful = declared["app"]
    app.configure(database_url=project.url, encryption_keys=[key])
    async with app, app.embedded():
        for job in await app.jobs():
            with suppress(JobFailed):
                await (await app.client()).result(job.id, "60s")


async def test_sealed_jobs_are_shown_as_sealed_and_opened_on_request(project: Project) -> None:
    refused = project.run("enqueue", "greet", "name=Wolpertinger")
    assert refused.code == 2
    assert "kind greet is encrypted, and this process has no key: set encryption_keys (DUTIFUL_" in refused.err

    keys = {"DUTIFUL_ENCRYPTION_KEYS": OLD}
    for name in ("Wolpertinger", "Wolpertinger?"):
        assert project.run("enqueue", "greet", f"name={name}", **keys).code == 0
    failed = project.run("worker")
    assert failed.code == 2 and "kind greet is encrypted" in failed.err
    await run_all(project, OLD)

    made = project.run("enqueue", "greet", "name=Wolpertinger", "--delay", "1h", "--json", **keys)
    assert made.json["payload"] == SEALED
    listed = project.run("jobs", "list", "--json", "--details").json["jobs"]
    states = {job["state"]: job for job in listed}
    done, dead = states["completed"], states["failed"]
    assert (done["payload"], done["result"]) == (SEALED, SEALED)
    commands = [
        *(("jobs", "list"), ("jobs", "show", done["id"], "--full"), ("jobs", "show", dead["id"], "--full")),
        *(("jobs", "show", done["id"], "--json"), ("trace", done["id"]), ("trace", dead["id"], "--json")),
        *(("dead-letters", "list"), ("dead-letters", "show", dead["id"], "--full"), ("dead-letters", "groups")),
        *(("dead-letters", "show", dead["id"], "--json"), ("schedules", "list", "--json")),
    ]
    for command in commands:
        answer = project.run(*command, **keys)  # keys or not, it is the same
        assert "Wolpertinger" not in answer.out + answer.err, command
        assert '"text"' not in answer.out, command
    assert "(sealed)" in project.run("jobs", "show", dead["id"]).out

    without = project.run("jobs", "show", done["id"], "--open")
    assert without.code == 2 and "this process has no key" in without.err
    opened = project.run("jobs", "show", done["id"], "--open", "--reason", "asked by Ada", "--json", **keys).json
    assert (opened["payload"], opened["result"]) == ({"name": "Wolpertinger"}, "Hello Wolpertinger")
    assert "who is Wolpertinger?" in project.run("jobs", "show", dead["id"], "--open", "--full", **keys).out
    audited = project.run("audit", "list", "--action", "job.open").out
    assert "asked by Ada" in audited and "Wolpertinger" not in audited


async def test_keys_are_rotated_and_counted(project: Project) -> None:
    assert project.run("encryption", "status").out.strip() == "nothing is sealed"
    for _ in range(3):
        assert project.run("enqueue", "greet", "name=Ada", DUTIFUL_ENCRYPTION_KEYS=OLD).code == 0
    (use,) = project.run("encryption", "status", "--json").json["keys"]
    assert use == {"key": "old", "values": 3, "known": False, "current": False, "places": {"job.payload": 3}}

    lacking = project.run("encryption", "rotate", DUTIFUL_ENCRYPTION_KEYS=NEW)
    assert lacking.code == 1 and "3 with the key old; add their keys to encryption_keys" in lacking.err
    done = project.run("encryption", "rotate", "--reason", "yearly", DUTIFUL_ENCRYPTION_KEYS=f"{NEW},{OLD}")
    assert (done.code, done.out.strip()) == (0, "3 rows sealed anew with the key new")
    assert "job.payload" in done.err
    table = project.run("encryption", "status", DUTIFUL_ENCRYPTION_KEYS=NEW).out
    assert "new" in table and "current" in table and "old" not in table
    await run_all(project, NEW)
    assert "yearly" in project.run("audit", "list", "--action", "encryption.rotate").out
    for secret in (OLD, NEW):
        assert secret.partition(":")[2] not in done.out + done.err + lacking.err + table


def test_a_key_is_made(project: Project) -> None:
    first, second = project.run("encryption", "key").out.strip(), project.run("encryption", "key").out.strip()
    assert first != second
    assert KeyRing({"k": first}).current == "k"


async def test_the_api_shows_sealed_values_as_sealed(app_url: str) -> None:
    app = Dutiful(app_url, encryption=KeyRing({"old": b"k" * 32}))
    async with admin_api(app) as admin:
        detail = (await admin.get(f"/admin/jobs/{admin.done['acme']}/")).json()
        assert (detail["payload"], detail["result"]) == (SEALED, SEALED)
        letter = await admin.get(f"/admin/dlq/{admin.dead['acme'][0]}/")
        assert letter.json()["payload"] == SEALED and "connection_id" not in letter.text
        for path in (f"/{ids.public(admin.done['acme'])}", f"/admin/jobs/{admin.dead['acme'][0]}/"):
            answer = await admin.get(path)
            assert answer.status_code == 200, path
            assert "acme-secret" not in answer.text and '"text"' not in answer.text
