"""Jobs enqueued inside the user's own Postgres transaction, whatever the driver."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import asyncpg
import django.db
import psycopg
import pytest
import sqlalchemy
from django.db import transaction as django_transaction
from drivers import ASYNC, BLOCKING, dialect, django_connection, open_transaction, open_transaction_sync
from running_workers import state, working
from sqlalchemy.ext.asyncio import create_async_engine

from dutiful import Dutiful, OnConflict, State, Unique, UniqueConflict, UsageError
from dutiful.kind import Kind

postgres = pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)


def and_through_a_pooler(drivers: list[str]) -> pytest.MarkDecorator:
    pairs = [("postgres18", driver) for driver in drivers] + [("pgbouncer", drivers[0]), ("pgbouncer", drivers[-1])]
    return pytest.mark.parametrize(("app_url", "driver"), pairs, indirect=["app_url"])


@pytest.fixture
def orders(app_url: str) -> Iterator["Orders"]:
    """A table of the user's own."""
    table = Orders(app_url)
    table.run("create table if not exists orders (name text); truncate orders")
    yield table
    table.run("drop table orders")


class Orders:
    def __init__(self, url: str) -> None:
        self._url = url

    def run(self, statement: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(statement)

    def names(self) -> list[str]:
        with psycopg.connect(self._url) as connection:
            return [name for (name,) in connection.execute("select name from orders order by name")]


@pytest.fixture
def bill(app: Dutiful) -> Kind[[str], str]:
    @app.job
    async def bill(order: str) -> str:
        return f"billed {order}"

    return bill


INSERT = "insert into orders values ('{}')"


# --- async


@postgres
async def test_a_connection_with_codecs_of_its_own_stores_the_job_all_the_same(
    app: Dutiful, bill: Kind[[str], str], app_url: str
) -> None:
    connection = await asyncpg.connect(app_url)
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    job = await bill.options(within=connection, subject={"order": 7}).enqueue("kept")
    await connection.close()
    record = await app.find(job.id)
    assert record is not None and (record.payload, record.subject) == ({"order": "kept"}, {"order": 7})


@and_through_a_pooler(ASYNC)
async def test_the_users_commit_stores_the_job_and_a_rollback_takes_it_back(
    app: Dutiful, bill: Kind[[str], str], orders: Orders, app_url: str, driver: str
) -> None:
    async with open_transaction(driver, app_url) as held:
        await held.execute(INSERT.format("kept"))
        kept = await bill.options(within=held.within, tenant="acme").enqueue("kept")
        assert kept.created and await app.find(kept.id) is None
        await held.commit()
    async with open_transaction(driver, app_url) as held:
        await held.execute(INSERT.format("dropped"))
        dropped = await bill.options(within=held.within).enqueue("dropped")
        await held.rollback()
    record = await app.find(kept.id)
    assert record is not None and (record.state, record.payload, record.tenant) == (
        State.READY,
        {"order": "kept"},
        "acme",
    )
    assert await app.find(dropped.id) is None and orders.names() == ["kept"]


@pytest.mark.parametrize("driver", ASYNC)
@postgres
async def test_a_unique_conflict_leaves_the_users_transaction_usable(
    app: Dutiful, bill: Kind[[str], str], orders: Orders, app_url: str, driver: str
) -> None:
    first = await bill.options(unique="order 1").enqueue("1")
    async with open_transaction(driver, app_url) as held:
        refuse = bill.options(within=held.within, unique=Unique("order 1", on_conflict=OnConflict.REJECT))
        with pytest.raises(UniqueConflict) as caught:
            await refuse.enqueue("1")
        same = await bill.options(within=held.within, unique="order 1").enqueue("1")
        many = await bill.options(within=held.within).enqueue_many([{"order": "2"}, {"order": "3"}])
        await held.execute(INSERT.format("after"))
        await held.commit()
    assert caught.value.existing == first.id == same.id and not same.created
    assert [await state(app, job) for job in many] == [State.READY] * 2
    assert orders.names() == ["after"]


@postgres
async def test_a_worker_is_notified_of_the_job_when_the_user_commits(
    app: Dutiful, bill: Kind[[str], str], app_url: str
) -> None:
    app.configure(poll="1h")
    async with working(app), open_transaction("asyncpg", app_url) as held:
        await (await bill.enqueue("warm")).result("20s")
        job = await bill.options(within=held.within, priority=3).enqueue("42")
        await held.commit()
        assert await job.result("20s") == "billed 42"


@postgres
async def test_a_hint_in_the_users_transaction_can_be_left_out(
    app: Dutiful, bill: Kind[[str], str], app_url: str
) -> None:
    app.configure(notify_in_transaction=False)
    received: list[str] = []
    listener = await asyncpg.connect(app_url)
    await listener.add_listener("dutiful", lambda *args: received.append(args[3]))
    async with open_transaction("asyncpg", app_url) as held:
        await bill.options(within=held.within).enqueue("quiet")
        await held.commit()
    await listener.execute("notify dutiful, 'last'")
    await listener.execute("select 1")
    await listener.close()
    assert received == ["last"]


# --- blocking


@and_through_a_pooler(BLOCKING)
def test_the_users_blocking_commit_stores_the_job_and_a_rollback_takes_it_back(
    bill: Kind[[str], str], app: Dutiful, orders: Orders, app_url: str, driver: str
) -> None:
    with open_transaction_sync(driver, app_url) as held:
        held.execute(INSERT.format("kept"))
        kept = bill.sync.options(within=held.within).enqueue("kept")
        held.commit()
        held.execute(INSERT.format("dropped"))
        dropped = bill.sync.options(within=held.within).enqueue("dropped")
        held.rollback()
    found = found_states(app, kept, dropped)
    assert found == [State.READY, None] and orders.names() == ["kept"]


@pytest.mark.parametrize("driver", BLOCKING)
@postgres
def test_a_unique_conflict_leaves_the_users_blocking_transaction_usable(
    bill: Kind[[str], str], app: Dutiful, orders: Orders, app_url: str, driver: str
) -> None:
    first = bill.sync.options(unique="order 1").enqueue("1")
    with open_transaction_sync(driver, app_url) as held:
        with pytest.raises(UniqueConflict) as caught:
            bill.sync.options(within=held.within, unique=Unique("order 1", on_conflict=OnConflict.REJECT)).enqueue("1")
        many = bill.sync.options(within=held.within).enqueue_many([{"order": "2"}, {"order": "3"}])
        held.execute(INSERT.format("after"))
        held.commit()
    assert caught.value.existing == first.id and orders.names() == ["after"]
    assert found_states(app, *many) == [State.READY] * 2


@postgres
def test_djangos_atomic_block_decides(bill: Kind[[str], str], app: Dutiful, orders: Orders, app_url: str) -> None:
    alias = "orders"
    django.db.connections[alias] = wrapper = django_connection(app_url, alias)
    try:
        with django_transaction.atomic(using=alias):
            kept = bill.sync.options(within=django.db.connections[alias]).enqueue("kept")
            try:
                with django_transaction.atomic(using=alias):
                    inner = bill.sync.options(within=wrapper).enqueue("inner")
                    raise LookupError
            except LookupError:
                pass
        with pytest.raises(LookupError), django_transaction.atomic(using=alias):
            dropped = bill.sync.options(within=wrapper).enqueue("dropped")
            raise LookupError
    finally:
        wrapper.close()
        del django.db.connections[alias]
    assert found_states(app, kept, inner, dropped) == [State.READY, None, None]


def found_states(app: Dutiful, *jobs: Any) -> list[State | None]:
    async def look() -> list[State | None]:
        async with app.opened() as client:
            records = [await client.find(job.id) for job in jobs]
            return [record.state if record else None for record in records]

    return asyncio.run(look())


# --- what is not a connection to be joined


@postgres
def test_a_blocking_connection_is_refused_by_the_async_form(app: Dutiful, bill: Kind[[str], str], app_url: str) -> None:
    async def enqueue(within: Any) -> None:
        async with app:
            with pytest.raises(UsageError, match=r"blocking connection: use the `\.sync` form"):
                await bill.options(within=within).enqueue("1")

    for driver in BLOCKING:
        with open_transaction_sync(driver, app_url) as held:
            asyncio.run(enqueue(held.within))
            held.rollback()


@postgres
async def test_an_async_connection_is_refused_by_the_blocking_form(
    app: Dutiful, bill: Kind[[str], str], app_url: str
) -> None:
    for driver in ASYNC:
        async with open_transaction(driver, app_url) as held:
            with pytest.raises(UsageError, match="is an async connection: await the plain form"):
                await asyncio.to_thread(bill.sync.options(within=held.within).enqueue, "1")
            await held.rollback()


@postgres
async def test_pools_and_engines_are_no_transaction_to_join(app: Dutiful, bill: Kind[[str], str], app_url: str) -> None:
    engine, async_engine = (
        make(dialect(app_url, "psycopg")) for make in (sqlalchemy.create_engine, create_async_engine)
    )
    async with asyncpg.create_pool(app_url, min_size=1) as pool:
        for thing in (pool, engine, async_engine, "postgresql://…", object()):
            with pytest.raises(UsageError, match=r"within= got .*; give an asyncpg connection"):
                await bill.options(within=thing).enqueue("1")
            with pytest.raises(UsageError, match=r"within= got .*; give an asyncpg connection"):
                bill.sync.options(within=thing).enqueue("1")
        async with pool.acquire() as connection, connection.transaction():
            job = await bill.options(within=connection).enqueue("1")
    assert await state(app, job) is State.READY


@postgres
async def test_a_connection_to_another_database_is_refused_with_an_explanation(
    app: Dutiful, bill: Kind[[str], str], app_url: str
) -> None:
    elsewhere = app_url.rsplit("/", 1)[0] + "/postgres"

    def refused_sync(driver: str) -> None:
        with open_transaction_sync(driver, elsewhere) as held:
            with pytest.raises(UsageError, match="without Dutiful's tables"):
                bill.sync.options(within=held.within).enqueue("1")
            held.rollback()

    for driver in ASYNC:
        async with open_transaction(driver, elsewhere) as held:
            with pytest.raises(UsageError, match="without Dutiful's tables"):
                await bill.options(within=held.within).enqueue("1")
            await held.rollback()
    for driver in BLOCKING:
        await asyncio.to_thread(refused_sync, driver)
    with (
        open_transaction_sync("sqlalchemy connection", "sqlite://") as memory,
        pytest.raises(UsageError, match="to sqlite"),
    ):
        bill.sync.options(within=memory.within).enqueue("1")
