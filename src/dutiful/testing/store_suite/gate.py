"""What keeps a job blocked, and what the sweep does about it."""

import pytest

from dutiful.acting import Pause, PauseScope
from dutiful.core.outcome import Cancelled, Failed, Outcome, Partial
from dutiful.core.transitions import State
from dutiful.duties import Promotion
from dutiful.store import Store
from dutiful.testing.store_suite.builders import (
    DEFAULT,
    KIND,
    OOPS,
    T0,
    at,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_one,
    finish_one,
    new_job,
    pause,
    settle,
    start_one,
    state,
    states,
)


class GateSuite:
    async def test_a_pause_is_told_once_and_undone_once(self, store: Store) -> None:
        assert await pause(store, PauseScope.KIND, KIND)
        assert not await pause(store, PauseScope.KIND, KIND, now=at(1))
        assert await store.pauses() == [Pause(PauseScope.KIND, KIND, T0, "ops", "incident")]

        assert await store.resume(PauseScope.KIND, KIND)
        assert not await store.resume(PauseScope.KIND, KIND)
        assert await store.pauses() == []

    async def test_pauses_of_one_name_in_different_scopes_are_different(self, store: Store) -> None:
        for scope in PauseScope:
            assert await pause(store, scope, "x")

        assert {(p.scope, p.name) for p in await store.pauses()} == {(scope, "x") for scope in PauseScope}
        await store.resume(PauseScope.QUEUE, "x")
        assert {p.scope for p in await store.pauses()} == {PauseScope.KIND, PauseScope.LANE}

    async def test_a_resumed_kind_is_ready_again(self, store: Store) -> None:
        await pause(store, PauseScope.KIND, KIND)
        jobs = [new_job(), new_job(), new_job(queue="fast", priority=5)]
        await enqueue(store, *jobs)
        assert (await store.sweep(10, now=at(1))).moved == 0
        await store.resume(PauseScope.KIND, KIND)

        swept = await store.sweep(10, now=at(1))

        assert (swept.moved, swept.lines) == (3, frozenset({("default", 100), ("fast", 5)}))
        assert await states(store, [job.id for job in jobs]) == [State.READY] * 3
        assert [c.job_id for c in await claim(store, now=at(1))] == [jobs[0].id, jobs[1].id]
        assert await store.check_places() == []

    async def test_a_resumed_job_that_is_not_due_is_scheduled(self, store: Store) -> None:
        await pause(store, PauseScope.KIND, KIND)
        job_id = await enqueue_one(store, run_at=at(60))
        await store.resume(PauseScope.KIND, KIND)

        await store.sweep(10, now=at(1))

        record = await store.find(job_id)
        assert record is not None
        assert (record.state, record.run_at) == (State.SCHEDULED, at(60))

    async def test_ready_jobs_of_a_kind_that_is_paused_become_blocked(self, store: Store) -> None:
        await enqueue(store, job := new_job(), other := new_job(kind="other"))
        await pause(store, PauseScope.KIND, KIND)

        await store.sweep(10, now=at(1))

        record = await store.find(job.id)
        assert record is not None
        assert (record.state, record.gate, record.gate_key) == (State.BLOCKED, "paused", KIND)
        assert await state(store, other.id) is State.READY
        await store.resume(PauseScope.KIND, KIND)
        await store.sweep(10, now=at(2))
        assert await state(store, job.id) is State.READY

    async def test_attempts_spent_are_remembered_while_blocked(self, store: Store) -> None:
        await settle(store, await start_one(store), Failed(OOPS))
        await store.promote(10, now=at(60))
        await pause(store, PauseScope.KIND, KIND)
        await store.sweep(10, now=at(60))
        await store.resume(PauseScope.KIND, KIND)
        await store.sweep(10, now=at(60))

        assert (await claim_one(store, now=at(60))).attempt == 2

    async def test_a_job_runs_when_all_that_it_needs_is_completed(self, store: Store) -> None:
        first, second = await start_one(store), await start_one(store)
        dependent = await enqueue_one(store, depends_on=(first.job_id, second.job_id))
        await complete(store, first)
        await store.sweep(10, now=at(1))
        assert await state(store, dependent) is State.BLOCKED

        await complete(store, second)
        swept = await store.sweep(10, now=at(2))

        assert swept == Promotion(1, frozenset({(DEFAULT.queue, DEFAULT.priority)}))
        assert [c.job_id for c in await claim(store, now=at(2))] == [dependent]
        assert await store.check_places() == []

    async def test_a_dependent_job_that_is_not_due_yet_is_scheduled(self, store: Store) -> None:
        need = await start_one(store)
        dependent = await enqueue_one(store, depends_on=(need.job_id,), run_at=at(60))
        await complete(store, need)

        await store.sweep(10, now=at(1))

        assert await state(store, dependent) is State.SCHEDULED

    async def test_a_need_that_had_errors_counts_as_completed(self, store: Store) -> None:
        need = await start_one(store)
        dependent = await enqueue_one(store, depends_on=(need.job_id,))
        await settle(store, need, Partial(None, (OOPS,)))

        await store.sweep(10, now=at(1))

        assert await state(store, dependent) is State.READY

    @pytest.mark.parametrize("end", [Failed(OOPS, final=True), Cancelled("no use")])
    async def test_a_job_whose_need_cannot_be_met_is_cancelled_with_a_reason(self, store: Store, end: Outcome) -> None:
        need, other = await start_one(store), await enqueue_one(store, queue="slow")
        dependent = await enqueue_one(store, depends_on=(need.job_id, other))
        await settle(store, need, end)

        await store.sweep(10, now=at(1))

        record = await store.find(dependent)
        assert record is not None
        assert (record.state, record.finished_at) == (State.CANCELLED, at(1))
        assert record.errors
        assert record.errors[0]["message"]
        assert await store.check_places() == []

    async def test_a_retry_of_a_need_does_not_decide_anything(self, store: Store) -> None:
        need = await start_one(store)
        dependent = await enqueue_one(store, depends_on=(need.job_id,))
        await settle(store, need, Failed(OOPS))

        await store.sweep(10, now=at(1))

        assert await state(store, dependent) is State.BLOCKED

    async def test_a_chain_of_dependents_is_cancelled_to_its_end(self, store: Store) -> None:
        need = await start_one(store)
        chain = [new_job(depends_on=(need.job_id,))]
        chain += [new_job(depends_on=(chain[0].id,))]
        await enqueue(store, *chain)
        await settle(store, need, Failed(OOPS, final=True))

        for _ in chain:
            await store.sweep(10, now=at(1))

        assert await states(store, [job.id for job in chain]) == [State.CANCELLED] * 2

    async def test_a_dependent_job_of_a_paused_kind_waits_for_both(self, store: Store) -> None:
        need = await start_one(store, kind="other")
        await pause(store, PauseScope.KIND, KIND)
        dependent = await enqueue_one(store, depends_on=(need.job_id,))
        await store.sweep(10, now=at(1))
        await store.resume(PauseScope.KIND, KIND)
        await store.sweep(10, now=at(1))
        assert await state(store, dependent) is State.BLOCKED

        await pause(store, PauseScope.KIND, KIND)
        await complete(store, need)
        for _ in range(2):
            await store.sweep(10, now=at(2))
        assert await state(store, dependent) is State.BLOCKED

        await store.resume(PauseScope.KIND, KIND)
        for _ in range(2):
            await store.sweep(10, now=at(3))
        assert await state(store, dependent) is State.READY

    async def test_a_sweep_moves_no_more_than_it_was_asked_to(self, store: Store) -> None:
        await pause(store, PauseScope.KIND, KIND)
        jobs = [new_job() for _ in range(5)]
        await enqueue(store, *jobs)
        await store.resume(PauseScope.KIND, KIND)

        assert (await store.sweep(2, now=at(1))).moved == 2
        assert (await states(store, [job.id for job in jobs])).count(State.READY) == 2

    async def test_jobs_that_stay_blocked_do_not_hold_up_the_sweep(self, store: Store) -> None:
        stuck = await start_one(store, queue="slow")
        await enqueue(store, *(new_job(depends_on=(stuck.job_id,)) for _ in range(10)))
        need = await start_one(store, queue="slow")
        dependent = await enqueue_one(store, depends_on=(need.job_id,))
        await complete(store, need)

        for _ in range(3):
            await store.sweep(5, now=at(1))

        assert await state(store, dependent) is State.READY

    async def test_nothing_to_sweep_is_no_move(self, store: Store) -> None:
        await finish_one(store)
        await enqueue_one(store)

        assert await store.sweep(10, now=at(1)) == Promotion(0)
