"""Jobs that running jobs add: they are waited for, and a next attempt adds no second ones."""

import asyncio
from typing import Any

import pytest
from running_workers import running

from dutiful import PREVIOUS, Context, Dutiful, Fixed, Retry, State, chain, group
from dutiful.core.errors import ClaimLost
from dutiful.maintenance import runner

pytestmark = pytest.mark.req("L101")


@pytest.fixture
def leader_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader looks once, so that only ends of jobs release others."""
    monkeypatch.setattr(runner, "LEADER_POLL", 3600.0)


async def test_children_that_a_job_spawns_are_waited_for_by_what_waits_for_it(
    app: Dutiful, leader_sleeps: None
) -> None:
    seen: list[str] = []
    free = asyncio.Event()

    @app.job
    async def page(number: int) -> int:
        await free.wait()
        seen.append(f"page {number}")
        return number

    @app.job
    async def crawl(ctx: Context) -> str:
        await ctx.spawn(page.call(1), chain(page.call(2), page.call(PREVIOUS)))
        seen.append("crawled")
        return "done"

    @app.job
    async def report(ctx: Context, crawled: str) -> list[Any]:
        return [crawled, *(parent.result for parent in await ctx.parents() if parent.kind == "page")]

    async with running(app):
        flow = await chain(crawl.call(), report.call(PREVIOUS)).enqueue()
        assert await flow.jobs[0].result(30) == "done"
        assert (await flow.last.record()).state is State.BLOCKED
        free.set()
        assert await flow.result(30) == ["done", 1, 2]

    assert seen[0] == "crawled"
    assert sorted(seen[1:]) == ["page 1", "page 2", "page 2"]
    assert (await flow.progress()).states == {"completed": 5}


async def test_a_second_attempt_spawns_no_second_children_of_a_key(app: Dutiful) -> None:
    @app.job
    async def child(n: int) -> int:
        return n

    @app.job(retry=Retry(max_attempts=2, backoff=Fixed("10ms")))
    async def parent(ctx: Context) -> list[str]:
        flow = await ctx.spawn(*(child.call(n) for n in range(3)), key="children")
        if ctx.attempt == 1:
            raise ConnectionError("once more")
        return [str(job.id) for job in flow.jobs]

    async with running(app):
        flow = await chain(parent.call()).enqueue()
        assert len(await flow.result(30)) == 3
    assert (await flow.progress()).total == 4


async def test_a_second_attempt_that_finds_more_to_spawn_runs_each_child_once(app: Dutiful) -> None:
    ran: list[str] = []

    @app.job
    async def page(url: str, depth: int = 0) -> str:
        ran.append(url)
        return url

    @app.job
    async def store(page: str) -> None:
        ran.append(f"store {page}")

    @app.job
    async def report(pages: list[str]) -> None:
        ran.append(f"report {' '.join(pages)}")

    @app.job(retry=Retry(max_attempts=2, backoff=Fixed("10ms")))
    async def crawl(ctx: Context) -> None:
        first = ctx.attempt == 1
        plain = [page.call("a", depth=1), page.call("b"), page.call("b")]
        chains = [chain(page.call(url), store.call(PREVIOUS)) for url in (["c", "d"] if first else ["y", "d", "c"])]
        same = group([page.call("e"), page.call("f")], then=report.call(PREVIOUS))
        await ctx.spawn(*plain if first else [page.call("x"), *plain], *chains, same, key="pages")
        grown = group(
            [page.call(url) for url in (["g", "h"] if first else ["z", "g", "h"])], then=report.call(PREVIOUS)
        )
        await ctx.spawn(grown, key="grown")
        if first:
            raise ConnectionError("once more")

    @app.job
    async def last() -> list[str]:
        return sorted(ran)

    async with running(app):
        flow = await chain(crawl.call(), last.call()).enqueue()
        pages = ["a", "b", "b", *"cdefghxyz"]
        reports = ["report e f", "report g h", "report z g h"]
        assert await flow.result(30) == sorted([*pages, *reports, "store c", "store d", "store y"])


async def test_a_context_that_outlives_its_attempt_spawns_nothing(app: Dutiful) -> None:
    kept: list[Context] = []

    @app.job
    async def child() -> None: ...

    @app.job
    async def parent(ctx: Context) -> None:
        kept.append(ctx)

    async with running(app):
        flow = await chain(parent.call()).enqueue()
        await flow.result(30)
        with pytest.raises(ClaimLost, match="is over"):
            await kept[0].spawn(child.call())
        with pytest.raises(ClaimLost, match="is over"):
            kept[0].spawn_sync(child.call())
    assert (await flow.progress()).total == 1


async def test_a_job_enqueued_after_the_spawn_does_not_wait_for_the_children(app: Dutiful) -> None:
    spawned, hold = asyncio.Event(), asyncio.Event()

    @app.job
    async def child() -> None:
        await hold.wait()

    @app.job
    async def parent(ctx: Context) -> None:
        await ctx.spawn(child.call())
        spawned.set()

    @app.job
    async def after() -> str:
        return "after"

    async with running(app):
        job = await parent.enqueue()
        await spawned.wait()
        late = app.workflow()
        late.add(after.call(), after=job)
        assert await (await late.enqueue()).result(30) == "after"
        hold.set()


async def test_a_job_that_is_added_by_a_plain_enqueue_is_not_waited_for(app: Dutiful) -> None:
    hold = asyncio.Event()

    @app.job
    async def slow() -> None:
        await hold.wait()

    @app.job
    async def parent() -> None:
        await slow.enqueue()

    @app.job
    async def after() -> str:
        return "after"

    async with running(app):
        assert await (await chain(parent.call(), after.call()).enqueue()).result(30) == "after"
        hold.set()
