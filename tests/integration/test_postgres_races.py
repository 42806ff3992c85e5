"""Row locks on Postgres: what must wait for another transaction, and what must pass it by. Each race is forced."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from dutiful.core.errors import UsageError
from dutiful.core.job import NewJob, Scope, Unique
from dutiful.core.outcome import Cancelled, Failed, Lost
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.core.states import State
from dutiful.store.claims import QueueLevel, RefusalReason
from dutiful.store.control import PauseScope
from dutiful.stores.postgres import PostgresStore
from postgres_locks import after_a_wait, blocked, not_blocked
from suite.builders import (
    BOB,
    EXPIRED,
    KIND,
    OOPS,
    T0,
    at,
    change,
    claim,
    claim_one,
    complete,
    crash,
    enqueue,
    enqueue_one,
    finish_one,
    made,
    new_job,
    pause,
    refusal,
    renewing,
    settle,
    start_one,
    state,
    states,
    token,
)
from suite.dead_letters import act_on, applied, fail_one, found, the_letter
from suite.dead_letters_bulk import start, step_of
from suite.dead_letters_review import AGAIN, new_jobs
from suite.webhooks import post_one, settled, take, webhook

DAY = timedelta(days=1)
LATER = T0 + 2 * DAY


@pytest.fixture
async def store(pg18_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(pg18_url)
    await store.open()
    yield store
    assert await store.queries.check_places() == []
    await store.close()


@pytest.fixture
async def other(pg18_url: str) -> AsyncIterator[Any]:
    """A connection of the user's own, in an open transaction."""
    connection = await asyncpg.connect(pg18_url)
    await connection.execute("BEGIN")
    yield connection
    connection.terminate()


async def lock(connection: Any, table: str, job_id: UUID) -> None:
    held = await connection.fetch(f"SELECT 1 FROM dutiful.{table} WHERE job_id = $1 FOR UPDATE", job_id)
    assert len(held) == 1, "there is nothing to lock"


async def all_ended(connection: Any) -> None:
    """Waits until the server's other transactions have ended, such as those of autovacuum."""
    last = await connection.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    while await connection.fetchval("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint") < last:
        await connection.execute("SELECT pg_sleep(0.01)")


# --- enqueues


def with_keys(names: str) -> list[NewJob]:
    return [new_job(unique=Unique(name)) for name in names]


