"""A survey finds expired leases without walking over those that were settled long ago."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from dutiful.store.leadership import Patience
from dutiful.stores.postgres import PostgresStore, leadership
from dutiful.stores.postgres.promotion import LONG_AGO
from suite.builders import ADA, start_one

TTL = timedelta(seconds=8)
AT_ONCE = Patience(gap=timedelta(hours=1), hold=timedelta(0))
SETTLED = 20_000


@pytest.fixture
async def store(pg18_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(pg18_url)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def connection(pg18_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(pg18_url)
    yield connection
    connection.terminate()


async def sees_expired(store: PostgresStore) -> bool:
    return (await store.leadership.survey(ADA, TTL, AT_ONCE)).expired


async def expire(connection: Any, ago: timedelta) -> None:
    await connection.execute("update dutiful.lease set expires_at = clock_timestamp() - $1::interval", ago)


async def test_a_search_begins_where_the_last_one_ended_if_all_leases_take_too_long(
    store: PostgresStore, connection: Any, pg18_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "SHARE", 1e9)
    await start_one(store, now=datetime.now(UTC))
    assert not await sees_expired(store)
    await expire(connection, timedelta(hours=1))
    assert not await sees_expired(store), "only all leases have it, and they were searched lately"
    store.leadership._search_all_at = 0.0
    assert await sees_expired(store)
    assert await sees_expired(store) is False, "the search that found one does not move the beginning of the next"
    await expire(connection, timedelta(seconds=1))
    assert await sees_expired(store), "a claim that commits a second after its lease has ended is found"


async def test_every_survey_searches_all_leases_while_that_is_cheap(
    store: PostgresStore, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "SHARE", 0)
    await start_one(store, now=datetime.now(UTC))
    assert not await sees_expired(store)
    await expire(connection, timedelta(hours=1))
    assert await sees_expired(store)


async def test_a_set_back_clock_does_not_hide_leases(
    store: PostgresStore, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "SHARE", 1e9)
    assert not await sees_expired(store)
    store.leadership._none_expired_at = datetime.now(UTC) + timedelta(hours=1)
    await start_one(store, now=datetime.now(UTC))
    await expire(connection, timedelta(0))
    assert await sees_expired(store)


async def test_a_search_that_goes_on_reads_no_leases_that_were_settled_long_ago(
    store: PostgresStore, connection: Any, pg18_url: str
) -> None:
    pinned = await asyncpg.connect(pg18_url)
    await pinned.execute("begin isolation level repeatable read")
    await pinned.fetchval("select count(*) from dutiful.lease")
    await connection.execute(
        "insert into dutiful.lease (job_id, claim_id, worker_id, seq, claimed_at, expires_at, attempt, crashes) "
        "select gen_random_uuid(), n, gen_random_uuid(), n, now(), now() - interval '1 hour', 1, 0 "
        "from generate_series(1, $1::int) n",
        SETTLED,
    )
    await connection.execute("delete from dutiful.lease")
    await connection.execute("select dutiful.survey($1, $2, $3, $3, $4, $5, null)", *_asked(LONG_AGO))  # for its plans
    everything = await pages(connection, LONG_AGO)
    lately = await pages(connection, datetime.now(UTC))
    pinned.terminate()
    assert everything > 200 > 3 * lately


async def pages(connection: Any, begin_at: datetime) -> int:
    """How many pages a survey reads."""
    text = "explain (analyze, buffers, format json) select dutiful.survey($1, $2, $6, $3, $4, $5, null)"
    plan = await connection.fetchval(text, *_asked(begin_at), LONG_AGO)
    found = json.loads(plan)[0]["Plan"]
    return int(found["Shared Hit Blocks"] + found["Shared Read Blocks"])


def _asked(begin_at: datetime) -> tuple[Any, ...]:
    return ADA, TTL, begin_at, AT_ONCE.gap, AT_ONCE.hold
