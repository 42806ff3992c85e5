"""What only Postgres can get wrong: other people's transactions, time zones, poolers, connections that end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from databases import DATABASE
from dutiful.core import ids
from dutiful.core.job import Claim
from dutiful.core.outcome import Failed
from dutiful.core.pipeline import PhaseState
from dutiful.locking import LockName
from dutiful.stores.postgres import PostgresStore
from dutiful.testing.servers import PgBouncer
from dutiful.testing.store_suite.builders import (
    LEASE,
    OOPS,
    PIPELINE,
    T0,
    at,
    change,
    enqueue_one,
    keeping,
    mark,
    phases,
    progress,
    progress_of,
    settle,
    start_one,
    token,
    track,
)
from dutiful.testing.store_suite.outbox import webhook
from dutiful.working import Completion, Refusal, Verdict

EDITION = LockName("edition", 7)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(pg18_url: str) -> AsyncIterator[PostgresStore]:
    async with opened(pg18_url) as store:
        yield store
        assert await store.check_places() == []


@pytest.fixture
async def connection(pg18_url: str) -> AsyncIterator[Any]:
    """A connection of the user's own."""
    connection = await asyncpg.connect(pg18_url)
    yield connection
    connection.terminate()


async def test_a_report_does_not_wait_for_a_job_that_a_user_is_completing(
    store: PostgresStore, connection: Any
) -> None:
    completing, other = await start_one(store), await start_one(store)
    async with connection.transaction():
        await store.complete_within(connection, token(completing), None)

        lost = await store.report([progress(completing, percent=1.0), progress(other, percent=2.0)])

    assert lost == frozenset()
    told = await progress_of(store, other.job_id)
    assert told is not None and told.percent == 2.0
    assert await progress_of(store, completing.job_id) is None


async def test_a_mark_is_not_forgotten_when_a_users_transaction_is_rolled_back(
    store: PostgresStore, connection: Any
) -> None:
    claimed = await start_one(store, options=PIPELINE)
    transaction = connection.transaction()
    await transaction.start()
    await store.complete_within(connection, token(claimed), None)

    marking = asyncio.create_task(store.report([], [mark(claimed, "download")]))
    await someone_waits(connection)
    await transaction.rollback()

    assert await marking == frozenset()
    assert await phases(store, claimed.job_id) == [("download", PhaseState.RUNNING, 1)]


async def test_a_report_under_way_does_not_hold_up_a_renewal(store: PostgresStore, connection: Any) -> None:
    claimed = await start_one(store)
    async with connection.transaction():
        await mark_within(connection, claimed)
        async with keeping(store) as keeper:
            assert (await keeper.renew(claimed, now=at(20))).lost == frozenset()

    record = await store.find(claimed.job_id)
    assert record is not None and record.expires_at == at(20) + LEASE


async def test_a_job_is_settled_after_the_report_that_is_under_way(store: PostgresStore, connection: Any) -> None:
    claimed = await start_one(store)
    transaction = connection.transaction()
    await transaction.start()
    await mark_within(connection, claimed)

    settling = asyncio.create_task(settle(store, claimed, Failed(OOPS)))
    await someone_waits(connection)
    await transaction.commit()

    assert await settling == []
    assert await phases(store, claimed.job_id) == [("download", PhaseState.FAILED, 1)]


@pytest.mark.parametrize("commit", [True, False])
async def test_the_last_phase_ends_with_the_users_transaction(
    store: PostgresStore, connection: Any, commit: bool
) -> None:
    claimed = await start_one(store, options=PIPELINE)
    await track(store, mark(claimed, "upload"))
    transaction = connection.transaction()
    await transaction.start()
    await store.complete_within(connection, token(claimed), '{"n": 1}')
    await (transaction.commit() if commit else transaction.rollback())

    (phase,) = await store.phases(claimed.job_id)

    if commit:
        assert (phase.state, phase.attempt, phase.result) == (PhaseState.COMPLETED, 1, {"n": 1})
    else:
        assert (phase.state, phase.ended_at) == (PhaseState.RUNNING, None)


async def test_what_a_users_transaction_holds_is_left_and_the_others_are_settled(
    store: PostgresStore, connection: Any
) -> None:
    held, done, failed, gone = [await start_one(store) for _ in range(4)]
    await store.complete([Completion(gone.job_id, gone.claim_id)])
    async with connection.transaction():
        await connection.execute("select from dutiful.lease where job_id = $1 for update", held.job_id)
        locked = [Refusal(held.job_id, held.claim_id, Verdict.LOCKED)]

        completions = [Completion(claimed.job_id, claimed.claim_id) for claimed in (held, done)]
        assert await store.complete(completions, skip_locked=True) == locked
        changes = [change(claimed, Failed(OOPS, final=True)) for claimed in (held, failed, gone)]
        repeated = [Refusal(gone.job_id, gone.claim_id, Verdict.REPEATED)]
        assert await store.settle(changes, skip_locked=True) == locked + repeated

    assert await store.settle(changes[:1], skip_locked=True) == []
    assert len(await store.outcomes([c.job_id for c in (held, done, failed)])) == 3


@pytest.mark.req("D56")
async def test_one_of_twenty_connections_gets_a_free_lock(pg18_url: str) -> None:
    async with opened(pg18_url, pool_size=20) as store:
        claims = [await start_one(store, now=datetime.now(UTC)) for _ in range(20)]
        await asyncio.gather(*(store.pauses() for _ in range(20)))
        for number in range(10):
            name = LockName("edition", number)
            answers = await asyncio.gather(*(store.try_lock(token(claimed), name) for claimed in claims))
            assert answers.count(True) == 1


