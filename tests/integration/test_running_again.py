"""A job that a person runs again keeps its unique key, by every door, on both stores."""

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest
from operating import dead_letter, now, operator, trail

from dutiful.core import ids
from dutiful.core.errors import UniqueConflict
from dutiful.core.job import Insertion, JobRecord, OnConflict, Scope, Unique
from dutiful.core.outcome import Failed
from dutiful.core.review.state import ReviewAct, ReviewState
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.dead_letters import DeadLetterFilter
from dutiful.store.queries import JobFilter
from suite.builders import claim, complete, enqueue_one, finish_one, new_job, settle

KEY = "email_fetch_conn_456_msg_789"
FOR_EVER = Unique(KEY, Scope.FOREVER, OnConflict.REJECT)


async def found(store: Store, job_id: UUID) -> JobRecord:
    record = await store.queries.job(job_id)
    assert record is not None
    return record


async def holder(store: Store, unique: Unique = FOR_EVER) -> UUID | None:
    """The job that an enqueue with this key meets; None if the key is free."""
    job = new_job(unique=Unique(unique.key, unique.scope, OnConflict.REJECT, unique.window))
    (met,) = await store.jobs.insert([job], now=now())
    return None if met.insertion is Insertion.MADE else met.job_id


async def live(store: Store) -> list[JobRecord]:
    return [job for job in await store.queries.jobs(JobFilter(limit=100)) if not job.state.final]


async def end_all(store: Store) -> None:
    await complete(store, *await claim(store, now=now()), now=now())


@pytest.mark.req("W18", "W25", "W68")
async def test_an_ended_job_and_its_copy_never_run_side_by_side(store: Store) -> None:
    ada, first = operator(store), await finish_one(store, now=now(), unique=FOR_EVER)
    copy = (await ada.jobs.retry(first)).job_id
    await end_all(store)

    again = await ada.jobs.retry(copy)
    with pytest.raises(UniqueConflict, match=ids.public(again.job_id)) as refused:
        await ada.jobs.retry(first)

    assert refused.value.existing == again.job_id
    assert [job.id for job in await live(store)] == [again.job_id]
    assert await holder(store) == again.job_id


@pytest.mark.req("W18", "W25")
@pytest.mark.parametrize("scope", [Scope.ACTIVE, Scope.FOREVER])
async def test_the_copy_shows_and_holds_the_key_of_the_job_that_it_repeats(store: Store, scope: Scope) -> None:
    unique = Unique(KEY, scope)
    first = await finish_one(store, now=now(), unique=unique, payload=f'{{"idempotency_key": "{KEY}"}}')

    copy = await found(store, (await operator(store).jobs.retry(first)).job_id)

    assert copy.options is not None and copy.options["unique"] == KEY
    assert copy.payload == {"idempotency_key": KEY}
    assert await holder(store, unique) == copy.id
    await end_all(store)
    assert (await holder(store, unique) is None) is (scope is Scope.ACTIVE)


@pytest.mark.req("W18")
async def test_a_key_that_another_job_has_taken_meanwhile_refuses_the_retry(store: Store) -> None:
    first = await finish_one(store, now=now(), unique=Unique(KEY))
    taker = await enqueue_one(store, now=now(), unique=Unique(KEY))

    with pytest.raises(UniqueConflict) as refused:
        await operator(store).jobs.retry(first)

    assert refused.value.existing == taker
    assert [job.id for job in await live(store)] == [taker]
    assert [event.outcome for event in await trail(store)] == ["requested", "refused"]


async def test_a_double_click_finds_the_copy_of_the_first(store: Store) -> None:
    ada = operator(store)
    keyed, plain = await finish_one(store, now=now(), unique=FOR_EVER), await finish_one(store, now=now())

    for job_id in (keyed, plain):
        first, *others = await asyncio.gather(*(ada.jobs.retry(job_id) for _ in range(4)))
        assert {other.job_id for other in others} == {first.job_id}
        assert sorted([first.made, *(other.made for other in others)]) == [False, False, False, True]

    assert (await found(store, (await ada.jobs.retry(plain)).job_id)).options is None


async def test_a_key_of_waiting_jobs_lets_the_next_one_in_while_the_copy_runs(store: Store) -> None:
    unique = Unique(KEY, Scope.QUEUED)
    first = await finish_one(store, now=now(), unique=unique)
    copy = (await operator(store).jobs.retry(first)).job_id
    assert await holder(store, unique) == copy

    await claim(store, now=now())

    assert await holder(store, unique) is None


