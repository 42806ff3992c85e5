"""Real processes: a server that only enqueues, workers that run jobs and schedules, and one release after another."""

import asyncio
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import deploy_jobs
import httpx2
import pytest
from deploy_jobs import after, before
from fault_jobs import address

from dutiful import Dutiful, State
from dutiful.core.principal import Role
from dutiful.operator.explain import Why
from dutiful.store import Store
from dutiful.store.queries import JobFilter
from faults import Fleet, Process, WorkerProcess, until

# Far longer than anything here takes on a slow machine, so that no job is released or lost.
LONG_GRACE = ("--grace", "3m", "--lease", "3m", "--log-level", "warning")


@dataclass
class Site:
    """Both releases on one database, and a log of what ran."""

    store: Store
    folder: Path
    old: Fleet
    new: Fleet
    enqueued: list[UUID] = field(default_factory=list)

    def ran(self) -> Counter[UUID]:
        diary = self.folder / "diary"
        lines = diary.read_text().splitlines() if diary.exists() else []
        return Counter(UUID(line.split()[0]) for line in lines)

    async def all_ran(self) -> bool:
        return not set(self.enqueued) - set(self.ran())


@pytest.fixture
async def site(store: Store, tmp_path: Path) -> AsyncIterator[Site]:
    url, here = address(store), Path(__file__).parent

    def fleet(app: str) -> Fleet:
        folder = tmp_path / app
        folder.mkdir()
        environment = {deploy_jobs.DIARY: str(tmp_path / "diary")}
        return Fleet(f"deploy_jobs:{app}", url, folder=folder, path=here, environment=environment)

    before.configure(database_url=url)
    after.configure(database_url=url)
    async with before, after, fleet("before") as old, fleet("after") as new:
        yield Site(store, tmp_path, old, new)


@asynccontextmanager
async def enqueueing(site: Site, app: Dutiful, **payloads: dict[str, Any]) -> AsyncIterator[Callable[[int], Any]]:
    """A client that enqueues one job of each kind again and again while the block runs; call it to wait for more."""
    count = 0

    async def go_on() -> None:
        nonlocal count
        while True:
            for kind, payload in payloads.items():
                site.enqueued.append((await app.enqueue(kind, payload)).id)
            count += 1
            await asyncio.sleep(0.02)

    async def more(rounds: int) -> None:
        goal = count + rounds

        async def reached() -> bool:
            return count >= goal or client.done()

        await until(reached, "the client has enqueued more")

    client = asyncio.create_task(go_on())
    try:
        yield more
    finally:
        client.cancel()
        with pytest.raises(asyncio.CancelledError):  # or its own error
            await client


async def ends(worker: WorkerProcess) -> None:
    worker.signal(signal.SIGTERM)
    assert await worker.ended(within=180) == 0, worker.output


@pytest.mark.req("L6", "L8")
async def test_two_releases_work_side_by_side_and_no_job_is_lost_or_stranded(site: Site) -> None:
    both: dict[str, dict[str, Any]] = {"keep": {}, "bill": {"account": 7}}
    old = [await site.old.start(*LONG_GRACE).ready(site.store) for _ in range(2)]
    async with enqueueing(site, before, **both, retired={}) as first:
        await first(5)
    async with enqueueing(site, before, **both) as old_client:  # without the kind that is dropped
        new = [site.new.start(*LONG_GRACE) for _ in range(2)]
        async with enqueueing(site, after, **both, fresh={}) as new_client:
            for worker in new:
                await worker.ready(site.store)
            await ends(old[0])
            await new_client(5)
            await until(lambda: dry(site.store, "retired"), "what is dropped has run dry")
            await ends(old[1])
            await old_client(5)
    stranded = await before.enqueue("retired")  # by a client of the old release
    why = await (await after.operator("ada")).jobs.explain(stranded.id)
    assert why.code is Why.KIND_UNKNOWN and "deploy the code" in (why.remedy or ""), "it is explained"
    assert await stranded.cancel("it is gone")
    async with enqueueing(site, after, bill={"account": 7, "currency": "CHF", "payload_version": "2.0"}) as newest:
        await newest(5)

    await until(site.all_ran, "every job has run")
    await until(lambda: settled(site.store, site.enqueued), "every job is over")
    for worker in new:
        await ends(worker)
    ran = site.ran()
    assert {job: ran[job] for job in site.enqueued} == dict.fromkeys(site.enqueued, 1), "each once, and none twice"
    for state in (State.FAILED, State.READY, State.BLOCKED, State.RUNNING):
        assert len(await site.store.queries.jobs(JobFilter(state=state))) == 0, state
    assert await site.store.queries.check_places() == []


@pytest.mark.req("L68", "L69", "L71", "L72")
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_a_server_enqueues_and_runs_nothing_and_a_worker_runs_jobs_and_schedules(site: Site) -> None:
    _, secret = await (await after.operator("root")).tokens.create("ci", Role.ADMIN)
    server = site.new.run(sys.executable, "-m", "dutiful.cli", "server", "deploy_jobs:after", "--port", "0")
    api = await until(lambda: listening(server), "the server listens")
    async with httpx2.AsyncClient(timeout=120, headers={"authorization": f"Bearer {secret}"}) as http:
        answer = await http.post(f"{api}/api/jobs/admin/jobs/", json={"kind": "keep", "payload": {}})
        assert answer.status_code == 201, answer.text
        job = await after.find(answer.json()["job_id"])
        workers = (await http.get(f"{api}/api/jobs/admin/workers/")).json()["workers"]

    assert job is not None and job.state is State.READY
    assert workers == [] and await site.store.schedules.all() == [], "there is no worker"
    site.enqueued.append(job.id)
    site.new.start(*LONG_GRACE)
    await until(site.all_ran, "the worker runs what the server has enqueued")

    async def ticked() -> bool:
        return " after tick\n" in (site.folder / "diary").read_text()

    await until(ticked, "the worker makes periodic jobs, and runs them")
    server.signal(signal.SIGTERM)
    assert await server.ended() == 0


async def listening(server: Process) -> str | None:
    assert server.running, server.output
    found = re.search(r"running on (http://[\d.]+:\d+)", server.output)
    return found[1] if found else None


async def dry(store: Store, kind: str) -> bool:
    live = [state for state in State if not state.final]
    return not [job for state in live for job in await store.queries.jobs(JobFilter(state=state, kind=kind))]


async def settled(store: Store, jobs: list[UUID]) -> bool:
    return len(await store.queries.outcomes(jobs)) == len(jobs)