async def test_a_lock_whose_holder_is_being_settled_is_not_taken_from_him(
    store: PostgresStore, connection: Any
) -> None:
    holder, contender = await start_one(store), await start_one(store, now=at(20))
    assert await store.try_lock(token(holder), EDITION, now=T0)
    async with connection.transaction():
        await store.complete_within(connection, token(holder), None)

        assert not await store.try_lock(token(contender), EDITION, now=at(40))

    assert await store.try_lock(token(contender), EDITION, now=at(40))


async def test_what_is_committed_late_is_found_by_the_next_look(store: PostgresStore, connection: Any) -> None:
    before = (await store.stirred(None, 10)).until
    transaction = connection.transaction()
    await transaction.start()
    late = await connection.fetchval("select dutiful.enqueue('greet')")
    early = await enqueue_one(store, id=ids.floor_at(datetime.now(UTC)), now=datetime.now(UTC))

    first = await store.stirred(before, 10)
    await transaction.commit()
    second = await store.stirred(first.until, 10)

    assert [stir.job_id for stir in first.stirs] == [early]
    assert {stir.job_id for stir in second.stirs} == {early, late}


async def test_a_transaction_that_only_reads_holds_nobody_back(store: PostgresStore, connection: Any) -> None:
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.fetchval("select count(*) from dutiful.job")
        now = await connection.fetchval("select clock_timestamp()")

        assert (await store.stirred(None, 10)).until > now


async def test_what_is_stale_already_is_not_locked_again(store: PostgresStore, connection: Any) -> None:
    """A lock is a write: a walk over a million stale jobs would write them all."""
    claimed = await start_one(store)
    await store.complete([Completion(claimed.job_id, claimed.claim_id)], now=at(2))
    later = T0 + timedelta(days=1)
    locker = "select xmax::text from dutiful.job where id = $1"

    assert len((await store.mark_stale(timedelta(0), 10, None, told=True, now=later)).jobs) == 1
    first = await connection.fetchval(locker, claimed.job_id)
    assert (await store.mark_stale(timedelta(0), 10, None, told=True, now=later)).jobs == []

    assert await connection.fetchval(locker, claimed.job_id) == first


async def test_all_times_are_in_utc_wherever_the_session_is(pg18_url: str) -> None:
    async with opened(f"{pg18_url}?timezone=Asia/Tokyo") as store:
        await store.put_webhooks([webhook()])
        claimed = await start_one(store)
        await track(store, progress(claimed, percent=1.0), mark(claimed, "download"), now=at(1))
        await store.complete([Completion(claimed.job_id, claimed.claim_id)], now=at(2))
        parted = await store.mark_stale(timedelta(0), 10, None, told=True, now=T0 + timedelta(days=1))

        record = await store.find(claimed.job_id)
        (view,) = await store.views([claimed.job_id])
        (post,) = await store.posts(job_id=claimed.job_id)

    assert record is not None and record.progress is not None
    assert (record.progress.updated_at, record.progress.updated_at.tzinfo) == (at(1), UTC)
    assert [record] == parted.jobs == [view.job]
    assert (post.data["created_at"], post.data["finished_at"]) == (T0.isoformat(), at(2).isoformat())


@pytest.mark.parametrize(("direct", "sessions"), [(None, False), ("pooler", False), ("server", True)])
async def test_a_lock_session_needs_a_way_past_the_pooler(
    pgbouncer: str, bouncer: PgBouncer, pg18_url: str, direct: str | None, sessions: bool
) -> None:
    dsn = {None: None, "pooler": bouncer.dsn(DATABASE), "server": pg18_url}[direct]
    async with opened(pgbouncer, direct_dsn=dsn) as store:
        session = await store.lock_session(lambda: None)

        assert (session is not None) == sessions
        if session is not None:
            assert await session.acquire(EDITION, 1)
            await session.close()


async def test_who_holds_a_lock_session_hears_of_its_end_but_not_of_his_own_close(
    store: PostgresStore, connection: Any
) -> None:
    ended = [asyncio.Event(), asyncio.Event()]
    closed, cut = [await store.lock_session(event.set) for event in ended]
    assert closed is not None and cut is not None
    await closed.close()
    assert await cut.acquire(EDITION, 1)

    await connection.execute(
        "select pg_terminate_backend(l.pid) from pg_locks l where l.locktype = 'advisory' and l.objid = 7"
    )

    await asyncio.wait_for(ended[1].wait(), 10)
    assert not ended[0].is_set()
    await cut.release(EDITION)
    await cut.close()


async def mark_within(connection: Any, claimed: Claim) -> None:
    """A report whose commit is still to come."""
    await connection.execute(
        "select dutiful.report('{}', '{}', '{}', '{}', '{}', '{}', '{}', array[$1::uuid], array[$2::bigint],"
        " '{download}', '{0}', '{running}', '{null}', '{null}', '{false}', null)",
        claimed.job_id,
        claimed.claim_id,
    )


async def someone_waits(connection: Any) -> None:
    async with asyncio.timeout(10):
        while not await connection.fetchval(  # noqa: ASYNC110 (nobody would tell us)
            "select exists (select from pg_locks where not granted)"
        ):
            await asyncio.sleep(0.01)
