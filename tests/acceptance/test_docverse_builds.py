"""The documentation host: a build is uploaded, processed, and served at the edge."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from docverse import CleanDocverse, Host, hosting, installed

from databases import Postgres


@pytest.fixture(scope="module")
def clean(postgres18: Postgres) -> Iterator[CleanDocverse]:
    with installed(postgres18) as clean:
        yield clean


@pytest.fixture
async def host(clean: CleanDocverse, tmp_path: Path) -> AsyncIterator[Host]:
    async with hosting(clean.reset(), tmp_path) as host:
        yield host


@pytest.mark.parametrize("mode", ["pointer", "copy"])
async def test_a_build_is_served_by_its_edition(host: Host, mode: str) -> None:
    await host.add_org(mode=mode)
    project = await host.add_project()
    async with host.working():
        build, job = await project.publish("main", {"index.html": "<h1>Hello</h1>", "more/a.html": "more"})
        assert (job["status"], job["phase"], job["errors"]) == ("completed", "dashboard", None)
        assert await project.page() == "<h1>Hello</h1>"
        assert await project.page("v/__main/more/a.html") == "more"
        assert build in await project.page("v/")
        second, job = await project.publish("main", {"index.html": "<h1>Again</h1>"})
        assert await project.page() == "<h1>Again</h1>"
        await project.page("v/__main/more/a.html", 404)
        assert (await project.build(second))["status"] == "completed"