async def test_batches_with_the_same_keys_in_opposite_order_wait_in_one_direction(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    await store.jobs.insert_within(other, with_keys("m"))
    forth, back = with_keys("amz"), with_keys("zma")

    async def enqueue_in_a_transaction(jobs: list[NewJob]) -> set[UUID]:
        # A user's own, because the store repeats a call of its own that ends in a deadlock.
        connection = await asyncpg.connect(pg18_url)
        try:
            async with connection.transaction():
                return {answer.job_id for answer in await store.jobs.insert_within(connection, jobs)}
        finally:
            await connection.close()

    calls = [asyncio.create_task(enqueue_in_a_transaction(jobs)) for jobs in (forth, back)]
    await blocked(pg18_url, 2)  # one for the key in the middle, the other for that, or for the first one
    await other.execute("ROLLBACK")
    one, two = await asyncio.gather(*calls)

    assert one == two and one in ({job.id for job in forth}, {job.id for job in back})


@pytest.mark.parametrize("tombstones", [False, True])
async def test_retention_spares_a_job_that_an_open_enqueue_depends_on(
    store: PostgresStore, other: Any, pg18_url: str, tombstones: bool
) -> None:
    need, free = await finish_one(store, Cancelled("no use")), await finish_one(store)
    dependent = new_job(depends_on=(need,))
    await store.jobs.insert_within(other, [dependent])

    if tombstones:
        retain = store.retention.delete(DAY, 10, None, tombstones=True, sent=True, now=LATER)
        assert [job.id for job in (await not_blocked(pg18_url, retain)).jobs] == [free]
    else:
        assert (await not_blocked(pg18_url, store.retention.delete(DAY, 10, None, now=LATER))).count == 1
    await other.execute("COMMIT")
    await store.promotion.sweep(10, now=LATER)

    assert await states(store, [need, dependent.id]) == [State.CANCELLED, State.CANCELLED]


async def test_an_enqueue_waits_for_retention_that_deletes_what_it_depends_on(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    need = await finish_one(store, Cancelled("no use"))
    await other.execute(
        "SELECT dutiful.delete_finished($1, $2, $3, 10, false, false, true, $3)",
        UUID(int=0),
        UUID(int=2**128 - 1),
        LATER,
    )
    dependent = new_job(depends_on=(need,))

    with pytest.raises(UsageError, match="depend"):
        await after_a_wait(pg18_url, store.jobs.insert([dependent], now=LATER), other.execute("COMMIT"))

    assert await store.queries.job(dependent.id) is None


# --- claims


@pytest.mark.req("W19")
@pytest.mark.parametrize(
    "asked", [{}, {"tenants": ["acme"]}, {"limit": 0, "suspects": 2}], ids=["all", "of a tenant", "suspects"]
)
async def test_a_claim_passes_by_a_job_that_another_has_locked(
    store: PostgresStore, other: Any, pg18_url: str, asked: dict[str, Any]
) -> None:
    await enqueue(store, first := new_job(tenant="acme"), second := new_job(tenant="acme"))
    now = T0
    if "suspects" in asked:
        await claim(store)
        now = await crash(store)
    await lock(other, "ready", first.id)

    claimed = await not_blocked(pg18_url, claim(store, now=now, **asked))
    await other.execute("ROLLBACK")

    assert [one.job_id for one in claimed] == [second.id]
    assert [one.job_id for one in await claim(store, now=now, **asked)] == [first.id]


@pytest.mark.req("W19")
@pytest.mark.parametrize("tenants", [None, ["acme", "globex", "initech"]], ids=["all", "of tenants"])
@pytest.mark.parametrize("first", [2, 5, 9])
@pytest.mark.parametrize("second", [1, 4])
async def test_a_claim_beside_another_gets_the_next_jobs_at_once(
    store: PostgresStore, other: Any, pg18_url: str, tenants: list[str] | None, first: int, second: int
) -> None:
    """A claim locks what it takes and no more, and a claim that finds only locked jobs looks on behind them."""
    jobs = [new_job(priority=1 + n // 7, tenant=["globex", "acme", "initech", "acme"][n % 4]) for n in range(14)]
    await enqueue(store, *jobs)
    levels = [QueueLevel("default", 1), QueueLevel("default", 2)]
    under_way = await other.fetch(
        "SELECT job_id FROM dutiful.claim($1, 'general', $2, $3, $4, $5, $6, 0, $7, $8, $9)",
        BOB, ["default"] * 2, [1, 2], [0, 0], [KIND], first, DAY, tenants, T0,
    )  # fmt: skip
    assert {row["job_id"] for row in under_way} == {job.id for job in jobs[:first]}

    asked: dict[str, Any] = {"levels": levels, "tenants": tenants or ()}
    claimed = await not_blocked(pg18_url, claim(store, limit=second, **asked))
    rest = await not_blocked(pg18_url, claim(store, limit=100, **asked))
    await other.execute("ROLLBACK")
    again = await claim(store, limit=100, **asked)

    ids = [job.id for job in jobs]
    assert [one.job_id for one in claimed] == ids[first : first + second]
    assert [one.job_id for one in rest] == ids[first + second :]
    assert [one.job_id for one in again] == ids[:first]


async def test_a_claim_for_tenants_takes_what_is_free_between_locked_jobs_of_all_levels(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    jobs = [new_job(priority=1 + n // 3, tenant=["globex", "acme"][n % 2]) for n in range(12)]
    await enqueue(store, *jobs)
    for n in (0, 1, 3, 4):
        await lock(other, "ready", jobs[n].id)

    levels = [QueueLevel("default", priority) for priority in (1, 2, 3, 4)]
    claimed = await not_blocked(pg18_url, claim(store, limit=4, tenants=["acme", "globex"], levels=levels))

    assert [one.job_id for one in claimed] == [jobs[n].id for n in (2, 5, 6, 7)]


async def test_a_claim_of_one_job_for_tenants_passes_many_locked_ones(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    jobs = [new_job(tenant=["globex", "acme"][n % 2]) for n in range(3_000)]
    await enqueue(store, *jobs)
    locked = await other.fetch("SELECT 1 FROM dutiful.ready WHERE job_id <> $1 FOR UPDATE", jobs[-1].id)
    assert len(locked) == len(jobs) - 1

    claimed = await not_blocked(pg18_url, claim(store, limit=1, tenants=["acme", "globex"]))

    assert [one.job_id for one in claimed] == [jobs[-1].id]


async def test_a_claim_passes_by_a_locked_key_which_is_free_nevertheless(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    unique = Unique("welcome-ada", Scope.QUEUED)
    job_id = await enqueue_one(store, unique=unique)
    await lock(other, "unique_key", job_id)

    (claimed,) = await not_blocked(pg18_url, claim(store))
    await other.execute("ROLLBACK")

    assert claimed.job_id == job_id
    again = new_job(unique=unique)
    assert await store.jobs.insert([again], now=T0) == made(again)


@pytest.mark.parametrize("end", ["complete", "settle"])
async def test_an_end_passes_by_a_locked_key_which_is_free_nevertheless(
    store: PostgresStore, other: Any, pg18_url: str, end: str
) -> None:
    claimed = await start_one(store, unique=Unique("welcome-ada"))
    await lock(other, "unique_key", claimed.job_id)

    ending = complete(store, claimed) if end == "complete" else settle(store, claimed, Failed(OOPS, final=True))
    assert await not_blocked(pg18_url, ending) == []
    await other.execute("ROLLBACK")

    again = new_job(unique=Unique("welcome-ada"))
    assert await store.jobs.insert([again], now=T0) == made(again)


async def test_a_renewal_passes_by_a_lease_that_is_being_settled(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    locked, free = await start_one(store), await start_one(store)
    await store.claims.complete_within(other, token(locked), None)

    async with renewing(store) as renewer:
        renewal = await not_blocked(pg18_url, renewer.renew(locked, free, now=at(20)))
    await other.execute("ROLLBACK")

    assert renewal.lost == frozenset()
    assert [held.claim_id for held in await store.claims.expired(10, now=at(EXPIRED))] == [locked.claim_id]


async def test_a_rescue_passes_by_a_lease_that_is_being_settled(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    locked, free = await start_one(store), await start_one(store)
    await store.claims.complete_within(other, token(locked), None)
    changes = [change(one, Lost()) for one in (locked, free)]

    refused = await not_blocked(pg18_url, store.claims.settle(changes, expired_only=True, now=at(EXPIRED)))
    await other.execute("COMMIT")

    assert [one.claim_id for one in refused] == [locked.claim_id]
    assert await states(store, [locked.job_id, free.job_id]) == [State.COMPLETED, State.READY]


async def test_a_settlement_waits_for_a_cancel_request_and_obeys_it(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    claimed = await start_one(store)
    await other.execute("SELECT dutiful.cancel($1, 'no use', $2)", claimed.job_id, T0)

    refused = await after_a_wait(pg18_url, settle(store, claimed, Failed(OOPS)), other.execute("COMMIT"))

    assert refused == [refusal(claimed, RefusalReason.CANCEL_REQUESTED)]
    assert await state(store, claimed.job_id) is State.RUNNING


async def test_a_release_waits_for_a_cancel_request_and_obeys_it(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    claimed = await start_one(store)
    await other.execute("SELECT dutiful.cancel($1, 'no use', $2)", claimed.job_id, T0)

    async with renewing(store) as renewer:
        await after_a_wait(pg18_url, renewer.release(claimed), other.execute("COMMIT"))

    assert await state(store, claimed.job_id) is State.RUNNING


# --- promotion


async def test_a_promotion_passes_by_a_locked_job(store: PostgresStore, other: Any, pg18_url: str) -> None:
    await enqueue(store, first := new_job(run_at=at(1)), second := new_job(run_at=at(2)))
    await lock(other, "scheduled", first.id)

    assert (await not_blocked(pg18_url, store.promotion.promote(10, now=at(3)))).moved == 1
    await other.execute("ROLLBACK")

    assert await states(store, [first.id, second.id]) == [State.SCHEDULED, State.READY]


async def test_a_sweep_passes_by_a_locked_job_of_a_kind_that_is_paused(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    await enqueue(store, first := new_job(), second := new_job())
    await pause(store, PauseScope.KIND, KIND)
    await lock(other, "ready", first.id)

    assert (await not_blocked(pg18_url, store.promotion.sweep(10, now=T0))).moved == 1
    await other.execute("ROLLBACK")

    assert await states(store, [first.id, second.id]) == [State.READY, State.BLOCKED]
    assert (await store.promotion.sweep(10, now=T0)).moved == 1, "the next sweep finds it"


@pytest.mark.parametrize("younger", [False, True])
async def test_a_job_that_an_open_transaction_enqueued_before_the_pause_is_blocked_after_its_commit(
    store: PostgresStore, other: Any, pg18_url: str, younger: bool
) -> None:
    late = new_job()
    pausing = await asyncpg.connect(pg18_url)
    await pausing.execute("BEGIN")
    if younger:  # its transaction has the last id that was given out
        await pausing.execute("SELECT pg_current_xact_id()")
    await store.jobs.insert_within(other, [late])
    await pausing.execute("INSERT INTO dutiful.pause (scope, name, since) VALUES ('kind', $1, $2)", KIND, T0)
    await pausing.execute("COMMIT")
    await pausing.close()
    for minutes in (2, 3):
        assert (await store.promotion.sweep(10, now=T0 + timedelta(minutes=minutes))).moved == 0
    await other.execute("COMMIT")
    await all_ended(other)
    assert await state(store, late.id) is State.READY, "it did not see the pause"

    assert (await store.promotion.sweep(10, now=T0 + timedelta(minutes=4))).moved == 1
    assert await state(store, late.id) is State.BLOCKED


async def test_a_sweep_finds_a_job_that_was_locked_when_its_pause_was_last_swept(
    store: PostgresStore, other: Any
) -> None:
    await enqueue(store, job := new_job())
    await lock(other, "ready", job.id)
    await pause(store, PauseScope.KIND, KIND)
    assert (await store.promotion.sweep(10, now=T0 + timedelta(minutes=2))).moved == 0
    await other.execute("ROLLBACK")
    await all_ended(other)

    assert (await store.promotion.sweep(10, now=T0 + timedelta(minutes=3))).moved == 1


async def test_ready_is_read_for_a_pause_until_all_have_seen_it_and_then_no_more(
    store: PostgresStore, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[list[str]] = []
    call = store.promotion._call

    async def count(name: str, *args: Any) -> Any:
        reads.extend([args[0]] if name == "block_paused" else [])
        return await call(name, *args)

    monkeypatch.setattr(store.promotion, "_call", count)
    await pause(store, PauseScope.KIND, KIND)
    for minutes in (0, 0.5, 2, 3, 4, 5):
        await store.promotion.sweep(10, now=T0 + timedelta(minutes=minutes))
        await all_ended(other)

    assert reads == 4 * [[KIND]], "twice while it was new, and twice after"


@pytest.mark.parametrize("resumed", [True, False], ids=["resumed", "due"])
async def test_an_unblocking_passes_by_a_locked_job(
    store: PostgresStore, other: Any, pg18_url: str, resumed: bool
) -> None:
    await pause(store, PauseScope.KIND, KIND)
    run_at = None if resumed else at(1)
    await enqueue(store, first := new_job(run_at=run_at), second := new_job(run_at=run_at))
    if resumed:
        await store.control.resume(PauseScope.KIND, KIND)
    await lock(other, "blocked", first.id)

    assert (await not_blocked(pg18_url, store.promotion.unblock(10, now=at(2)))).moved == 1
    await other.execute("ROLLBACK")

    assert (await store.promotion.unblock(10, now=at(2))).moved == 1
    await store.control.resume(PauseScope.KIND, KIND)
    await store.promotion.unblock(10, now=at(2))
    assert [one.job_id for one in await claim(store, now=at(2))] == [first.id, second.id]


@pytest.mark.parametrize("end", [None, Cancelled("no use")], ids=["met", "never met"])
async def test_a_sweep_passes_by_a_locked_dependent(
    store: PostgresStore, other: Any, pg18_url: str, end: Cancelled | None
) -> None:
    need = await start_one(store)
    await enqueue(store, first := new_job(depends_on=(need.job_id,)), second := new_job(depends_on=(need.job_id,)))
    assert await (complete(store, need) if end is None else settle(store, need, end)) == []
    await lock(other, "blocked", first.id)

    await not_blocked(pg18_url, store.promotion.sweep(10, now=T0))
    await other.execute("ROLLBACK")

    decided = State.READY if end is None else State.CANCELLED
    assert await states(store, [first.id, second.id]) == [State.BLOCKED, decided]
    await store.promotion.sweep(10, now=T0)
    assert await state(store, first.id) is decided


# --- retention


async def test_retention_passes_by_a_locked_job(store: PostgresStore, other: Any, pg18_url: str) -> None:
    locked, free = await finish_one(store), await finish_one(store)
    await other.execute("SELECT 1 FROM dutiful.job WHERE id = $1 FOR UPDATE", locked)

    assert (await not_blocked(pg18_url, store.retention.delete(DAY, 10, None, now=LATER))).count == 1
    await other.execute("ROLLBACK")

    assert await store.queries.job(free) is None
    assert (await store.retention.delete(DAY, 10, None, now=LATER)).count == 1


@pytest.mark.parametrize("scope", [Scope.WINDOW, Scope.ACTIVE])
async def test_retention_passes_by_a_locked_key(store: PostgresStore, other: Any, pg18_url: str, scope: Scope) -> None:
    unique = Unique("welcome-ada", scope, window=DAY if scope is Scope.WINDOW else None)
    claimed = await start_one(store, unique=unique)
    await lock(other, "unique_key", claimed.job_id)
    assert await complete(store, claimed) == []  # the key of scope active is orphaned, because it is locked

    await not_blocked(pg18_url, store.retention.delete_leftovers(30 * DAY, 10, now=LATER))
    await other.execute("COMMIT")
    keys = "SELECT count(*) FROM dutiful.unique_key"

    assert await other.fetchval(keys) == 1
    await store.retention.delete_leftovers(30 * DAY, 10, now=LATER)
    assert await other.fetchval(keys) == 0


# --- dead letters


async def test_a_review_waits_for_another_and_is_refused_after_it(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    letter = await fail_one(store)
    await other.execute("UPDATE dutiful.dead_letter SET status = 'discarded' WHERE job_id = $1", letter.id)

    review = store.dead_letters.review([act_on(letter, ReviewAct.REPROCESS)], now=T0)
    (answer,) = await after_a_wait(pg18_url, review, other.execute("COMMIT"))

    assert (answer.applied, answer.status) == (False, ReviewState.DISCARDED)
    assert await new_jobs(store) == 0


async def test_a_step_waits_for_a_stop_and_does_nothing_after_it(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    letter = await fail_one(store, tenant="acme")
    run = await start(store)
    await other.execute("UPDATE dutiful.bulk_run SET state = 'stopped', ended_at = now() WHERE id = $1", run.id)

    review = store.dead_letters.review([act_on(letter, run.act)], step=step_of(run, [letter]), now=at(200))

    assert await after_a_wait(pg18_url, review, other.execute("COMMIT")) == []
    assert await found(store, status=[ReviewState.PENDING_REVIEW]) == [letter.id]
    assert await new_jobs(store) == 0


@pytest.mark.parametrize("meanwhile", ["reprocessed again", "discarded"])
async def test_a_dead_letter_that_was_reviewed_meanwhile_is_not_resolved_by_its_former_job(
    store: PostgresStore, other: Any, pg18_url: str, meanwhile: str
) -> None:
    letter = await fail_one(store)
    await applied(store, act_on(letter, ReviewAct.REPROCESS))
    await complete(store, await claim_one(store, levels=[AGAIN]))
    newer = await enqueue_one(store)
    if meanwhile == "discarded":
        await other.execute("UPDATE dutiful.dead_letter SET status = 'discarded' WHERE job_id = $1", letter.id)
    else:
        await other.execute("UPDATE dutiful.dead_letter SET new_job_id = $2 WHERE job_id = $1", letter.id, newer)

    resolving = store.dead_letters.resolve_reprocessed(10, now=T0)

    assert await after_a_wait(pg18_url, resolving, other.execute("COMMIT")) == 0
    stands = ReviewState.DISCARDED if meanwhile == "discarded" else ReviewState.REPROCESSING
    assert (await the_letter(store, letter.id)).status is stands


# --- webhooks


async def test_a_sender_passes_by_a_post_that_another_takes(store: PostgresStore, other: Any, pg18_url: str) -> None:
    await store.webhooks.put([webhook()])
    first, second = await post_one(store, now=at(1)), await post_one(store, now=at(2))
    taken = await other.fetch("SELECT id FROM dutiful.take_posts(1, '30s', '{}', null, null, $1)", at(3))
    assert [row["id"] for row in taken] == [first.id]

    assert [post.id for post in await not_blocked(pg18_url, take(store, now=at(3)))] == [second.id]
    await other.execute("ROLLBACK")

    assert [post.id for post in await take(store, now=at(3))] == [first.id]


async def test_the_end_of_a_post_waits_for_who_took_it_again_and_is_refused(
    store: PostgresStore, other: Any, pg18_url: str
) -> None:
    await store.webhooks.put([webhook()])
    await post_one(store)
    (mine,) = await take(store)
    assert await other.fetch("SELECT id FROM dutiful.take_posts(1, '30s', '{}', null, null, $1)", at(60))

    assert not await after_a_wait(pg18_url, settled(store, mine, now=at(61)), other.execute("COMMIT"))
