"""The documentation host: two real workers on the same editions and projects, with delays in every window."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from docverse import Host, HostedProject, Json
from docverse_races import interleavings, updates

pytest_plugins = ["docverse_fixtures"]
PAGES = ("index.html", "a.html", "z.html")


@asynccontextmanager
async def two_workers(host: Host, delay: float, log: Path) -> AsyncIterator[None]:
    """With at most three jobs each, and a delay in every window."""
    options = ("--general", "3", "--poll", "100ms", "--grace", "20s")
    async with AsyncExitStack() as stack:
        start = [host.process(*options, delay=delay, log=str(log)) for _ in range(2)]
        await asyncio.gather(*(stack.enter_async_context(one) for one in start))
        yield


class Reader:
    """Reads what the edge serves all the time, and notes what must never be seen."""

    def __init__(self, project: HostedProject) -> None:
        self._project = project
        self.wrong: list[str] = []
        self.order: dict[str, int] = {}  # of builds, by their date
        self.rolled_back = False
        self._newest = -1
        self.reads: Counter[str] = Counter()  # of whole contents, by path

    async def read(self) -> None:
        while True:
            for path in ("", "v/", "__switcher.json", "__editions/__main.json", "none"):
                answer = await self._project.host.site.get(f"/{self._project.org}/{self._project.slug}/{path}")
                self._check(path, answer.text)
            await asyncio.sleep(0)

    def _check(self, path: str, text: str) -> None:
        if path.endswith(".json") and not text.startswith(("not found", "<")):
            try:
                json.loads(text)
            except ValueError:
                self.wrong.append(f"torn JSON at {path}: {text[:20]}…{text[-20:]}")
            self.reads[path] += 1
        elif path == "" and text.startswith("<p>"):
            ours, _, rest = text.removeprefix("<p>").partition("|")
            if not rest.endswith(f"|{ours}</p>"):
                self.wrong.append(f"a torn page: {text[:20]}…{text[-20:]}")
            number = int(ours)
            if number < self._newest and not self.rolled_back:
                self.wrong.append(f"build {number} after build {self._newest}")
            self._newest = number
            self.reads[path] += 1
        elif text.startswith("<!doctype") and not text.endswith("</html>"):
            self.wrong.append(f"torn HTML at {path}: …{text[-30:]}")


async def _rounds(host: Host, log: Path, rounds: int, delay: float, seed: int) -> None:
    """Each round, builds of one branch are signalled in any order, in both modes; then the newest is what is shown."""
    chance = random.Random(seed)
    projects = []
    for org, mode in (("rubin", "pointer"), ("lsst", "copy")):
        await host.add_org(org, mode)
        projects.append(await host.add_project(org, f"{org}-guide"))
    readers = {project.slug: Reader(project) for project in projects}
    async with two_workers(host, delay, log):
        reading = [asyncio.create_task(reader.read()) for reader in readers.values()]
        for number in range(0, rounds * 3, 3):
            builds = {
                project.slug: [await project.upload("main", _pages(number + n)) for n in range(3)]
                for project in projects
            }
            signals = [(project, build) for project in projects for build in builds[project.slug]]
            chance.shuffle(signals)
            jobs = [(project, build, await project.signal(build)) for project, build in signals]
            for project, build, job in jobs:
                _check_job(await host.ended(job), build, builds[project.slug])
            for project in projects:
                await _check_shown(project, builds[project.slug][-1], number + 2)
        for task in reading:
            task.cancel()
        ends = await asyncio.gather(*reading, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 2, ends
    for reader in readers.values():
        assert {"", "__switcher.json", "__editions/__main.json"} <= set(reader.reads), reader.reads
    assert [wrong for reader in readers.values() for wrong in reader.wrong] == []
    assert interleavings(log) == []
    assert all(by > rounds for what, by in updates(log).items() if what.startswith("project")), updates(log)
    records = await host.jobs.jobs()
    assert {record.backend_job_id is not None for record in records} == {host.config.redis_url is not None}


def _pages(number: int) -> dict[str, str]:
    """Large enough that half a page would be noticed."""
    body = f"<p>{number}|{'x' * 100_000}|{number}</p>"
    return dict.fromkeys(PAGES, body) | {f"asset-{number}.css": "p {}"}


def _check_job(job: Json, build: str, builds: list[str]) -> None:
    assert job["status"] == "completed", job
    progress = job["progress"]
    assert progress["editions_completed"] == ["__main"] or [
        (skip["slug"], skip["reason"]) for skip in progress["editions_skipped"]
    ] in [[("__main", f"superseded by build {newer}")] for newer in builds[builds.index(build) + 1 :]], progress


async def _check_shown(project: HostedProject, newest: str, number: int) -> None:
    for page in PAGES:
        assert (await project.page(f"v/__main/{page}")).startswith(f"<p>{number}|")
    await project.page(f"v/__main/asset-{number - 1}.css", 404)
    shown = [
        (await project.edition("__main"))["build"],
        json.loads(await project.page("__editions/__main.json"))["build"],
    ]
    assert shown == [newest, newest]
    assert newest in await project.page("v/")
    order = [entry["build"] for entry in await project.history("__main")]
    assert order[0] == newest and len(set(order)) == len(order)


@pytest.mark.req("D49", "D50", "D51", "D53", "D54", "D56", "D57", "D62", "D63", "D66", "D68", "D69")
async def test_two_workers_never_tear_interleave_or_go_back(delivered: Host, tmp_path: Path) -> None:
    await _rounds(delivered, tmp_path / "writes.log", rounds=2, delay=0.1, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(4))
async def test_two_workers_never_tear_interleave_or_go_back_in_many_rounds(
    delivered: Host, tmp_path: Path, seed: int
) -> None:
    await _rounds(delivered, tmp_path / "writes.log", rounds=60, delay=0.2, seed=seed)
