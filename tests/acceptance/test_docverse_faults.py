"""The documentation host: workers are killed in every phase, and Postgres is restarted while locks are held."""

import asyncio
import random
from pathlib import Path

import pytest
from docverse import Host, HostedProject, Json, hosting, until
from docverse_parts import Held, watched

from dutiful import Dutiful
from examples.docverse.installation import install
from servers import PostgresServer

pytest_plugins = ["docverse_fixtures"]
PHASES = ["inventory", "tracking", "editions", "dashboard"]


LEASE = ("--lease", "1s", "--poll", "100ms")


@pytest.mark.req("D35", "D90", "D117", "D118")
async def test_builds_whose_worker_is_killed_in_each_phase_are_published_by_another_one(
    delivered: Host, tmp_path: Path
) -> None:
    host, held = delivered, {f"{phase}-org": phase for phase in PHASES}
    projects: dict[str, HostedProject] = {}
    reached = tmp_path / "reached"
    reached.mkdir()

    async def all_there() -> bool:
        return {path.name for path in reached.iterdir()} == set(PHASES)

    async with host.process(*LEASE, hold=held, reached=str(reached)) as doomed:
        for org, phase in held.items():
            await host.add_org(org, "copy")
            projects[phase] = await host.add_project(org, phase)
        builds = {phase: await project.upload("v1.0.0") for phase, project in projects.items()}
        jobs = {phase: await projects[phase].signal(build) for phase, build in builds.items()}
        await until(all_there)
        await doomed.kill()
    for phase, job in jobs.items():
        assert (await host.job(job))["phase"] == phase
    async with host.process(*LEASE):
        for phase, job in jobs.items():
            await _check_published(projects[phase], builds[phase], await host.ended(job))
            record = await host.jobs.find(job)
            assert record is not None and record.crashes == 1
            assert (record.backend_job_id or "").endswith(":2") is (host.config.redis_url is not None)


async def _check_published(project: HostedProject, build: str, job: Json) -> None:
    assert job["status"] == "completed", job
    assert sorted(job["progress"]["editions_completed"]) == ["v1.0.0", "v1.0.x", "v1.x"]
    assert (await project.build(build))["status"] == "completed"
    for slug in ("v1.0.0", "v1.x"):
        assert "v1.0.0" in await project.page(f"v/{slug}/")
        assert [entry["build"] for entry in await project.history(slug)] == [build]


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_builds_whose_worker_is_killed_at_any_moment_are_published_once(delivered: Host) -> None:
    host, chance = delivered, random.Random(1)
    await host.add_org(mode="copy")
    for number in range(10):
        projects = [await host.add_project(slug=f"guide-{number}-{n}") for n in range(4)]
        builds = [await project.upload("v1.0.0") for project in projects]
        async with host.process(*LEASE, delay=0.1) as doomed:
            jobs = [await project.signal(build) for project, build in zip(projects, builds, strict=True)]
            await asyncio.sleep(2 * chance.random())  # a build takes about a second
            await doomed.kill()
        async with host.process(*LEASE):
            for project, build, job in zip(projects, builds, jobs, strict=True):
                await _check_published(project, build, await host.ended(job))


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
