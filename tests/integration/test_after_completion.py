"""Handlers that run on after they have completed their job in a transaction of the user's own."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from unittest.mock import patch

import psycopg
import pytest
from running_workers import DEADLINE, eventually, final, working

from dutiful import Context, Dutiful, Retry, State
from dutiful.core.job import Claim
from dutiful.worker.slots import Slot, Slots

pytestmark = pytest.mark.parametrize("app_url", ["sqlite", "postgres18"], indirect=True)
ONCE = Retry(max_attempts=1)


def complete(app: Dutiful, ctx: Context, *, commit: bool = True) -> None:
    url = app.settings.database_url
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("begin immediate")
        ctx.complete_in_sync(connection, "mine")
        connection.execute("commit" if commit else "rollback")
        connection.close()
    else:
        with psycopg.connect(url) as session:
            ctx.complete_in_sync(session, "mine")
            session.commit() if commit else session.rollback()


async def counts(app: Dutiful) -> dict[tuple[str, str], int]:
    found = await (await app.client()).store.metrics.recent(timedelta(minutes=5))
    return {(one.kind, one.outcome): one.count for one in found}


@pytest.fixture
def missed() -> Iterator[list[str]]:
    """The kinds of running jobs whose leases the renewal has found gone, in order."""
    found: list[str] = []
    original = Slots.lose

    def lose(self: Slots, claim: Claim) -> bool:
        runs = original(self, claim)
        found.append(claim.kind)
        return runs

    with patch.object(Slots, "lose", lose):
        yield found


async def test_a_handler_is_not_interrupted_after_the_users_commit(app: Dutiful, missed: list[str]) -> None:
    ended: list[str] = []

    async def seen_twice(kind: str) -> bool:
        return missed.count(kind) >= 2

    @app.job(retry=ONCE)
    async def on_the_loop(ctx: Context) -> None:
        complete(app, ctx)
        await eventually(partial(seen_twice, "on_the_loop"))
        ended.append("on_the_loop")

    @app.job(retry=ONCE)
    def in_a_thread(ctx: Context) -> None:
        complete(app, ctx)
        pause = threading.Event()
        while missed.count("in_a_thread") < 2:
            pause.wait(0.02)
        ended.append("in_a_thread")

    app.configure(sqlite_driver="sqlite3")
    async with working(app):
        jobs = [await kind.enqueue() for kind in (on_the_loop, in_a_thread)]
        records = [await final(app, job) for job in jobs]
    assert [(one.state, one.result, one.crashes) for one in records] == [(State.COMPLETED, "mine", 0)] * 2
    assert sorted(ended) == ["in_a_thread", "on_the_loop"]
    assert await counts(app) == {("on_the_loop", "completed"): 1, ("in_a_thread", "completed"): 1}
    store = (await app.client()).store
    assert [await store.queries.attempts(job.id) for job in jobs] == [[], []]


@pytest.mark.parametrize(("commit", "outcome"), [(True, "completed"), (False, "failed")])
async def test_a_handler_that_ignores_its_timeout_is_counted_as_the_users_transaction_ended(
    app: Dutiful, commit: bool, outcome: str
) -> None:
    given_up = asyncio.Event()
    original = Slots.replace

    def replace(self: Slots, slot: Slot) -> Slot:
        given_up.set()
        return original(self, slot)

    @app.job(timeout="100ms", retry=ONCE)
    async def ignores(ctx: Context) -> None:
        complete(app, ctx, commit=commit)
        while not given_up.is_set():
            try:
                await given_up.wait()
            except asyncio.CancelledError:
                continue

    app.configure(sqlite_driver="sqlite3", timeout_grace="0s", heartbeat="100ms")
    with patch.object(Slots, "replace", replace):
        async with working(app):
            job = await ignores.enqueue()
            await asyncio.wait_for(given_up.wait(), DEADLINE)
            record = await final(app, job)
    assert record.state is (State.COMPLETED if commit else State.FAILED)
    assert await counts(app) == {("ignores", outcome): 1}
