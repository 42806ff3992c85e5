"""What only Postgres can get wrong: users' transactions, time zones, poolers, and lost connections."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from databases import DATABASE
from dutiful.core import ids
from dutiful.core.errors import StoreUnavailable
from dutiful.core.job import Claim, PhaseState
from dutiful.core.outcome import Failed
from dutiful.store.claims import Completion, Refusal, RefusalReason
from dutiful.store.locks import LockName
from dutiful.stores.postgres import PostgresStore
from servers import PgBouncer
from suite.builders import (
    LEASE,
    OOPS,
    PIPELINE,
    T0,
    at,
    change,
    enqueue_one,
    mark,
    phases,
    progress,
    progress_of,
    renewing,
    report_all,
    settle,
    start_one,
    token,
)
from suite.webhooks import webhook

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
        assert await store.queries.check_places() == []


@pytest.fixture
async def connection(pg18_url: str) -> AsyncIterator[Any]:
    """A connection of the user's own."""
    connection = await asyncpg.connect(pg18_url)
    yield connection
    connection.terminate()


async def test_a_report_does_not_wait_for_a_users_open_completion(store: PostgresStore, connection: Any) -> None:
    completing, other = await start_one(store), await start_one(store)
    async with connection.transaction():
        await store.claims.complete_within(connection, token(completing), None)

        lost = await store.progress.report([progress(completing, percent=1.0), progress(other, percent=2.0)])

    assert lost == frozenset()
    found = await progress_of(store, other.job_id)
    assert found is not None and found.percent == 2.0
    assert await progress_of(store, completing.job_id) is None


async def test_a_phase_mark_is_kept_when_a_users_transaction_is_rolled_back(
    store: PostgresStore, connection: Any
) -> None:
    claimed = await start_one(store, options=PIPELINE)
    transaction = connection.transaction()
    await transaction.start()
    await store.claims.complete_within(connection, token(claimed), None)

    marking = asyncio.create_task(store.progress.report([], [mark(claimed, "download")]))
    await someone_waits(connection)
    await transaction.rollback()

    assert await marking == frozenset()
    assert await phases(store, claimed.job_id) == [("download", PhaseState.RUNNING, 1)]


async def test_an_open_report_does_not_delay_a_renewal(store: PostgresStore, connection: Any) -> None:
    claimed = await start_one(store)
    async with connection.transaction():
        await mark_within(connection, claimed)
        async with renewing(store) as renewer:
            assert (await renewer.renew(claimed, now=at(20))).lost == frozenset()

    record = await store.queries.job(claimed.job_id)
    assert record is not None and record.expires_at == at(20) + LEASE


async def test_a_renewal_that_hangs_gives_up_before_its_lease_ends(store: PostgresStore, connection: Any) -> None:
    claimed = await start_one(store)
    async with connection.transaction(), renewing(store) as renewer:
        await renewer.renew(claimed, now=at(1))  # connects, which may take longer than a short lease has
        await connection.execute("lock table dutiful.lease in access exclusive mode")
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await renewer.renew(claimed, now=at(2), lease=timedelta(seconds=1))

    assert time.monotonic() - began < 5, "instead of the 10 s that longer leases allow"


async def test_a_job_is_settled_after_an_open_report(store: PostgresStore, connection: Any) -> None:
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
    await report_all(store, mark(claimed, "upload"))
    transaction = connection.transaction()
    await transaction.start()
    await store.claims.complete_within(connection, token(claimed), '{"n": 1}')
    await (transaction.commit() if commit else transaction.rollback())

    (phase,) = await store.progress.phases(claimed.job_id)

    if commit:
        assert (phase.state, phase.attempt, phase.result) == (PhaseState.COMPLETED, 1, {"n": 1})
    else:
        assert (phase.state, phase.ended_at) == (PhaseState.RUNNING, None)


async def test_jobs_locked_by_a_users_transaction_are_skipped_and_others_are_settled(
    store: PostgresStore, connection: Any
) -> None:
    held, done, failed, gone = [await start_one(store) for _ in range(4)]
    await store.claims.complete([Completion(gone.job_id, gone.claim_id)])
    async with connection.transaction():
        await connection.execute("select from dutiful.lease where job_id = $1 for update", held.job_id)
        locked = [Refusal(held.job_id, held.claim_id, RefusalReason.LOCKED)]

        completions = [Completion(claimed.job_id, claimed.claim_id) for claimed in (held, done)]
        assert await store.claims.complete(completions, skip_locked=True) == locked
        changes = [change(claimed, Failed(OOPS, final=True)) for claimed in (held, failed, gone)]
        repeated = [Refusal(gone.job_id, gone.claim_id, RefusalReason.REPEATED)]
        assert await store.claims.settle(changes, skip_locked=True) == locked + repeated

    assert await store.claims.settle(changes[:1], skip_locked=True) == []
    assert len(await store.queries.outcomes([c.job_id for c in (held, done, failed)])) == 3