async def test_a_key_for_a_time_moves_and_ends_when_it_was_to_end(store: Store) -> None:
    window = Unique(KEY, Scope.WINDOW, window=timedelta(hours=1))
    begun = now() - timedelta(minutes=59, seconds=30)
    first = await finish_one(store, now=begun, unique=window)

    copy = (await operator(store).jobs.retry(first)).job_id

    assert await holder(store, window) == copy
    again = new_job(unique=window)
    (met,) = await store.jobs.insert([again], now=now() + timedelta(minutes=1))
    assert met.insertion is Insertion.MADE


async def test_a_retry_that_loses_one_of_its_keys_returns_the_others(store: Store) -> None:
    ada, base = operator(store), Unique(KEY)
    made = await ada.dead_letters.reprocess(await dead_letter(store, unique=base))
    assert made.new_unique_key is not None
    ended, retried = made.new_job_id, Unique(made.new_unique_key)
    await end_all(store)
    live_one = await enqueue_one(store, now=now(), unique=base)

    with pytest.raises(UniqueConflict) as refused:
        await ada.jobs.retry(ended)

    assert refused.value.existing == live_one
    assert await holder(store, retried) is None
    assert await holder(store, Unique(f"retry of {ended}")) is None


@pytest.mark.req("W18", "W45")
@pytest.mark.parametrize("scope", [Scope.ACTIVE, Scope.FOREVER])
async def test_a_reprocessed_dead_letter_holds_the_first_key_beside_its_own(store: Store, scope: Scope) -> None:
    unique, ada = Unique(KEY, scope), operator(store)
    dead = await dead_letter(store, unique=unique)

    made = await ada.dead_letters.reprocess(dead)

    assert made.new_unique_key is not None and made.new_unique_key.startswith(f"{KEY}_retry_")
    assert await holder(store, unique) == made.new_job_id
    # And so does the job that replaces the one that replaced it.
    (claimed,) = await claim(store, now=now())
    await settle(store, claimed, Failed({"type": "E", "message": "again"}, final=True), now=now())
    next_one = await ada.dead_letters.reprocess(made.new_job_id)
    assert await holder(store, unique) == next_one.new_job_id
    with pytest.raises(UniqueConflict) as refused:
        await ada.jobs.retry(dead)
    assert refused.value.existing == next_one.new_job_id


async def test_a_users_key_that_looks_like_a_retrys_is_no_retry_of_the_shorter_key(store: Store) -> None:
    ada, own = operator(store), Unique(f"{KEY}_retry_1767225600.123", Scope.FOREVER)
    copy = (await ada.jobs.retry(await finish_one(store, now=now(), unique=own))).job_id
    (claimed,) = await claim(store, now=now())
    await settle(store, claimed, Failed({"type": "E", "message": "broken"}, final=True), now=now())
    other = await enqueue_one(store, now=now(), unique=Unique(KEY, Scope.FOREVER))

    made = await ada.dead_letters.reprocess(copy)

    assert {job.id for job in await live(store)} == {other, made.new_job_id}
    assert await holder(store, own) == made.new_job_id


@pytest.mark.req("W18")
async def test_a_dead_letter_whose_key_a_live_job_holds_is_not_reprocessed(store: Store) -> None:
    dead = await dead_letter(store, unique=Unique(KEY))
    taker = await enqueue_one(store, now=now(), unique=Unique(KEY))

    with pytest.raises(UniqueConflict, match=ids.public(taker)) as refused:
        await operator(store).dead_letters.reprocess(dead)

    letter = await store.dead_letters.find(dead)
    assert refused.value.existing == taker
    assert letter is not None and letter.status is ReviewState.PENDING_REVIEW
    assert [job.id for job in await live(store)] == [taker]


@pytest.mark.req("W18")
async def test_a_bulk_run_starts_one_of_those_that_share_a_key_and_names_it_to_the_others(store: Store) -> None:
    ada = operator(store)
    dead = [await dead_letter(store, unique=Unique(KEY)) for _ in range(3)]

    run = await ada.bulk.start(ReviewAct.REPROCESS, DeadLetterFilter())
    run = await ada.bulk.step(run.id)

    (running,) = await live(store)
    assert (run.done, run.skipped) == (1, 2)
    assert running.retry_of in dead
    refused = [event.after for event in await trail(store) if event.outcome == "refused"]
    assert [after and after["held_by"] for after in refused] == [ids.public(running.id)] * 2


async def test_the_key_of_a_job_that_retention_has_deleted_moves_as_well(store: Store) -> None:
    deleted = await finish_one(store, now=now() - timedelta(days=1), unique=FOR_EVER)
    await store.retention.delete(timedelta(hours=1), 100, None, tombstones=False)
    assert await store.queries.job(deleted) is None
    ended = await finish_one(store, now=now(), options=f'{{"unique": "{KEY}", "unique_as": {{"scope": "forever"}}}}')
    assert await holder(store) == deleted

    again = await operator(store).jobs.retry(ended)

    assert again.made and again.state is State.READY
    assert await holder(store) == again.job_id
