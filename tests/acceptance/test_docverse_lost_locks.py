"""The documentation host: a job that was paused for so long that it has lost its lock, and goes on."""

import asyncio
from collections.abc import Awaitable

import pytest
from docverse import Host, HostedProject
from docverse_parts import Held, PlainJob, watched

from examples.docverse.factory import Docverse
from examples.docverse.ports import Pointer
from examples.docverse.records import Build, Edition, Project
from examples.docverse.services.deletion import DeletionService
from examples.docverse.services.editions import EditionService, LockLost

pytest_plugins = ["docverse_fixtures"]


@pytest.fixture
async def project(host: Host) -> HostedProject:
    await host.add_org()
    return await host.add_project()


@pytest.mark.req("D50", "D63", "D84")
@pytest.mark.parametrize("window", [("point", "__main.json"), ("purge", "v/__main")], ids=lambda held: str(held[0]))
async def test_it_publishes_no_newer_build_over_a_rollback(
    host: Host, project: HostedProject, window: tuple[str, str]
) -> None:
    older, newer = [await project.upload("main", {"index.html": text}) for text in ("older", "newer")]
    edition, first, owner = await _rows(host.services, project, older)
    _, second, _ = await _rows(host.services, project, newer)
    await _editions(host.services).update(edition, first, owner, PlainJob())
    held = Held(*window)
    async with watched(held)(host.config, lambda connection: None) as services:
        paused = asyncio.create_task(_lost(_editions(services).update(edition, second, owner, PlainJob())))
        await held.reached.wait()
        assert await _editions(host.services).update(edition, first, owner, PlainJob(), assigned=True) is False
        held.released.set()
        await paused
    assert await project.page() == "older"
    assert (await project.edition("__main"))["build"] == older
    assert [entry["build"] for entry in await project.history("__main")] == [older] * 2


async def test_it_points_to_nothing_what_was_deleted_and_made_again(host: Host, project: HostedProject) -> None:
    build = await project.upload("main")
    edition, first, owner = await _rows(host.services, project, build)
    held = Held("point", "__main.json")
    async with watched(held)(host.config, lambda connection: None) as services:
        paused = asyncio.create_task(_lost(_editions(services).update(edition, first, owner, PlainJob())))
        await held.reached.wait()
        current, _, _ = await _rows(host.services, project, build)
        await _deletion(host.services).delete_edition(current, owner, "draft_inactivity", PlainJob())
        held.released.set()
        await paused
    await project.page(expected=404)
    again = await host.services.hosting.add_edition(owner, "__main", "Again", None)
    await _editions(host.services).update(again, first, owner, PlainJob(), assigned=True)
    assert "main" in await project.page()


async def test_it_deletes_nothing_that_was_published_meanwhile(host: Host, project: HostedProject) -> None:
    build = await project.upload("main")
    edition, first, owner = await _rows(host.services, project, build)
    held = Held("unpoint", "__main.json")
    async with watched(held)(host.config, lambda connection: None) as services:
        deletion = _deletion(services).delete_edition(edition, owner, "draft_inactivity", PlainJob())
        paused = asyncio.create_task(_lost(deletion))
        await held.reached.wait()
        await _editions(host.services).update(edition, first, owner, PlainJob())
        held.released.set()
        await paused
        with pytest.raises(LockLost):  # it read the edition before
            await _deletion(services).delete_edition(edition, owner, "draft_inactivity", PlainJob())
    assert "main" in await project.page() and (await project.edition("__main"))["build"] == build


@pytest.mark.req("D50", "D84")
async def test_the_edge_refuses_a_writer_whose_number_is_lower(host: Host, project: HostedProject) -> None:
    builds = [await project.upload("main", {"index.html": text}) for text in ("one", "two")]
    pointers = []
    for build in builds:
        _, row, owner = await _rows(host.services, project, build)
        pointers.append(Pointer(row.public_id, row.object_prefix))
    edge, key = await host.services.edges.of(owner.org), "rubin/guide/__main.json"
    assert await edge.point(key, pointers[1], 5)
    assert not await edge.point(key, pointers[0], 4) and not await edge.unpoint(key, 4)
    assert await project.page() == "two"
    assert await edge.point(key, pointers[0], 5), "the same writer may repeat itself"
    assert await edge.unpoint(key, 6) and not await edge.point(key, pointers[1], 5)
    await edge.purge("guide/v/__main")
    await project.page(expected=404)


async def _lost(work: Awaitable[object]) -> None:
    with pytest.raises(LockLost):
        await work


def _editions(services: Docverse) -> EditionService:
    return services.build_processing._editions


def _deletion(services: Docverse) -> DeletionService:
    return services.lifecycle._deletion


async def _rows(services: Docverse, project: HostedProject, build: str) -> tuple[Edition, Build, Project]:
    owner = await services.hosting.project(project.org, project.slug)
    return await services.hosting.edition(owner, "__main"), await services.hosting.build(owner, build), owner