@pytest.mark.req("D56")
async def test_one_of_twenty_connections_gets_a_free_lock(pg18_url: str) -> None:
    async with opened(pg18_url, pool_size=20) as store:
        claims = [await start_one(store, now=datetime.now(UTC)) for _ in range(20)]
        await asyncio.gather(*(store.control.pauses() for _ in range(20)))
        for number in range(10):
            name = LockName("edition", number)
            answers = await asyncio.gather(*(store.locks.try_acquire(token(claimed), name) for claimed in claims))
            assert answers.count(True) == 1


async def test_a_lock_whose_holder_is_being_settled_is_not_taken_away(store: PostgresStore, connection: Any) -> None:
    holder, contender = await start_one(store), await start_one(store, now=at(20))
    assert await store.locks.try_acquire(token(holder), EDITION, now=T0)
    async with connection.transaction():
        await store.claims.complete_within(connection, token(holder), None)

        assert not await store.locks.try_acquire(token(contender), EDITION, now=at(40))

    assert await store.locks.try_acquire(token(contender), EDITION, now=at(40))


async def test_a_late_commit_is_found_by_the_next_call(store: PostgresStore, connection: Any) -> None:
    before = (await store.events.changes_since(None, 10)).until
    transaction = connection.transaction()
    await transaction.start()
    late = await connection.fetchval("select dutiful.enqueue('greet')")
    early = await enqueue_one(store, id=ids.floor_at(datetime.now(UTC)), now=datetime.now(UTC))

    first = await store.events.changes_since(before, 10)
    await transaction.commit()
    second = await store.events.changes_since(first.until, 10)

    assert [change.job_id for change in first.changes] == [early]
    assert {change.job_id for change in second.changes} == {early, late}


async def test_a_transaction_that_only_reads_delays_no_events(store: PostgresStore, connection: Any) -> None:
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.fetchval("select count(*) from dutiful.job")
        now = await connection.fetchval("select clock_timestamp()")

        assert (await store.events.changes_since(None, 10)).until > now


async def test_a_stale_job_is_not_locked_again(store: PostgresStore, connection: Any) -> None:
    """A lock is a write, so a step over a million stale jobs would write them all."""
    claimed = await start_one(store)
    await store.claims.complete([Completion(claimed.job_id, claimed.claim_id)], now=at(2))
    later = T0 + timedelta(days=1)
    locker = "select xmax::text from dutiful.job where id = $1"

    assert len((await store.retention.mark_stale(timedelta(0), 10, None, sent=True, now=later)).jobs) == 1
    first = await connection.fetchval(locker, claimed.job_id)
    assert (await store.retention.mark_stale(timedelta(0), 10, None, sent=True, now=later)).jobs == []

    assert await connection.fetchval(locker, claimed.job_id) == first


async def test_all_times_are_in_utc_wherever_the_session_is(pg18_url: str) -> None:
    async with opened(f"{pg18_url}?timezone=Asia/Tokyo") as store:
        await store.webhooks.put([webhook()])
        claimed = await start_one(store)
        await report_all(store, progress(claimed, percent=1.0), mark(claimed, "download"), now=at(1))
        await store.claims.complete([Completion(claimed.job_id, claimed.claim_id)], now=at(2))
        step = await store.retention.mark_stale(timedelta(0), 10, None, sent=True, now=T0 + timedelta(days=1))

        record = await store.queries.job(claimed.job_id)
        (view,) = await store.events.views([claimed.job_id])
        (post,) = await store.webhooks.posts(job_id=claimed.job_id)

    assert record is not None and record.progress is not None
    assert (record.progress.updated_at, record.progress.updated_at.tzinfo) == (at(1), UTC)
    assert [record] == step.jobs == [msgspec.structs.replace(view.job, payload=record.payload)]
    assert (post.data["created_at"], post.data["finished_at"]) == (T0.isoformat(), at(2).isoformat())


@pytest.mark.parametrize(("direct", "sessions"), [(None, False), ("pooler", False), ("server", True)])
async def test_a_lock_session_needs_a_way_past_the_pooler(
    pgbouncer: str, bouncer: PgBouncer, pg18_url: str, direct: str | None, sessions: bool
) -> None:
    dsn = {None: None, "pooler": bouncer.dsn(DATABASE), "server": pg18_url}[direct]
    async with opened(pgbouncer, direct_dsn=dsn) as store:
        session = await store.locks.session(lambda: None)

        assert (session is not None) == sessions
        if session is not None:
            assert await session.acquire(EDITION, 1)
            await session.close()


async def test_the_loss_of_a_lock_session_is_reported_but_not_its_close(store: PostgresStore, connection: Any) -> None:
    ended = [asyncio.Event(), asyncio.Event()]
    closed, cut = [await store.locks.session(event.set) for event in ended]
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
    """A report that is not committed yet."""
    await connection.execute(
        "select dutiful.report_progress('{}', '{}', '{}', '{}', '{}', '{}', '{}', array[$1::uuid], array[$2::bigint],"
        " '{download}', '{0}', '{running}', '{null}', '{null}', '{false}', '{null}', null)",
        claimed.job_id,
        claimed.claim_id,
    )


async def someone_waits(connection: Any) -> None:
    async with asyncio.timeout(10):
        while not await connection.fetchval(  # noqa: ASYNC110 (there is no event to wait for)
            "select exists (select from pg_locks where not granted)"
        ):
            await asyncio.sleep(0.01)
