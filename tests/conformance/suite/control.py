"""Operators' actions: cancel, fail, run now, pause and resume."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.job import HeldClaim, PhaseState, Unique
from dutiful.core.outcome import Cancelled, Failed, Lost
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.claims import RefusalReason
from dutiful.store.control import CancelResult, Pause, PauseScope
from suite.builders import (
    ADA,
    EXPIRED,
    KIND,
    OOPS,
    PIPELINE,
    T0,
    at,
    change,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_one,
    finish_one,
    new_id,
    new_job,
    pause,
    refusal,
    settle,
    start_one,
    state,
)
from suite.webhooks import webhook


class ControlSuite:
    @pytest.mark.parametrize("place", [State.READY, State.SCHEDULED, State.BLOCKED])
    async def test_a_waiting_job_is_cancelled_at_once(self, store: Store, place: State) -> None:
        job_id = await waiting(store, place)

        assert await store.control.cancel(job_id, "no use", now=at(1)) == CancelResult(State.CANCELLED, changed=True)

        record = await store.queries.job(job_id)
        assert record is not None
        assert (record.state, record.finished_at) == (State.CANCELLED, at(1))
        assert record.errors
        assert record.errors[0]["message"] == "no use"
        assert await store.queries.check_places() == []

    async def test_a_cancelled_job_is_never_claimed(self, store: Store) -> None:
        await store.control.cancel(await waiting(store, State.READY), "no use", now=T0)
        await store.control.cancel(await waiting(store, State.SCHEDULED), "no use", now=T0)

        assert (await store.promotion.promote(10, now=at(999))).moved == 0
        assert await claim(store, now=at(999)) == []

    async def test_a_running_job_gets_a_cancel_request(self, store: Store) -> None:
        claimed = await start_one(store)

        assert await store.control.cancel(claimed.job_id, "no use", now=at(1)) == CancelResult(
            State.RUNNING, changed=True, requested=True
        )

        record = await store.queries.job(claimed.job_id)
        assert record is not None
        assert (record.state, record.cancel_requested_at) == (State.RUNNING, at(1))
        assert await settle(store, claimed, Cancelled("no use"), now=at(2)) == []
        assert await state(store, claimed.job_id) is State.CANCELLED

    async def test_a_second_cancel_request_keeps_the_time_of_the_first(self, store: Store) -> None:
        claimed = await start_one(store)
        await store.control.cancel(claimed.job_id, "no use", now=at(1))

        again = await store.control.cancel(claimed.job_id, "no use", now=at(2))

        assert again is not None
        assert (again.state, again.requested) == (State.RUNNING, True)
        record = await store.queries.job(claimed.job_id)
        assert record is not None
        assert record.cancel_requested_at == at(1)

    async def test_a_job_with_a_cancel_request_that_lost_its_worker_is_not_run_again(self, store: Store) -> None:
        claimed = await start_one(store)
        await store.control.cancel(claimed.job_id, "no use", now=T0)
        now = at(EXPIRED)
        (expired,) = await store.claims.expired(10, now=now)

        assert await store.claims.settle([change(expired, Lost())], expired_only=True, now=now) == [
            refusal(expired, RefusalReason.CANCEL_REQUESTED)
        ]
        assert await store.claims.settle([change(expired, Cancelled("no use"))], expired_only=True, now=now) == []
        assert await state(store, claimed.job_id) is State.CANCELLED

    async def test_a_final_job_stays_as_it_is(self, store: Store) -> None:
        done, failed = await finish_one(store), await finish_one(store, Failed(OOPS, final=True))

        assert await store.control.cancel(done, "no use", now=at(1)) == CancelResult(State.COMPLETED, changed=False)
        assert await store.control.cancel(failed, "no use", now=at(1)) == CancelResult(State.FAILED, changed=False)
        assert await state(store, done) is State.COMPLETED

    async def test_a_job_is_cancelled_once(self, store: Store) -> None:
        job_id = await enqueue_one(store)
        await store.control.cancel(job_id, "no use", now=T0)

        assert await store.control.cancel(job_id, "again", now=at(1)) == CancelResult(State.CANCELLED, changed=False)
        record = await store.queries.job(job_id)
        assert record is not None
        assert record.errors
        assert record.errors[0]["message"] == "no use"

    async def test_an_unknown_job_is_neither_cancelled_nor_run_now(self, store: Store) -> None:
        assert await store.control.cancel(new_id(), "no use", now=T0) is None
        assert await store.control.run_now(new_id(), now=T0) is None

    @pytest.mark.req("L26", "L42")
    @pytest.mark.parametrize("place", [State.READY, State.SCHEDULED, State.BLOCKED])
    async def test_a_waiting_job_that_is_failed_becomes_a_dead_letter(self, store: Store, place: State) -> None:
        job_id = await waiting(store, place, payload='{"n": 1}', max_attempts=3)

        assert await store.control.fail(job_id, OOPS, now=at(1))

        record, letter = await store.queries.job(job_id), await store.dead_letters.find(job_id)
        assert record is not None and letter is not None
        assert (record.state, record.finished_at, record.errors) == (State.FAILED, at(1), [OOPS])
        assert (letter.died_at, letter.message, letter.errors) == (at(1), "oops", [OOPS])
        assert (letter.attempt, letter.max_attempts, letter.payload) == (0, 3, {"n": 1})
        assert (await store.promotion.promote(10, now=at(999))).moved == 0
        assert job_id not in [claimed.job_id for claimed in await claim(store, now=at(999))]
        assert await store.queries.check_places() == []

    @pytest.mark.req("L42")
    async def test_a_failed_job_frees_its_key_its_dependents_and_its_phases(self, store: Store) -> None:
        job = new_job(unique=Unique("k"), options=PIPELINE)
        await enqueue(store, job)
        dependent = await enqueue_one(store, depends_on=(job.id,))
        await store.webhooks.put([webhook()])

        assert await store.control.fail(job.id, OOPS, now=at(1))

        await enqueue(store, new_job(unique=Unique("k")), now=at(1))
        await store.promotion.sweep(10, now=at(1))
        assert await state(store, dependent) is State.CANCELLED
        assert {phase.state for phase in await store.progress.phases(job.id)} == {PhaseState.CANCELLED}
        assert [post.event for post in await store.webhooks.posts(job_id=job.id)] == ["job.failed"]
        assert await store.queries.check_places() == []

    @pytest.mark.req("L42")
    async def test_only_a_waiting_job_is_failed_and_only_once(self, store: Store) -> None:
        running, done, twice = await start_one(store), await finish_one(store), await enqueue_one(store)
        assert await store.control.fail(twice, OOPS, now=T0)

        for job_id in (running.job_id, done, twice, new_id()):
            assert not await store.control.fail(job_id, {"type": "Other", "message": "again"}, now=at(1))

        assert await state(store, done) is State.COMPLETED
        assert await complete(store, running) == []
        record = await store.queries.job(twice)
        assert record is not None and record.errors == [OOPS]

    @pytest.mark.req("L41")
    @pytest.mark.parametrize(
        ("place", "delay", "to"),
        [
            (State.READY, 60, State.SCHEDULED),
            (State.READY, 0, State.READY),
            (State.SCHEDULED, 60, State.SCHEDULED),
            (State.SCHEDULED, 0, State.SCHEDULED),
        ],
    )
    async def test_a_failed_attempt_of_a_waiting_job_is_counted(
        self, store: Store, place: State, delay: int, to: State
    ) -> None:
        job_id = await waiting(store, place, unique=Unique("k"), tenant="acme")

        for had, becomes in ((1, None), (0, to), (0, None)):
            retried = store.control.retry(job_id, OOPS, attempt=had, delay=timedelta(seconds=delay), now=at(1))
            assert await retried is becomes

        (tried,) = await store.queries.attempts(job_id)
        assert (tried.attempt, tried.outcome, tried.error) == (1, "failed", OOPS)
        assert (tried.claimed_at, tried.ended_at) == (None, at(1))
        assert delay == 0 or (await store.promotion.promote(10, now=at(delay))).moved == 0
        assert not await store.control.fail(job_id, OOPS, attempt=0, now=at(1))
        await store.promotion.promote(10, now=at(61))
        claimed = await claim_one(store, now=at(61))
        assert (claimed.job_id, claimed.attempt, claimed.tenant) == (job_id, 2, "acme")
        assert claimed.claim_id > tried.claim_id
        assert await store.control.retry(job_id, OOPS, attempt=2, delay=timedelta(0), now=at(62)) is None
        assert await store.queries.check_places() == []

    @pytest.mark.req("L35", "L41")
    @pytest.mark.parametrize("paused", [False, True])
    async def test_a_failed_attempt_brings_no_job_forward(self, store: Store, paused: bool) -> None:
        job_id = await waiting(store, State.SCHEDULED, kind="mail")
        if paused:
            await pause(store, PauseScope.KIND, "mail")
            await store.promotion.sweep(10, now=at(1))

        await store.control.retry(job_id, OOPS, attempt=0, delay=timedelta(seconds=1), now=at(1))

        await store.control.resume(PauseScope.KIND, "mail")
        for time, moved in ((59, []), (60, [job_id])):
            await store.promotion.sweep(10, now=at(time))
            await store.promotion.promote(10, now=at(time))
            assert [claimed.job_id for claimed in await claim(store, kinds=["mail"], now=at(time))] == moved

    @pytest.mark.req("L41")
    @pytest.mark.parametrize("delay", [0, 60])
    async def test_a_failed_attempt_of_a_waiting_job_passes_no_gate(self, store: Store, delay: int) -> None:
        paused = await waiting(store, State.READY, kind="mail")
        await pause(store, PauseScope.KIND, "mail")
        need = await start_one(store, queue="slow")
        dependent = await enqueue_one(store, depends_on=(need.job_id,))

        for job_id in (paused, dependent):
            length = timedelta(seconds=delay)
            assert await store.control.retry(job_id, OOPS, attempt=0, delay=length, now=at(1)) is State.BLOCKED

        await store.promotion.promote(10, now=at(99))
        await store.promotion.sweep(10, now=at(99))
        assert await claim(store, now=at(99)) == []
        await complete(store, need, now=at(99))
        await store.promotion.sweep(10, now=at(99))
        (claimed,) = await claim(store, now=at(99))
        assert (claimed.job_id, claimed.attempt) == (dependent, 2)
        assert await store.control.fail(paused, OOPS, attempt=1, now=at(99))
        letter = await store.dead_letters.find(paused)
        assert letter is not None and letter.attempt == 2
        assert await store.queries.check_places() == []

    @pytest.mark.req("L41")
    async def test_a_claim_that_was_ended_from_outside_is_lost_to_its_worker(self, store: Store) -> None:
        claimed = await start_one(store, tenant="acme", correlation_id="order 7")
        whose = {"tenant": "acme", "correlation_id": "order 7"}
        held = await store.claims.held(claimed.job_id)
        assert held == HeldClaim(claimed.job_id, claimed.claim_id, 1, 0, KIND, ADA, cancel_requested=False, **whose)

        assert await settle(store, held, Failed(OOPS, final=True), now=at(1)) == []

        assert await store.claims.held(claimed.job_id) is None
        assert await complete(store, claimed, now=at(2)) == [refusal(claimed, RefusalReason.LOST)]
        assert [attempt.outcome for attempt in await store.queries.attempts(claimed.job_id)] == ["refused"]
        assert await state(store, claimed.job_id) is State.FAILED

    async def test_a_scheduled_job_can_be_run_now(self, store: Store) -> None:
        job_id = await waiting(store, State.SCHEDULED)

        assert await store.control.run_now(job_id, now=at(1)) is State.READY

        assert [c.job_id for c in await claim(store, now=at(1))] == [job_id]
        assert await store.queries.check_places() == []

    async def test_a_retry_that_is_run_now_has_spent_its_attempt(self, store: Store) -> None:
        await settle(store, failed := await start_one(store), Failed(OOPS))

        assert await store.control.run_now(failed.job_id, now=at(1)) is State.READY
        assert [c.attempt for c in await claim(store, now=at(1))] == [2]

    async def test_a_job_that_is_not_scheduled_is_left_where_it_stands(self, store: Store) -> None:
        running, done = await start_one(store), await finish_one(store)

        assert await store.control.run_now(await waiting(store, State.BLOCKED), now=T0) is State.BLOCKED
        assert await store.control.run_now(await waiting(store, State.READY), now=T0) is State.READY
        assert await store.control.run_now(running.job_id, now=T0) is State.RUNNING
        assert await store.control.run_now(done, now=T0) is State.COMPLETED
        assert await complete(store, running) == []

    async def test_a_paused_kind_stays_paused_for_a_job_that_is_run_now(self, store: Store) -> None:
        job_id = await waiting(store, State.SCHEDULED)
        await pause(store, PauseScope.KIND, KIND)

        assert await store.control.run_now(job_id, now=T0) in {State.READY, State.BLOCKED}

        assert await claim(store) == []
        await store.promotion.sweep(10, now=T0)
        assert await state(store, job_id) is State.BLOCKED

    async def test_a_pause_is_set_once_and_resumed_once(self, store: Store) -> None:
        assert await pause(store, PauseScope.KIND, KIND)
        assert not await pause(store, PauseScope.KIND, KIND, now=at(1))
        assert await store.control.pauses() == [Pause(PauseScope.KIND, KIND, T0, "ops", "incident")]

        assert await store.control.resume(PauseScope.KIND, KIND)
        assert not await store.control.resume(PauseScope.KIND, KIND)
        assert await store.control.pauses() == []

    async def test_pauses_of_one_name_in_different_scopes_are_different(self, store: Store) -> None:
        for scope in PauseScope:
            assert await pause(store, scope, "x")

        assert {(p.scope, p.name) for p in await store.control.pauses()} == {(scope, "x") for scope in PauseScope}
        await store.control.resume(PauseScope.QUEUE, "x")
        assert {p.scope for p in await store.control.pauses()} == {PauseScope.KIND, PauseScope.LANE}


async def waiting(store: Store, place: State, **fields: Any) -> UUID:
    """A new job that waits in `place`."""
    match place:
        case State.SCHEDULED:
            return await enqueue_one(store, run_at=at(60), **fields)
        case State.BLOCKED:
            return await enqueue_one(store, depends_on=(await enqueue_one(store, queue="slow"),), **fields)
        case _:
            return await enqueue_one(store, **fields)
