"""What a handler is given: its context, what its own jobs inherit, and shared resources."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import process_jobs
import pytest
from running_workers import EVERYWHERE, final, working

from dutiful import Context, Dutiful, Inject, ShutdownTimeout, UsageError

everywhere = pytest.mark.parametrize("app_url", EVERYWHERE, indirect=True)
sqlite = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


@pytest.mark.req("L46")
@everywhere
async def test_a_handler_sees_its_job(app: Dutiful) -> None:
    @app.job(queue="letters")
    async def look(ctx: Context, n: int, note: str = "none") -> dict[str, Any]:
        return {
            "job_id": str(ctx.job_id),
            "public_id": ctx.public_id,
            "kind": ctx.kind,
            "queue": ctx.queue,
            "attempt": ctx.attempt,
            "max_attempts": ctx.max_attempts,
            "correlation_id": ctx.correlation_id,
            "tenant": ctx.tenant,
            "subject": dict(ctx.subject),
            "payload": dict(ctx.payload),
            "cancelled": ctx.cancelled,
            "note": note,
        }

    options = {"tenant": "acme", "correlation_id": "c-1", "subject": {"order": 42}, "max_attempts": 9}
    async with working(app):
        job = await look.options(**options).enqueue(n=1)
        assert await job.result("20s") == {
            **options,
            "job_id": str(job.id),
            "public_id": job.public_id,
            "kind": "look",
            "queue": "letters",
            "attempt": 1,
            "payload": {"n": 1},
            "cancelled": False,
            "note": "none",
        }


@pytest.mark.req("L98")
@pytest.mark.parametrize("mode", ["loop", "thread"])
@everywhere
async def test_a_job_enqueued_by_a_handler_inherits_from_it(app: Dutiful, mode: str) -> None:
    @app.job
    async def child() -> None: ...

    @app.job
    async def loop() -> list[str]:
        plain, own = await asyncio.gather(child.enqueue(), child.options(tenant="own", correlation_id="mine").enqueue())
        return [str(plain.id), str(own.id)]

    @app.job
    def thread() -> list[str]:
        plain = child.sync.enqueue()
        return [str(plain.id), str(child.sync.options(tenant="own", correlation_id="mine").enqueue().id)]

    async with working(app):
        parent = await app.enqueue(mode, tenant="acme", correlation_id="order 42")
        plain, own = [await app.find(job_id) for job_id in await parent.result("20s")]
    assert plain is not None and (plain.tenant, plain.correlation_id, plain.parent_id) == (
        "acme",
        "order 42",
        parent.id,
    )
    assert own is not None and (own.tenant, own.correlation_id, own.parent_id) == ("own", "mine", parent.id)


@sqlite
async def test_a_process_enqueues_on_its_own_account(
    app: Dutiful, app_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an app of its own, which finds the database by its settings, and knows nothing of the job it runs."""
    monkeypatch.setenv("DUTIFUL_DATABASE_URL", app_url)
    app.kinds.update(process_jobs.app.kinds)
    async with working(app):
        parent = await app.enqueue("enqueues", tenant="acme")
        child = await app.find(await parent.result("20s"))
    assert child is not None and child.kind == "loop"
    assert (child.parent_id, child.tenant, child.correlation_id) == (None, None, str(child.id))


def wants_context(ctx: Context) -> None: ...


def wants_resource(db: Any = Inject("db")) -> None: ...


@sqlite
async def test_a_process_has_no_context_to_ask_for(app: Dutiful) -> None:
    with pytest.raises(UsageError, match="no context"):
        app.job(process=True)(wants_context)


async def test_jobs_of_one_ancestor_share_its_id_as_correlation(app: Dutiful) -> None:
    @app.job
    async def step(depth: int) -> str:
        return (await step.enqueue(depth - 1)).public_id if depth else ""

    async with working(app):
        first = await step.enqueue(2)
        second = await app.find(await first.result("20s"))
        assert second is not None
        third = await app.find((await final(app, first)).result)
    assert third is not None and second.correlation_id == third.correlation_id == str(first.id)
    outside = await app.find((await step.enqueue(0)).id)
    assert outside is not None and outside.correlation_id == str(outside.id) and outside.parent_id is None


