"""Any role that may connect can send NOTIFY: a hint is never more than a reason to look."""

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import pytest
from running_workers import final, working

from dutiful import Dutiful, State
from dutiful.client.client import Client
from dutiful.core.job import Scope, Unique
from dutiful.delivery.base import EVERYWHERE, MOST_LEVELS, Hints
from dutiful.delivery.postgres import read_hint
from dutiful.store.claims import ClaimRequest
from dutiful.worker.lanes.fetcher import MOST_HINTED
from servers import PostgresServer
from suite.builders import new_job
from tenanted import opened

HOSTILE = {
    "a priority beyond int": json.dumps([["default", 99_999_999_999]]),
    "a priority below int": json.dumps([["default", -99_999_999_999]]),
    "a huge float": '[["default", 1e308]]',
    "a fraction": '[["default", 1.5]]',
    "a NUL": '[["a\\u0000b", 1]]',
    "a lone surrogate": '[["\\ud800", 1]]',
    "open brackets": "[" * 3_000,
    "nested brackets": "[" * 3_000 + "]" * 3_000,
    "a long name": json.dumps([["x" * 5_000, 1]]),
    "an empty name": json.dumps([["", 1]]),
    "an object": json.dumps({"default": 100}),
    "a boolean": json.dumps([["default", True]]),
    "a text as priority": json.dumps([["default", "100"]]),
    "three fields": json.dumps([["default", 100, 1]]),
    "nothing": "null",
    "no JSON": "wake up",
}


@pytest.fixture
async def stranger(pg18_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of a role that may connect and nothing else."""
    owner = await asyncpg.connect(pg18_url)
    database = await owner.fetchval("select current_database()")
    await owner.execute(
        "do $$ begin if not exists (select from pg_roles where rolname = 'stranger') "
        "then create role stranger login password 'x'; end if; end $$"
    )
    await owner.execute(f'grant connect on database "{database}" to stranger')
    connection = await asyncpg.connect(pg18_url, user="stranger", password="x")
    yield connection
    await connection.close()
    await owner.execute(f'revoke connect on database "{database}" from stranger')
    await owner.close()


class CountedClaims:
    """The store itself; keeps the largest number of queue levels that a claim named."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._claims = store.claims
        self.most = 0

    @property
    def claims(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store if hasattr(self._store, name) else self._claims, name)

    async def claim(self, ask: ClaimRequest, **options: Any) -> Any:
        self.most = max(self.most, len(ask.levels))
        return await self._claims.claim(ask, **options)


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_hint_of_ours_means_any_queue(payload: str) -> None:
    assert read_hint(payload) == EVERYWHERE


def test_a_hint_of_ours_names_its_queue_levels() -> None:
    assert read_hint('[["default",100],["mail",-5]]') == {("default", 100), ("mail", -5)}


async def test_a_flood_of_hints_is_one_hint() -> None:
    hints = Hints()
    for number in range(10 * MOST_LEVELS):
        hints.put(frozenset({(f"invented-{number}", 1)}))
    assert await hints.next() == EVERYWHERE
    hints.put(frozenset({("default", 1)}))
    assert await hints.next() == {("default", 1)}


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_hostile_hints_stop_no_claim(
    app: Dutiful, stranger: asyncpg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    async def work() -> None: ...

    async with working(app):
        for payload in HOSTILE.values():
            await stranger.execute("select pg_notify('dutiful', $1)", payload)
            assert (await final(app, await work.enqueue())).state is State.COMPLETED
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_invented_queues_do_not_lengthen_claims(app: Dutiful, stranger: asyncpg.Connection) -> None:
    @app.job
    async def work() -> None: ...

    async with app.opened() as client:
        store = CountedClaims(client.store)
        async with working(app, Client(store, client.delivery)):
            for number in range(300):
                invented = [[f"invented-{number}-{n}", n] for n in range(30)]
                await stranger.execute("select pg_notify('dutiful', $1)", json.dumps(invented))
                if number % 30 == 0:
                    assert (await final(app, await work.enqueue())).state is State.COMPLETED
            assert (await final(app, await work.enqueue())).state is State.COMPLETED
    assert 0 < store.most <= MOST_HINTED + 1


async def test_a_full_queue_of_notifications_refuses_nothing() -> None:
    """One role listens and never reads, another fills the queue: a job counts more than its hint."""
    with PostgresServer(18, settings={"max_notify_queue_pages": "64"}) as server:
        app = Dutiful(server.dsn())
        await app.make_store().migrate()
        server.run_sql("create role stranger login")

        @app.job
        async def work() -> None: ...

        reader, writer = [await asyncpg.connect(server.dsn(), user="stranger") for _ in range(2)]
        await reader.execute("listen junk")
        await reader.execute("begin")
        await reader.fetch("select 1")
        with pytest.raises(asyncpg.ProgramLimitExceededError):
            for _ in range(1_000):
                await writer.execute("select pg_notify('junk', repeat('x', 7900) || g) from generate_series(1, 20) g")
        stored = 0
        async with app.opened() as client:
            keyed = msgspec.structs.replace(new_job(kind="work"), unique=Unique("key", Scope.ACTIVE))
            for jobs in ([new_job(kind="work")], [new_job(kind="work"), new_job(kind="work")], [keyed]):
                await client.store.jobs.insert(jobs, hint=EVERYWHERE)
                stored += len(jobs)
            users = await asyncpg.connect(server.dsn())
            try:
                for statement in (
                    "select dutiful.enqueue('work')",
                    "select dutiful.enqueue('work', p_unique => 'another')",
                    "select dutiful.send_event('paid', '1')",
                ):
                    await users.execute(statement)
                stored += 2
                async with users.transaction():
                    await work.options(within=users).enqueue()
                    stored += 1
                # What a session in SQL does that works without a worker in Python.
                await users.execute("select dutiful.enqueue('work', p_delay => '1 ms')")
                stored += 1
                await users.execute("update dutiful.scheduled set run_at = clock_timestamp() - interval '1 minute'")
                assert await users.fetchval("select promoted from dutiful.maintain_jobs(array['work'])") == 1
            finally:
                await users.close()
            assert server.run_sql("select count(*) from dutiful.ready") == str(stored)
            worries = (await client.store.queries.health())["worries"]
        assert [f"process {reader.get_server_pid()} of role stranger" in worry for worry in worries] == [True]
        # A role that sees its own transactions alone is told of none: it may be any other's.
        server.run_sql("grant usage on schema dutiful to stranger")
        server.run_sql("grant select on all tables in schema dutiful to stranger")
        async with opened(server.dsn().replace("postgres@", "stranger@"), "dutiful") as limited:
            worries = (await limited.queries.health())["worries"]
        assert ["process" in worry for worry in worries] == [False]
        await reader.close()
        await writer.close()
