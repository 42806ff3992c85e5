"""A handler that completes its job itself does not hide failed items and phases."""

from typing import Any

import asyncpg
import pytest
from running_workers import final, working
from test_pipelines import phases_of, states
from test_within_job import Notes, everywhere, notes, postgres

from dutiful import Context, Dutiful, ItemsFailed, Retry, State

ONCE = Retry(max_attempts=1)
__all__ = ["notes"]


async def fail_bad(name: str) -> None:
    if name.startswith("bad"):
        raise ValueError("torn HTML")


@everywhere
@pytest.mark.parametrize("late", [False, True])
async def test_a_transaction_does_not_hide_items_that_failed(app: Dutiful, notes: Notes, late: bool) -> None:
    @app.job(retry=ONCE)
    async def write(ctx: Context, names: list[str]) -> None:
        if not late:
            await ctx.each(names, fail_bad)
        async with ctx.transaction() as tx:
            await tx.execute(notes.insert, names[0])
            tx.complete("wrote")
            if late:
                await ctx.each(names, fail_bad)

    async with working(app):
        some = await final(app, await write.enqueue(["good", "bad"]))
        none = await final(app, await write.enqueue(["bad", "bad too"]))
    torn = {"type": "ValueError", "message": "torn HTML"}
    assert (some.state, some.result) == (State.COMPLETED_WITH_ERRORS, "wrote")
    assert some.errors == [{**torn, "item": "bad"}]
    assert none.state is State.FAILED and none.errors is not None
    assert none.errors[0]["type"] == ItemsFailed.__name__
    assert none.errors[1:] == [{**torn, "item": "bad"}, {**torn, "item": "bad too"}]
    assert notes.names() == ["good"]


@everywhere
async def test_a_transaction_does_not_hide_a_phase_that_failed(app: Dutiful, notes: Notes) -> None:
    publish = app.pipeline("publish", retry=ONCE)

    @publish.phase(optional=True)
    async def thumbnails() -> None:
        raise ValueError("no picture")

    @publish.phase
    async def upload(ctx: Context) -> None:
        await ctx.each(["good", "bad"], fail_bad)
        async with ctx.transaction() as tx:
            await tx.execute(notes.insert, "uploaded")

    async with working(app):
        job: Any = await publish.enqueue()
        record = await final(app, job)
    assert record.state is State.COMPLETED_WITH_ERRORS and record.errors is not None
    assert [(error["type"], error["phase"]) for error in record.errors] == [
        ("ValueError", "thumbnails"),
        ("ValueError", "upload"),
    ]
    assert states(await phases_of(app, job)) == {"thumbnails": "failed", "upload": "completed"}
    assert record.progress is not None and record.progress.overall == 100 and notes.names() == ["uploaded"]


@postgres
async def test_a_users_own_transaction_does_not_hide_items_that_failed(
    app: Dutiful, app_url: str, notes: Notes
) -> None:
    @app.job(retry=ONCE)
    async def write(ctx: Context, names: list[str]) -> None:
        await ctx.each(names, fail_bad)
        connection = await asyncpg.connect(app_url)
        try:
            async with connection.transaction():
                await connection.execute(notes.insert, names[0])
                await ctx.complete_in(connection, "wrote")
        finally:
            await connection.close()

    async with working(app):
        some = await final(app, await write.enqueue(["good", "bad"]))
        none = await final(app, await write.enqueue(["bad"]))
    assert (some.state, some.result) == (State.COMPLETED_WITH_ERRORS, "wrote")
    assert none.state is State.FAILED and notes.names() == ["good"]
