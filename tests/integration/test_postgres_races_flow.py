"""Row locks on Postgres of steps, limits, shares and deliveries: what waits, what passes by. Each race is forced."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from dutiful.core.errors import StoreBusy
from dutiful.core.job import Unique
from dutiful.core.limits import Limit
from dutiful.core.outcome import Failed
from dutiful.core.states import State
from dutiful.maintenance.scheduler import Scheduler
from dutiful.store.claims import ClaimRequest, Completion, QueueLevel
from dutiful.store.deliveries import Delivered
from dutiful.store.leadership import Survey
from dutiful.store.shares import ShareRequest, Take
from dutiful.stores.postgres import PostgresStore, limits
from postgres_locks import after_a_wait, not_blocked
from suite.builders import (
    ADA,
    KIND,
    LEASE,
    OOPS,
    T0,
    at,
    claim,
    complete,
    enqueue,
    enqueue_one,
    new_id,
    new_job,
    settle,
    start_one,
    states,
)
from suite.deliveries import claimed_ids, deliver, outstanding
from suite.limits import keyed, limited, ready
from suite.schedules import fired, schedule
from suite.shares import take
from suite.steps import step

CLAIM_ONE = "SELECT * FROM dutiful.claim($1, 'general', '{default}', '{100}', '{0}', $2, 1, 0, '1 h', null, $3)"
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


async def test_what_is_being_enqueued_while_its_kind_gets_its_first_limit_is_counted(
    store: PostgresStore, other: Any
) -> None:
    """It was ready when its transaction committed, and started beside those that were admitted."""
    request = ClaimRequest(ADA, "general", [QueueLevel("default", 100)], [KIND], 10, LEASE)
    await other.fetch("SELECT dutiful.enqueue($1, '{}')", KIND)

    limiting = asyncio.create_task(limited(store, Limit("calls", 1), now=None))
    while not await other.fetchval("SELECT count(*) FROM dutiful.pause"):
        await other.execute("SELECT pg_sleep(0.01)")
    await other.execute("COMMIT")
    await limiting

    assert await store.claims.claim(request) == []
    await store.limits.admit(10)
    assert len(await store.claims.claim(request)) == 1


async def test_jobs_of_a_kind_whose_first_limit_was_announced_by_a_worker_that_died_go_on(
    store: PostgresStore, other: Any
) -> None:
    await other.fetch("SELECT dutiful.announce_limits($1, $2)", [KIND], T0)
    await other.execute("COMMIT")
    job = new_job()
    await enqueue(store, job)

    await store.promotion.sweep(10, now=at(59))
    assert await ready(store, [job]) == []
    await store.promotion.sweep(10, now=at(61))
    assert await ready(store, [job]) == [0]


@pytest.mark.parametrize("way", ["claim", "claim of a share", "one in SQL", "several in SQL"])
async def test_a_start_counts_of_a_job_that_was_admitted_while_its_claim_was_under_way(
    store: PostgresStore, other: Any, pg18_url: str, way: str
) -> None:
    """It was claimed before it was admitted, by the clock, so its end gave its slot back."""
    await limited(store, Limit("calls", 1, per=timedelta(hours=1)), now=None)
    await store.jobs.insert([keyed("zeta", tenant="acme")])  # its level is known to have a job
    await store.limits.admit(100)
    jobs = [keyed("acme", tenant="acme") for _ in range(2)]
    await store.jobs.insert(jobs)
    await other.execute("LOCK TABLE dutiful.pause IN ACCESS EXCLUSIVE MODE")

    async def admit_meanwhile() -> None:
        assert len(await other.fetch(CLAIM_ONE, ADA, [KIND], None)) == 1
        await other.execute("SELECT * FROM dutiful.admit_limited(true, 100, null, null); COMMIT")

    async def take_jobs() -> list[tuple[UUID, int]]:
        if way == "claim":
            request = ClaimRequest(ADA, "general", [QueueLevel("default", 100)], [KIND], 2, LEASE)
            return [(one.job_id, one.claim_id) for one in await store.claims.claim(request)]
        if way == "claim of a share":
            share = ShareRequest(ADA, "general", [Take("acme", "default", 100, 0, 2)], [KIND], LEASE)
            return [(one.job_id, one.claim_id) for one in await store.shares.claim(share)]
        worker = await asyncpg.connect(pg18_url)
        try:
            dequeue = "SELECT job_id, claim_id FROM dutiful.dequeue($1, p_limit => $2)"
            rows = await worker.fetch(dequeue, [KIND], 1 if way == "one in SQL" else 2)
        finally:
            worker.terminate()
        return [(row["job_id"], row["claim_id"]) for row in rows]

    ((job, claim_id),) = await after_a_wait(pg18_url, take_jobs(), admit_meanwhile())
    assert job == jobs[0].id
    await store.claims.complete([Completion(job, claim_id, None)])
    await store.limits.admit(100, everywhere=True)

    assert await ready(store, jobs) == []


async def test_a_start_counts_of_a_job_that_runs_and_ends_while_an_admission_looks(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    """It was still ready when starts were noted, and had ended when slots were given back."""
    await limited(store, Limit("calls", 2, per=timedelta(hours=1)))
    jobs = [keyed("acme") for _ in range(3)]
    await enqueue(store, *jobs)
    await store.limits.admit(100, now=T0)
    (first,) = await claim(store, limit=1)
    await other.fetch("SELECT * FROM dutiful.limit_slot WHERE job_id = $1 FOR UPDATE", first.job_id)

    async def run_the_second() -> None:
        await complete(store, *await claim(store, limit=1))
        await other.execute("COMMIT")

    await after_a_wait(pg18_url, store.limits.admit(100, now=T0), run_the_second())
    await store.limits.admit(100, everywhere=True, now=T0)

    assert await ready(store, jobs) == []


async def test_a_job_that_is_being_claimed_counts_for_the_limit_that_its_kind_gets(
    store: PostgresStore, other: Any, pg18_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "OPEN_AT_MOST", 0.1)
    jobs = [keyed("acme") for _ in range(2)]
    await enqueue(store, *jobs)
    assert len(await other.fetch(CLAIM_ONE, ADA, [KIND], T0)) == 1

    await after_a_wait(pg18_url, limited(store, Limit("calls", 1)), other.execute("COMMIT"))
    await store.limits.admit(100, now=T0)

    assert await ready(store, jobs) == []


async def test_a_job_that_another_has_locked_keeps_what_depends_on_it(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    need = await start_one(store)
    locked = new_job(depends_on=(need.job_id,))
    below = new_job(depends_on=(locked.id,))
    beside = new_job(depends_on=(need.job_id,))
    await enqueue(store, locked, below, beside)
    await settle(store, need, Failed(OOPS, final=True))
    assert await other.fetch("SELECT 1 FROM dutiful.blocked WHERE job_id = $1 FOR UPDATE", locked.id)

    step = await not_blocked(pg18_url, store.dependents.release([need.job_id], 10, now=at(1)))

    assert (step.moved, step.next) == (1, ())
    jobs = [locked.id, below.id, beside.id]
    assert await states(store, jobs) == [State.BLOCKED, State.BLOCKED, State.CANCELLED]
    await other.execute("ROLLBACK")
    assert (await store.promotion.sweep(10, now=at(2))).moved == 2
    assert set(await states(store, jobs)) == {State.CANCELLED}


async def test_the_room_of_each_key_is_counted_once_for_an_admission(store: PostgresStore, pg18_url: str) -> None:
    """A limit may allow very many starts, all of which are counted."""
    await limited(store, Limit("calls", 1), kind=KIND)
    running = [keyed(f"key {n}") for n in range(5)]
    await enqueue(store, *running, *(keyed(f"key {n}") for n in range(5)))
    await store.limits.admit(10, now=at(1))
    for held in await claim(store):
        await complete(store, held)
    connection = await asyncpg.connect(pg18_url)
    try:
        await connection.execute("SET track_functions = 'all'")
        async with connection.transaction():
            admitted = await connection.fetch("SELECT moved FROM dutiful.admit_limited(true, 10, null, $1)", at(2))
            counted = await connection.fetchval(
                "SELECT pg_stat_get_xact_function_calls(oid) FROM pg_proc WHERE proname = 'limit_room'"
            )
    finally:
        await connection.close()

    assert admitted[0]["moved"] == 5
    assert counted == 5


# --- deliveries

RECORD = "SELECT dutiful.record_deliveries(array[$1::uuid], '{x}', array[$2::int], '{0}', null)"


@pytest.mark.parametrize("number", [1, 2])
async def test_deliveries_are_recorded_without_one_that_a_client_holds(
    store: PostgresStore, other: Any, number: int
) -> None:
    """An insert of it, or a change."""
    held, *others = [await enqueue_one(store) for _ in range(3)]
    for earlier in range(1, number):
        await deliver(store, held, earlier)
    await other.execute(RECORD, held, number)

    async with asyncio.timeout(30):
        await store.deliveries.record([Delivered(job_id, str(job_id), 1, 0) for job_id in (others[0], held, others[1])])

    assert {*others} <= {*await outstanding(store)}
    assert (await other.fetchval("SELECT 1")) == 1, "it holds it still"


async def test_jobs_whose_deliveries_a_client_holds_are_claimed_and_others_taken(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    held, free = [await enqueue_one(store) for _ in range(2)]
    for job_id in (held, free):
        await deliver(store, job_id)
    await other.execute(RECORD, held, 2)

    await not_blocked(pg18_url, store.deliveries.take([(held, f"{held}:1"), (free, f"{free}:1")]))
    assert await outstanding(store) == [held]
    assert await not_blocked(pg18_url, claimed_ids(store, held, free)) == [held, free]


async def test_retention_leaves_a_job_whose_delivery_a_client_holds(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    held, free = [await enqueue_one(store) for _ in range(2)]
    for job_id in (held, free):
        await deliver(store, job_id)
        await complete(store, *await claim(store))
    await other.execute(RECORD, held, 2)

    deleted = await not_blocked(pg18_url, store.retention.delete(timedelta(0), 10, None, now=at(9)))
    assert deleted.count == 1
    await other.execute("ROLLBACK")
    assert (await store.retention.delete(timedelta(0), 10, None, now=at(9))).count == 1


# --- schedules


async def test_a_firing_does_not_wait_for_long_for_a_key_that_a_client_holds(store: PostgresStore, other: Any) -> None:
    await store.schedules.put([schedule()])
    await store.jobs.insert_within(other, [new_job(unique=Unique("nightly_1"))])

    async with asyncio.timeout(60):
        with pytest.raises(StoreBusy):
            await store.schedules.fire(fired(new_job(unique=Unique("nightly_1"))), now=at(61))
    await other.execute("ROLLBACK")
    assert await store.schedules.fire(fired(new_job(unique=Unique("nightly_1"))), now=at(61))


async def test_a_schedule_that_has_to_wait_keeps_no_other_from_firing(store: PostgresStore, other: Any) -> None:
    job: dict[str, Any] = {"queue": "default", "payload": {}, "priority": 100, "max_attempts": 1}
    keyed_job = job | {"unique": {"key": "report", "field": "key"}}
    await store.schedules.put([schedule(name="a", job=keyed_job), schedule(name="b", job=job)])
    await store.jobs.insert_within(other, [new_job(unique=Unique(f"report_{at(60):%Y%m%dT%H%M%S.%f}"))])

    async with asyncio.timeout(60):
        with pytest.raises(StoreBusy):
            await Scheduler(store, new_id).tick(Survey(True, at(61), next_fire_at=at(60)))

    waiting, fired_one = await store.schedules.all()
    assert (waiting.last_at, fired_one.last_at) == (None, at(61))


# --- listeners


async def test_a_listener_that_a_client_holds_is_left_as_it_is(store: PostgresStore, other: Any, pg18_url: str) -> None:
    held, gone = uuid4(), uuid4()
    await store.events.listen(held, timedelta(hours=1))
    await other.execute("INSERT INTO dutiful.listener VALUES ($1, now() - interval '2 days')", gone)
    await other.execute("COMMIT")
    await other.execute("BEGIN")
    await other.execute("SELECT dutiful.listen($1, '1 h')", held)
    await other.execute("UPDATE dutiful.listener SET expires_at = now() WHERE id = $1", gone)

    async with asyncio.timeout(30):
        await store.events.listen(held, timedelta(hours=1))
        await store.events.unlisten(held)
        await not_blocked(pg18_url, store.retention.delete_leftovers(timedelta(days=1), 10))
    await other.execute("ROLLBACK")
    assert await other.fetchval("SELECT count(*) FROM dutiful.listener") == 2
