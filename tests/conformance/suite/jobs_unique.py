"""At most one job for a key: which job holds it, for how long, and what a second enqueue gets."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from dutiful.core.job import Inserted, Insertion, NewJob, OnConflict, Scope, Unique
from dutiful.core.outcome import Cancelled, Done, Failed, Outcome, Partial
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import RefusalReason
from suite.builders import (
    BACKOFF,
    KIND,
    OOPS,
    T0,
    at,
    claim,
    claim_one,
    complete,
    crash,
    enqueue,
    finish_one,
    made,
    new_job,
    refusal,
    settle,
    start_one,
    state,
    warm,
)

HOUR = timedelta(hours=1)


def keyed(
    scope: Scope = Scope.ACTIVE,
    on_conflict: OnConflict = OnConflict.RETURN,
    *,
    across_kinds: bool = False,
    **fields: Any,
) -> NewJob:
    window = HOUR if scope is Scope.WINDOW else None
    return new_job(unique=Unique("welcome-ada", scope, on_conflict, window, across_kinds), **fields)


@pytest.mark.req("W18", "W25", "W26", "W27")
class JobUniqueSuite:
    @pytest.mark.parametrize("scope", list(Scope))
    async def test_a_second_job_for_a_key_is_not_made(self, store: Store, scope: Scope) -> None:
        first, second = keyed(scope), keyed(scope)
        await enqueue(store, first)

        assert await store.jobs.insert([second], now=at(1)) == [Inserted(first.id, Insertion.EXISTING)]
        assert await store.queries.job(second.id) is None
        assert await store.queries.check_places() == []

    async def test_a_second_job_is_rejected_as_a_value_and_the_rest_of_its_batch_is_made(self, store: Store) -> None:
        first, second = keyed(Scope.FOREVER), keyed(Scope.FOREVER, OnConflict.REJECT)
        before, after = new_job(), new_job()
        await enqueue(store, first)

        answers = await store.jobs.insert([before, second, after], now=at(1))

        assert answers == [*made(before), Inserted(first.id, Insertion.REJECTED), *made(after)]
        assert [c.job_id for c in await claim(store, now=at(1))] == [first.id, before.id, after.id]

    async def test_a_key_is_freed_when_a_lost_claim_and_the_held_one_complete_together(self, store: Store) -> None:
        lost = await start_one(store, unique=Unique("welcome-ada"))
        now = await crash(store)
        held = await claim_one(store, limit=0, suspects=1, now=now)

        assert await complete(store, lost, held, now=now) == [refusal(lost, RefusalReason.LOST)]

        await enqueue(store, keyed(), now=now)
        assert await store.queries.check_places() == []

    async def test_one_key_twice_in_a_batch_makes_one_job(self, store: Store) -> None:
        first, second = keyed(), keyed()

        assert await store.jobs.insert([first, second], now=T0) == [
            *made(first),
            Inserted(first.id, Insertion.EXISTING),
        ]
        assert len(await claim(store)) == 1

    async def test_enqueues_of_one_key_at_once_make_one_job(self, store: Store) -> None:
        await warm(store)
        jobs = [keyed() for _ in range(8)]

        answers = [answer for (answer,) in await asyncio.gather(*(store.jobs.insert([job], now=T0) for job in jobs))]

        assert sorted(answer.insertion for answer in answers) == ["existing"] * 7 + ["made"]
        assert len({answer.job_id for answer in answers}) == 1

    async def test_batches_with_the_same_keys_in_another_order_do_not_deadlock(self, store: Store) -> None:
        await warm(store)

        def batch(keys: list[int]) -> list[NewJob]:
            return [new_job(unique=Unique(f"key-{key}")) for key in keys]

        up, down = list(range(20)), list(range(19, -1, -1))
        answers = await asyncio.gather(*(store.jobs.insert(batch(keys), now=T0) for keys in (up, down) * 4))

        assert sum(a.insertion is Insertion.MADE for answer in answers for a in answer) == 20

    @pytest.mark.parametrize("on_conflict", list(OnConflict))
    async def test_an_enqueue_that_is_repeated_does_not_conflict_with_itself(
        self, store: Store, on_conflict: OnConflict
    ) -> None:
        job = keyed(on_conflict=on_conflict)
        await enqueue(store, job)

        assert await store.jobs.insert([job], now=at(1)) == [Inserted(job.id, Insertion.EXISTING)]
        assert await state(store, job.id) is State.READY

    @pytest.mark.parametrize("on_conflict", list(OnConflict))
    async def test_repeats_of_an_enqueue_at_once_do_not_conflict_with_each_other(
        self, store: Store, on_conflict: OnConflict
    ) -> None:
        await warm(store)
        job = keyed(on_conflict=on_conflict)

        answers = await asyncio.gather(*(store.jobs.insert([job], now=T0) for _ in range(8)))

        assert sorted(answer.insertion for (answer,) in answers) == ["existing"] * 7 + ["made"]
        assert await state(store, job.id) is State.READY

    async def test_a_key_is_held_within_its_kind(self, store: Store) -> None:
        await enqueue(store, keyed(), keyed(kind="other"))

    async def test_a_key_across_kinds_is_held_for_all_of_them(self, store: Store) -> None:
        first = keyed(across_kinds=True)
        await enqueue(store, first)

        second = keyed(across_kinds=True, kind="other")
        assert await store.jobs.insert([second], now=T0) == [Inserted(first.id, Insertion.EXISTING)]

    async def test_tenants_do_not_share_keys(self, store: Store) -> None:
        await enqueue(store, acme := keyed(tenant="acme"), keyed(tenant="umbrella"), keyed())

        assert await store.jobs.insert([keyed(tenant="acme")], now=T0) == [Inserted(acme.id, Insertion.EXISTING)]

    async def test_a_waiting_job_is_replaced_and_ends_as_cancelled(self, store: Store) -> None:
        old = keyed(run_at=at(60))
        new, third = (keyed(on_conflict=OnConflict.REPLACE, run_at=at(n)) for n in (90, 120))
        await enqueue(store, old)

        assert await store.jobs.insert([new], now=at(1)) == [Inserted(new.id, Insertion.REPLACED)]

        record = await store.queries.job(old.id)
        assert record is not None
        assert (record.state, record.finished_at) == (State.CANCELLED, at(1))
        assert record.errors
        assert await state(store, new.id) is State.SCHEDULED
        assert await store.jobs.insert([third], now=at(2)) == [Inserted(third.id, Insertion.REPLACED)]
        assert await state(store, new.id) is State.CANCELLED
        assert await store.queries.check_places() == []

    async def test_a_key_that_is_free_is_taken_without_replacing_anything(self, store: Store) -> None:
        await enqueue(store, keyed(on_conflict=OnConflict.REPLACE))

    async def test_a_running_job_is_not_replaced_but_returned(self, store: Store) -> None:
        running = await start_one(store, unique=keyed().unique)

        answer = await store.jobs.insert([keyed(on_conflict=OnConflict.REPLACE)], now=at(1))

        assert answer == [Inserted(running.job_id, Insertion.EXISTING)]
        assert await state(store, running.job_id) is State.RUNNING

    async def test_a_job_replaced_while_a_dependent_waits_cancels_that_too(self, store: Store) -> None:
        old = keyed()
        await enqueue(store, old, dependent := new_job(depends_on=(old.id,)))

        await store.jobs.insert([keyed(on_conflict=OnConflict.REPLACE)], now=T0)
        await store.promotion.sweep(10, now=T0)

        assert await state(store, dependent.id) is State.CANCELLED

    async def test_a_key_while_queued_is_free_once_its_job_is_claimed(self, store: Store) -> None:
        first = await start_one(store, unique=keyed(Scope.QUEUED).unique)

        await enqueue(store, second := keyed(Scope.QUEUED))

        await settle(store, first, Failed(OOPS), now=at(1))
        assert await store.jobs.insert([keyed(Scope.QUEUED)], now=at(1)) == [Inserted(second.id, Insertion.EXISTING)]
        assert await store.queries.check_places() == []

    @pytest.mark.parametrize("scope", [Scope.QUEUED, Scope.ACTIVE])
    async def test_a_waiting_job_that_is_cancelled_frees_its_key(self, store: Store, scope: Scope) -> None:
        await enqueue(store, first := keyed(scope))

        await store.control.cancel(first.id, "no use", now=T0)

        await enqueue(store, keyed(scope))

    async def test_a_key_while_active_is_held_through_retries_and_crashes(self, store: Store) -> None:
        job_id = (await start_one(store, unique=keyed().unique)).job_id
        conflict = [Inserted(job_id, Insertion.EXISTING)]
        assert await store.jobs.insert([keyed()], now=T0) == conflict

        now = await crash(store)
        assert await store.jobs.insert([keyed()], now=now) == conflict
        await settle(store, await claim_one(store, limit=0, suspects=1, now=now), Failed(OOPS), now=now)
        assert await store.jobs.insert([keyed()], now=now) == conflict
        await store.promotion.promote(10, now=now + BACKOFF)
        assert await store.jobs.insert([keyed()], now=now + BACKOFF) == conflict

    @pytest.mark.parametrize("end", [Done(), Partial(None, (OOPS,)), Failed(OOPS, final=True), Cancelled("no use")])
    async def test_a_key_while_active_is_free_once_its_job_is_final(self, store: Store, end: Outcome) -> None:
        await finish_one(store, end, unique=keyed().unique)

        await enqueue(store, keyed())
        assert await store.queries.check_places() == []

    async def test_a_completed_job_frees_its_key(self, store: Store) -> None:
        await finish_one(store, unique=keyed().unique)

        await enqueue(store, keyed())

    async def test_a_key_for_a_window_is_held_for_that_time_whatever_becomes_of_its_job(self, store: Store) -> None:
        job_id = await finish_one(store, unique=keyed(Scope.WINDOW).unique)

        held = await store.jobs.insert([keyed(Scope.WINDOW)], now=T0 + HOUR - timedelta(seconds=1))
        assert held == [Inserted(job_id, Insertion.EXISTING)]
        await enqueue(store, keyed(Scope.WINDOW), now=T0 + HOUR + timedelta(seconds=1))

    async def test_a_window_that_passed_is_free_though_its_job_still_waits(self, store: Store) -> None:
        await enqueue(store, keyed(Scope.WINDOW), now=T0)

        await enqueue(store, keyed(Scope.WINDOW), now=T0 + 2 * HOUR)

        assert len(await claim(store, now=T0 + 2 * HOUR)) == 2
        assert await store.queries.check_places() == []

    async def test_a_key_for_ever_outlives_its_job(self, store: Store) -> None:
        job_id = await finish_one(store, unique=keyed(Scope.FOREVER).unique)
        later = T0 + timedelta(days=400)

        assert (await store.retention.delete(timedelta(days=1), 10, None, now=later)).count == 1

        assert await store.queries.job(job_id) is None
        refused = await store.jobs.insert([keyed(Scope.FOREVER, OnConflict.REJECT)], now=later)
        assert refused == [Inserted(job_id, Insertion.REJECTED)]
        assert await store.queries.check_places() == []

    async def test_a_key_is_the_same_in_every_scope(self, store: Store) -> None:
        await enqueue(store, first := keyed(Scope.QUEUED))

        assert await store.jobs.insert([keyed(Scope.FOREVER)], now=T0) == [Inserted(first.id, Insertion.EXISTING)]
        assert [c.kind for c in await claim(store)] == [KIND]

    @pytest.mark.parametrize("on_conflict", list(OnConflict))
    async def test_a_job_is_rejected_by_the_first_key_it_would_inherit_before_its_own(
        self, store: Store, on_conflict: OnConflict
    ) -> None:
        own, zoe, bob = keyed(), new_job(unique=Unique("zoe")), new_job(unique=Unique("bob"))
        await enqueue(store, own, zoe, bob)

        heir = keyed(on_conflict=on_conflict, inherits=(Unique("free"), Unique("zoe"), Unique("bob")))

        assert await store.jobs.insert([heir], now=T0) == [Inserted(zoe.id, Insertion.REJECTED)]
        assert [await state(store, job.id) for job in (own, zoe, bob)] == [State.READY] * 3
        assert await store.jobs.insert([keyed()], now=T0) == [Inserted(own.id, Insertion.EXISTING)]
        assert await store.queries.check_places() == []
