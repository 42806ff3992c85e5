"""Named locks as handlers in threads take them, with plain `with`."""

import asyncio
import time

import pytest
from lock_jobs import Room, until_locks
from running_workers import eventually, final, working
from test_locks import ONCE, SOON, connections_that_stay_open, sqlite

from dutiful import Context, Dutiful, State

pytestmark = pytest.mark.usefixtures(connections_that_stay_open.__name__)


async def test_blocking_handlers_take_locks_with_plain_with(app: Dutiful) -> None:
    room = Room()

    @app.job(retry=ONCE)
    def block(ctx: Context, n: int) -> None:
        with ctx.lock("edition", 1), ctx.lock("page", n):
            room.inside += 1
            room.peak = max(room.peak, room.inside)
            time.sleep(0.005)
            room.inside -= 1

    @app.job(retry=ONCE)
    async def update(ctx: Context, n: int) -> None:
        async with ctx.lock("edition", 1), room.guest(n):
            await asyncio.sleep(0.005)

    async with working(app):
        jobs = [*await block.enqueue_many({"n": n} for n in range(4)), *await update.enqueue_many([{"n": 1}, {"n": 2}])]
        assert [(await final(app, job)).state for job in jobs] == [State.COMPLETED] * 6
        await until_locks(app.settings.database_url, 0, 0)

    assert room.peak == 1


@pytest.mark.req("D55")
async def test_a_thread_that_is_stopped_frees_the_lock_it_holds_or_waits_for(app: Dutiful) -> None:
    room, steps = Room(), []

    @app.job(retry=ONCE)
    def block(ctx: Context) -> None:
        try:
            steps.append("asked")
            with ctx.lock("edition", 1):
                steps.append("in")
                while not room.open.is_set():
                    time.sleep(0.01)
        finally:
            steps.append("out")

    async with working(app):
        holding = await block.enqueue()
        await until_locks(app.settings.database_url, 1, 0)
        waiting = await block.enqueue()
        await eventually(lambda: asyncio.sleep(0, steps == ["asked", "in", "asked"]))
        assert await waiting.cancel()
        assert (await final(app, waiting)).state is State.CANCELLED
        assert await holding.cancel()
        assert (await final(app, holding)).state is State.CANCELLED
        await until_locks(app.settings.database_url, 0, 0)
        room.open.set()
        await (await block.enqueue()).result(SOON)


@pytest.mark.req("D55")
async def test_what_a_thread_could_not_free_is_freed_when_its_attempt_ends(app: Dutiful) -> None:
    @app.job
    def block(ctx: Context) -> None:
        ctx.lock("edition", 1).__enter__()  # as if it had been interrupted on the way out

    async with working(app):
        for _ in range(2):
            await (await block.enqueue()).result(SOON)
        await until_locks(app.settings.database_url, 0, 0)


@sqlite
@pytest.mark.req("D55")
async def test_what_a_phase_could_not_free_is_free_for_the_next_one(app: Dutiful) -> None:
    publish = app.pipeline("publish", retry=ONCE)

    @publish.phase
    def one(ctx: Context) -> None:
        ctx.lock("edition", 1).__enter__()  # as if it had been interrupted on the way out

    @publish.phase
    async def two(ctx: Context) -> str:
        async with ctx.lock("edition", 1):
            return "got it"

    async with working(app):
        assert await (await publish.enqueue()).result(SOON) == "got it"


@sqlite
async def test_the_wrong_form_is_refused(app: Dutiful) -> None:
    @app.job(retry=ONCE)
    async def on_loop(ctx: Context) -> None:
        with ctx.lock("edition", 1):
            pass

    @app.job(retry=ONCE)
    def in_thread(ctx: Context) -> None:
        async def inner() -> None:
            async with ctx.lock("edition", 1):
                pass

        asyncio.run(inner())

    async with working(app):
        for kind, remedy in ((on_loop, "use `async with`"), (in_thread, "use plain `with`")):
            record = await final(app, await kind.enqueue())
            assert record.errors is not None and record.errors[0]["type"] == "UsageError"
            assert remedy in record.errors[0]["message"]
