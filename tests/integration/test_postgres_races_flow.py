"""Row locks on Postgres of steps, limits and fair shares: what waits, and what passes by. Each race is forced."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from dutiful.core.limits import Limit
from dutiful.store.shares import Take
from dutiful.stores.postgres import PostgresStore
from postgres_locks import after_a_wait, not_blocked
from suite.builders import KIND, T0, at, complete, enqueue, new_job, start_one
from suite.limits import keyed, limited, ready
from suite.shares import take
from suite.steps import step

WAIT = "SELECT * FROM dutiful.wait_in_step($1, $2, 'paid', 0, 'event', 'c', 's', '1 h', 'paid', '7', $3)"
CALL = """
    SELECT * FROM dutiful.put_steps(
        array[$1::uuid], array[$2::bigint], array['charge'], array[0], array['c'], array['f'], array['1 s'::interval],
        array['7'], $3)
"""


@pytest.fixture
async def store(pg18_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(pg18_url)
    await store.open()
    yield store
    assert await store.queries.check_places() == []
    await store.close()


@pytest.fixture
async def other(pg18_url: str) -> AsyncIterator[Any]:
    """A connection in an open transaction."""
    connection = await asyncpg.connect(pg18_url)
    await connection.execute("BEGIN")
    yield connection
    connection.terminate()


@pytest.mark.parametrize("statement", [CALL, WAIT], ids=["call", "wait"])
async def test_a_job_does_not_end_while_one_of_its_steps_is_being_stored(
    store: PostgresStore, other: Any, pg18_url: str, statement: str
) -> None:
    claimed = await start_one(store)
    await other.fetch(statement, claimed.job_id, claimed.claim_id, at(1))
    stored: list[bool] = []

    async def commit() -> None:
        stored.append((await store.queries.job(claimed.job_id)).state == "running")  # type: ignore[union-attr]
        await other.execute("COMMIT")

    await after_a_wait(pg18_url, complete(store, claimed, now=at(2)), commit())

    assert stored == [True], "it has ended before its step was committed"
    assert (await step(store, claimed)).name in ("charge", "paid")


@pytest.mark.parametrize("tenant", ["acme", None])
async def test_a_fair_claim_passes_by_a_job_that_another_has_locked(
    store: PostgresStore, other: Any, pg18_url: str, tenant: str | None
) -> None:
    await enqueue(store, first := new_job(tenant=tenant), second := new_job(tenant=tenant))
    assert await other.fetch("SELECT 1 FROM dutiful.ready WHERE job_id = $1 FOR UPDATE", first.id)

    claimed = await not_blocked(pg18_url, take(store, Take(tenant, "default", 100, 0, 5)))
    await other.execute("ROLLBACK")

    assert [one.job_id for one in claimed] == [second.id]
    assert [one.job_id for one in await take(store, Take(tenant, "default", 100, 0, 5))] == [first.id]


async def test_a_slot_that_is_being_taken_is_not_taken_twice(store: PostgresStore, other: Any, pg18_url: str) -> None:
    await limited(store, Limit("calls", 1), kind=KIND)
    jobs = [keyed("acme") for _ in range(2)]
    await enqueue(store, *jobs)
    # As the end of a wait or a resumed kind does, without the lock of an admission.
    await other.fetch("SELECT * FROM dutiful.unblock(array[$1::uuid], $2)", jobs[1].id, T0)

    await after_a_wait(pg18_url, store.limits.admit(10, now=at(1)), other.execute("COMMIT"))

    assert await ready(store, jobs) == [1]
