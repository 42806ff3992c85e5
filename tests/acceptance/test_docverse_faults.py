"""The documentation host: workers are killed in every phase, and Postgres is restarted while locks are held."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from docverse import Host, HostedProject, hosting, until
from docverse_parts import Held, watched

from dutiful import Dutiful
from examples.docverse.installation import install
from examples.docverse.processes import worker
from servers import PostgresServer

pytest_plugins = ["docverse_fixtures"]
HERE = Path(__file__).parent
PHASES = ["inventory", "tracking", "editions", "dashboard"]


@pytest.mark.req("D35", "D90", "D117", "D118")
async def test_a_build_whose_worker_is_killed_in_any_phase_is_published_by_another_one(
    host: Host, tmp_path: Path
) -> None:
    projects: dict[str, HostedProject] = {}
    builds: dict[str, str] = {}
    jobs: dict[str, str] = {}
    environment = {**host.config.environment(), "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)])}
    lease = ("--lease", "1s", "--poll", "100ms")

    async def killed_in(phase: str) -> None:
        reached = tmp_path / f"reached-{phase}"
        windows = json.dumps({"hold": phase, "reached": str(reached)})
        org = f"{phase}-org"
        options = (*lease, "--no-services", "--tenant", org)  # only the job that it is to die with
        await host.add_org(org, "copy")
        projects[phase] = await host.add_project(org, phase)
        builds[phase] = await projects[phase].upload("v1.0.0")
        jobs[phase] = await projects[phase].signal(builds[phase])
        held = {**environment, "DOCVERSE_WINDOWS": windows}
        async with worker(host.config.folder, held, *options, app="docverse_worker:app") as doomed:

            async def there() -> bool:
                return reached.exists()

            await until(there)
            await doomed.kill()

    await asyncio.gather(*(killed_in(phase) for phase in PHASES))
    for phase, job in jobs.items():
        assert (await host.job(job))["phase"] == phase
    async with host.working(lease="1s"):
        for phase, job in jobs.items():
            ended = await host.ended(job)
            assert ended["status"] == "completed", (phase, ended)
            assert sorted(ended["progress"]["editions_completed"]) == ["v1.0.0", "v1.0.x", "v1.x"]
            assert (await projects[phase].build(builds[phase]))["status"] == "completed"
            for slug in ("v1.0.0", "v1.x"):
                assert "v1.0.0" in await projects[phase].page(f"v/{slug}/")
                assert [entry["build"] for entry in await projects[phase].history(slug)] == [builds[phase]]
            record = await host.jobs.find(job)
            assert record is not None and record.crashes == 1


@pytest.mark.req("D49", "D55", "D63")
async def test_postgres_restarts_while_locks_are_held_and_the_newest_build_is_shown(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    url = own_server.create_database("docverse")
    await install(Dutiful(url), url)
    async with hosting(url, tmp_path) as host:
        await host.add_org()
        project = await host.add_project()
        held = Held("purge", "v/__main")  # the edge has the key, the database does not know it
        async with host.working(watched(held), lease="3s"):
            older, newer = await project.upload("main"), await project.upload("main", {"index.html": "newer"})
            first = await project.signal(newer)
            await held.reached.wait()
            second = await project.signal(older)  # waits for the lock

            async def waits() -> bool:
                return bool((await host.job(second))["phase"] == "editions")

            await until(waits)
            await asyncio.to_thread(own_server.restart)
            held.released.set()
            await _reconnect(host)
            done, skipped = await host.ended(first), await host.ended(second)
        assert (done["status"], skipped["status"]) == ("completed", "completed")
        assert await project.page() == "newer"
        assert (await project.edition("__main"))["build"] == newer
        assert [entry["build"] for entry in await project.history("__main")] == [newer]
        assert skipped["progress"]["editions_skipped"] == [{"slug": "__main", "reason": f"superseded by build {newer}"}]


async def _reconnect(host: Host) -> None:
    """Returns when the API has connections to the restarted server."""

    async def answered() -> bool:
        answer = await host.http.get(
            "/orgs/rubin/projects/guide", headers={"authorization": f"Bearer {host.config.superuser_token}"}
        )
        return answer.status_code == 200

    for _ in range(3):
        await until(answered)
