"""History of events: read for the tenant that is asked for, in pages, and by few streams at a time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from event_jobs import of_type, reaching, read_until
from running_workers import eventually

from dutiful import Dutiful
from dutiful.client.client import Client
from dutiful.core import ids
from dutiful.events import history
from dutiful.events.history import History, HistoryTurns
from dutiful.store.events import JobChanges
from dutiful.stores.postgres import PostgresStore
from dutiful.stores.postgres.engine.sql import statements
from suite.builders import claim, complete, new_job

LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)
READ = "select coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0) from pg_stat_xact_user_tables"


class HeldHistory:
    """A store of events that does not answer the history of one tenant until it is let go."""

    def __init__(self, store: Any, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._go = asyncio.Event()
        self.reading: Counter[str | None] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def is_holding(self) -> bool:
        return self.reading[self._tenant] > 0

    def let_go(self) -> None:
        self._go.set()

    async def changes_since(self, since: datetime | None, limit: int, **more: Any) -> JobChanges:
        if since is not None and since.year < 2000:
            self.reading[more.get("tenant")] += 1
            if more.get("tenant") == self._tenant:
                await self._go.wait()
        found: JobChanges = await self._store.changes_since(since, limit, **more)
        return found


@asynccontextmanager
async def holding(client: Client, tenant: str) -> AsyncIterator[HeldHistory]:
    held = HeldHistory(client.store.events, tenant)
    client.watcher._store = held
    try:
        yield held
    finally:
        held.let_go()


async def test_the_streams_of_one_tenant_do_not_keep_history_from_another(app: Dutiful) -> None:
    @app.job
    async def work(n: int) -> None: ...

    for n in range(10):
        await work.options(tenant="acme" if n % 2 else "globex").enqueue(n)

    async def read_all() -> int:
        async with app.events(tenant="acme", since=LONG_AGO) as stream:
            return len(await read_until(stream, reaching(5, of_type("enqueued")), 60))

    client = await app.client()
    async with holding(client, "acme") as held, asyncio.timeout(120):
        reading = [asyncio.create_task(read_all()) for _ in range(100)]
        await eventually(held.is_holding)
        async with app.events(tenant="globex", since=LONG_AGO) as theirs:
            past = await read_until(theirs, reaching(5, of_type("enqueued")))
            job = await work.options(tenant="globex").enqueue(10)
            items = await read_until(theirs, of_type("enqueued"))

        assert {item.tenant for item in [*past, *items]} == {"globex"}
        assert items[-1].job_id == job.id
        assert len(client.watcher.streams) == 100
        assert held.reading["acme"] == 1, "they read one after another"
        assert set(held.reading) == {"acme", "globex"}, "no one session reads the history of all tenants"
        held.let_go()
        assert set(await asyncio.gather(*reading)) == {5}, "and each is served in the end"


async def test_a_page_of_history_has_no_large_results_in_memory_and_loses_no_event(app: Dutiful) -> None:
    store = (await app.client()).store
    made: dict[UUID, str] = {}
    for n in range(60):  # of which the first have large results
        job = new_job(correlation_id=str(n))
        await store.jobs.insert([job])
        (claimed,) = await claim(store, limit=1)
        made[job.id] = "x" * (100_000 if n < 40 else 10)
        await complete(store, claimed, result=f'"{made[job.id]}"')

    reader = History(store.events, LONG_AGO, HistoryTurns(1))
    held = 0
    while (page := await reader.page()) is not None:
        held += sum(len(event.data["result"]) for event in page if isinstance(event.data.get("result"), str))
    assert held == 20 * 10, "of 4 MB"

    async with app.events(since=LONG_AGO, types=["completed"]) as stream:
        events: list[Any] = [await anext(stream) for _ in made]
    assert {event.job_id: event.data["result"] for event in events} == made, "each comes, with its result"


async def test_a_page_of_history_has_few_results_in_memory_also_of_those_that_could_wait(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "PAGE_BYTES", 50_000)
    store = (await app.client()).store
    jobs = [new_job() for _ in range(50)]
    await store.jobs.insert(jobs)
    text = "x" * 5_000
    for claimed in await claim(store, limit=50):
        await complete(store, claimed, result=f'"{text}"')

    page = await History(store.events, LONG_AGO, HistoryTurns(1)).page()
    held = [event.data["result"] for event in page or () if event.type == "completed"]
    assert len(held) == 50 and sum(len(one) for one in held if isinstance(one, str)) <= 50_000
    async with app.events(since=LONG_AGO, types=["completed"]) as stream:
        events: list[Any] = [await anext(stream) for _ in jobs]
    assert [event.data["result"] for event in events] == [text] * 50


async def test_a_page_of_history_touches_few_rows_however_many_there_are(pg18_url: str) -> None:
    """200,000 jobs of a day, half of them in one minute; and what a reader of all time is to pay for a page."""
    store = PostgresStore(pg18_url)
    await store.migrate()
    await store.open()
    connection = await asyncpg.connect(pg18_url)
    await connection.execute(
        """
        insert into dutiful.job (id, created_at, kind, queue, payload, priority, max_attempts, tenant)
        select dutiful.new_id(at), at, 'work', 'default', '{}', 100, 5, case when n % 100 = 0 then 'acme' end
        from (select n, timestamptz '2024-01-01' + case when n % 2 = 0 then n * interval '0.6 s'
                                                        else interval '12 h' + n * interval '0.3 ms' end as at
              from generate_series(1, 200000) n order by 2) made
        """
    )
    await connection.execute(
        """
        insert into dutiful.finished (job_id, claim_id, state, attempt, crashes, claimed_at, finished_at)
        select id, 1, 'completed', 1, 0, created_at, created_at + interval '1 h' from dutiful.job order by created_at
        """
    )
    await connection.execute("vacuum dutiful.finished")
    await connection.close()
    connection = await asyncpg.connect(pg18_url)  # whose counters begin at zero
    for since in (LONG_AGO, datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 12, tzinfo=UTC)):
        async with connection.transaction():
            before = await connection.fetchval(READ)
            await connection.fetch(statements("dutiful")["changes_since"], since, ids.floor_at(since), 501, None)
            assert await connection.fetchval(READ) - before < 100_000, "of 400,000 rows"

    found: set[UUID] = set()
    since, more, calls = LONG_AGO, True, 0
    while more:
        page = await store.events.changes_since(since, 500, tenant="acme")
        since, more, calls = page.until, page.more, calls + 1
        found |= {change.job_id for change in page.changes}
    wanted = await connection.fetch("select id from dutiful.job where tenant = 'acme'")
    assert found == {row[0] for row in wanted}
    assert calls < 1_000
    await connection.close()
    await store.close()