# --- resources


@pytest.mark.req("L45")
@sqlite
async def test_resources_of_all_sorts_are_made_once_and_closed_with_the_worker(app: Dutiful) -> None:
    log: list[str] = []

    @app.resource
    def plain() -> str:
        log.append("plain made")
        return "plain"

    @app.resource
    async def awaited() -> str:
        log.append("awaited made")
        return "awaited"

    @app.resource
    def generated() -> Iterator[str]:
        log.append("generated made")
        yield "generated"
        log.append("generated closed")

    @app.resource
    async def streamed() -> AsyncIterator[str]:
        log.append("streamed made")
        yield "streamed"
        log.append("streamed closed")

    @app.resource
    def unused() -> None:
        log.append("unused made")

    @app.job
    async def on_loop(
        n: int, a: str = Inject("plain"), b: str = Inject("awaited"), c: str = Inject("generated")
    ) -> list[str]:
        return [a, b, c]

    @app.job
    def in_thread(n: int, d: str = Inject("streamed"), a: str = Inject("plain")) -> list[str]:
        return [d, a]

    async with working(app):
        jobs = await on_loop.enqueue_many([{"n": 1}, {"n": 2}])
        assert [await job.result("20s") for job in jobs] == [["plain", "awaited", "generated"]] * 2
        assert await (await in_thread.enqueue(1)).result("20s") == ["streamed", "plain"]
        assert log == ["plain made", "awaited made", "generated made", "streamed made"]
    assert log[4:] == ["streamed closed", "generated closed"]


@pytest.mark.req("L45")
@sqlite
async def test_a_stop_that_interrupts_a_job_closes_resources_as_any_other_does(app: Dutiful) -> None:
    log: list[str] = []
    begun = asyncio.Event()

    @app.resource
    async def streamed() -> AsyncIterator[str]:
        yield "streamed"
        log.append("streamed closed")

    @app.resource
    def generated() -> Iterator[str]:
        yield "generated"
        log.append("generated closed")

    @app.resource
    async def wary() -> AsyncIterator[str]:
        try:
            yield "wary"
        except Exception as error:
            log.append(f"wary was given {error!r}")
        else:
            log.append("wary closed")

    @app.job
    async def endless(a: str = Inject("streamed"), b: str = Inject("generated"), c: str = Inject("wary")) -> None:
        begun.set()
        await asyncio.Event().wait()

    with pytest.raises(ShutdownTimeout, match="1 job was interrupted"):
        async with app.embedded(grace="0s"):
            await endless.enqueue()
            await asyncio.wait_for(begun.wait(), 60)
    assert log == ["wary closed", "generated closed", "streamed closed"]


@sqlite
async def test_a_resource_that_is_not_registered_stops_the_worker_before_it_starts(app: Dutiful) -> None:
    @app.job
    async def wants(db: Any = Inject("db")) -> None: ...

    with pytest.raises(UsageError, match="asks for the resource 'db'; registered are: none"):
        async with working(app):
            pass


@sqlite
async def test_a_resource_cannot_be_shared_with_a_process(app: Dutiful) -> None:
    @app.resource
    def db() -> str:
        return "db"

    app.job(process=True)(wants_resource)

    with pytest.raises(UsageError, match="process of its own"):
        async with working(app):
            pass


@sqlite
async def test_a_payload_cannot_reach_a_resource_or_the_context(app: Dutiful) -> None:
    @app.job
    async def wants(ctx: Context, n: int, db: Any = Inject("db")) -> None: ...

    with pytest.raises(UsageError, match="'db'"):
        await app.enqueue("wants", {"n": 1, "db": "mine"})
    with pytest.raises(UsageError, match="'ctx'"):
        await app.enqueue("wants", {"n": 1, "ctx": {}})
