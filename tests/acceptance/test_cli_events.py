"""`events`: follow jobs in a terminal, until INT."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uuid_utils.compat
from command_line import Project

from dutiful.cli import INTERRUPTED
from dutiful.core import ids
from dutiful.core.outcome import Failed
from dutiful.store import Store
from suite.builders import OOPS, new_id, new_job, settle, start_one


@pytest.fixture
def project(tmp_path: Path, backend: str, store: Store, request: pytest.FixtureRequest) -> Project:
    url = store.url if backend == "sqlite" else request.getfixturevalue("pg18_url")
    return Project(tmp_path, url).write_jobs()


@asynccontextmanager
async def following(project: Project, store: Store, *options: str) -> AsyncIterator[asyncio.StreamReader]:
    """What it prints, from when it listens until INT."""
    process = await asyncio.create_subprocess_exec(
        *project.command("events", *options), cwd=project.folder, env=project.environment(),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    try:
        async with asyncio.timeout(30):
            while not await store.events.has_listeners():  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.01)
            yield process.stdout
    finally:
        process.send_signal(signal.SIGINT)
        error = await process.stderr.read()
        assert await process.wait() == INTERRUPTED and error == b"", error.decode()


async def test_a_job_is_followed_line_by_line(project: Project, store: Store) -> None:
    claim = await start_one(store)
    async with following(project, store, "--job", ids.public(claim.job_id)) as lines:
        assert (await lines.readline()).decode().split()[1:4] == ["snapshot", ids.public(claim.job_id), "greet"]
        await settle(store, claim, Failed(OOPS, final=True))
        last = (await lines.readline()).decode()
    assert last.split()[1] == "failed" and f"{OOPS['type']}: {OOPS['message']}" in last


async def test_events_of_some_jobs_are_printed_as_json(project: Project, store: Store) -> None:
    """It may listen before it counts as a listener: enqueue until it prints something."""
    async with following(project, store, "--queue", "mine", "--type", "enqueued", "--json") as lines:
        made: list[str] = []

        async def enqueue() -> None:
            while True:
                jobs = [new_job(id=uuid_utils.compat.uuid7(), queue=queue) for queue in ("other", "mine")]
                await store.jobs.insert(jobs)
                made.append(ids.public(jobs[1].id))
                await asyncio.sleep(0.1)

        enqueuing = asyncio.create_task(enqueue())
        reported = json.loads(await lines.readline())
        enqueuing.cancel()
    assert reported["type"] == "enqueued" and reported["public_id"] in made and reported["queue"] == "mine"


async def test_a_job_that_is_not_there_is_an_error(project: Project) -> None:
    missing = await asyncio.to_thread(project.run, "events", "--job", ids.public(new_id()))
    malformed = await asyncio.to_thread(project.run, "events", "--job", "nonsense")

    assert (missing.code, malformed.code) == (1, 2) and "there is no job" in missing.err
