"""What people do to jobs: cancel and expedite."""

from typing import Any
from uuid import UUID

import pytest

from dutiful.core.outcome import Cancelled, Failed, Lost
from dutiful.core.transitions import State
from dutiful.store import CancelResult, PauseScope, Store, Verdict
from dutiful.testing.store_suite.builders import (
    EXPIRED,
    KIND,
    OOPS,
    T0,
    at,
    change,
    claim,
    complete,
    enqueue_one,
    finish_one,
    new_id,
    pause,
    refusal,
    settle,
    start_one,
    state,
)


class ActSuite:
    @pytest.mark.parametrize("place", [State.READY, State.SCHEDULED, State.BLOCKED])
    async def test_a_waiting_job_is_cancelled_at_once(self, store: Store, place: State) -> None:
        job_id = await waiting(store, place)

        assert await store.cancel(job_id, "no use", now=at(1)) == CancelResult(State.CANCELLED, changed=True)

        record = await store.find(job_id)
        assert record is not None
        assert (record.state, record.finished_at) == (State.CANCELLED, at(1))
        assert record.errors
        assert record.errors[0]["message"] == "no use"
        assert await store.check_places() == []

    async def test_a_cancelled_job_is_never_claimed(self, store: Store) -> None:
        await store.cancel(await waiting(store, State.READY), "no use", now=T0)
        await store.cancel(await waiting(store, State.SCHEDULED), "no use", now=T0)

        assert (await store.promote(10, now=at(999))).moved == 0
        assert await claim(store, now=at(999)) == []

    async def test_a_running_job_is_asked_to_stop(self, store: Store) -> None:
        claimed = await start_one(store)

        assert await store.cancel(claimed.job_id, "no use", now=at(1)) == CancelResult(
            State.RUNNING, changed=True, requested=True
        )

        record = await store.find(claimed.job_id)
        assert record is not None
        assert (record.state, record.cancel_requested_at) == (State.RUNNING, at(1))
        assert await settle(store, claimed, Cancelled("no use"), now=at(2)) == []
        assert await state(store, claimed.job_id) is State.CANCELLED

    async def test_a_second_request_to_stop_does_not_move_the_first(self, store: Store) -> None:
        claimed = await start_one(store)
        await store.cancel(claimed.job_id, "no use", now=at(1))

        again = await store.cancel(claimed.job_id, "no use", now=at(2))

        assert again is not None
        assert (again.state, again.requested) == (State.RUNNING, True)
        record = await store.find(claimed.job_id)
        assert record is not None
        assert record.cancel_requested_at == at(1)

    async def test_a_job_that_was_to_stop_and_lost_its_worker_is_not_run_again(self, store: Store) -> None:
        claimed = await start_one(store)
        await store.cancel(claimed.job_id, "no use", now=T0)
        now = at(EXPIRED)
        (lapsed,) = await store.lapsed(10, now=now)

        assert await store.settle([change(lapsed, Lost())], lapsed_only=True, now=now) == [
            refusal(lapsed, Verdict.CANCEL_REQUESTED)
        ]
        assert await store.settle([change(lapsed, Cancelled("no use"))], lapsed_only=True, now=now) == []
        assert await state(store, claimed.job_id) is State.CANCELLED

    async def test_a_final_job_stays_as_it_is(self, store: Store) -> None:
        done, failed = await finish_one(store), await finish_one(store, Failed(OOPS, final=True))

        assert await store.cancel(done, "no use", now=at(1)) == CancelResult(State.COMPLETED, changed=False)
        assert await store.cancel(failed, "no use", now=at(1)) == CancelResult(State.FAILED, changed=False)
        assert await state(store, done) is State.COMPLETED

    async def test_a_job_is_cancelled_once(self, store: Store) -> None:
        job_id = await enqueue_one(store)
        await store.cancel(job_id, "no use", now=T0)

        assert await store.cancel(job_id, "again", now=at(1)) == CancelResult(State.CANCELLED, changed=False)
        record = await store.find(job_id)
        assert record is not None
        assert record.errors
        assert record.errors[0]["message"] == "no use"

    async def test_an_unknown_job_is_neither_cancelled_nor_expedited(self, store: Store) -> None:
        assert await store.cancel(new_id(), "no use", now=T0) is None
        assert await store.expedite(new_id(), now=T0) is None

    async def test_a_scheduled_job_can_be_made_due(self, store: Store) -> None:
        job_id = await waiting(store, State.SCHEDULED)

        assert await store.expedite(job_id, now=at(1)) is State.READY

        assert [c.job_id for c in await claim(store, now=at(1))] == [job_id]
        assert await store.check_places() == []

    async def test_a_retry_can_be_made_due_and_has_spent_its_attempt(self, store: Store) -> None:
        await settle(store, failed := await start_one(store), Failed(OOPS))

        assert await store.expedite(failed.job_id, now=at(1)) is State.READY
        assert [c.attempt for c in await claim(store, now=at(1))] == [2]

    async def test_a_job_that_is_not_scheduled_is_left_where_it_stands(self, store: Store) -> None:
        running, done = await start_one(store), await finish_one(store)

        assert await store.expedite(await waiting(store, State.BLOCKED), now=T0) is State.BLOCKED
        assert await store.expedite(await waiting(store, State.READY), now=T0) is State.READY
        assert await store.expedite(running.job_id, now=T0) is State.RUNNING
        assert await store.expedite(done, now=T0) is State.COMPLETED
        assert await complete(store, running) == []

    async def test_a_paused_kind_stays_paused_for_an_expedited_job(self, store: Store) -> None:
        job_id = await waiting(store, State.SCHEDULED)
        await pause(store, PauseScope.KIND, KIND)

        assert await store.expedite(job_id, now=T0) in {State.READY, State.BLOCKED}

        assert await claim(store) == []
        await store.sweep(10, now=T0)
        assert await state(store, job_id) is State.BLOCKED


async def waiting(store: Store, place: State, **fields: Any) -> UUID:
    """A new job that waits in `place`."""
    match place:
        case State.SCHEDULED:
            return await enqueue_one(store, run_at=at(60), **fields)
        case State.BLOCKED:
            return await enqueue_one(store, depends_on=(await enqueue_one(store, queue="slow"),), **fields)
        case _:
            return await enqueue_one(store, **fields)
