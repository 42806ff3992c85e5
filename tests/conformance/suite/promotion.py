"""Scheduled jobs become ready when due, and a sweep blocks and releases jobs by their gates."""

import pytest

from dutiful.core.outcome import Cancelled, Failed, Outcome, Partial
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.control import PauseScope
from dutiful.store.promotion import Promotion
from suite.builders import (
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


class PromotionSuite:
    async def test_due_jobs_become_ready_in_order_of_their_times(self, store: Store) -> None:
        jobs = [new_job(run_at=at(n)) for n in (30, 10, 20, 61)]
        await enqueue(store, *jobs)

        promoted = await store.promotion.promote(10, now=at(60))

        assert promoted == Promotion(3, frozenset({("default", 100)}), next_run_at=at(61))
        assert [c.job_id for c in await claim(store, now=at(60))] == [jobs[1].id, jobs[2].id, jobs[0].id]
        assert await state(store, jobs[3].id) is State.SCHEDULED
        assert await store.queries.check_places() == []

    async def test_a_job_is_due_at_its_time_and_not_before(self, store: Store) -> None:
        job_id = await enqueue_one(store, run_at=at(60))

        assert await store.promotion.promote(10, now=at(59)) == Promotion(0, next_run_at=at(60))
        assert (await store.promotion.promote(10, now=at(60))).moved == 1
        assert await state(store, job_id) is State.READY

    async def test_a_promotion_returns_every_queue_level_that_got_jobs(self, store: Store) -> None:
        await enqueue(
            store, new_job(run_at=at(1)), new_job(queue="fast", priority=5, run_at=at(1)),
            new_job(queue="fast", priority=5, run_at=at(2)), new_job(queue="slow", run_at=at(60)),
        )  # fmt: skip

        assert (await store.promotion.promote(10, now=at(2))).levels == {("default", 100), ("fast", 5)}

    async def test_a_promotion_moves_no_more_than_its_limit(self, store: Store) -> None:
        jobs = [new_job(run_at=at(n)) for n in range(1, 6)]
        await enqueue(store, *reversed(jobs))

        promoted = await store.promotion.promote(2, now=at(60))

        assert (promoted.moved, promoted.next_run_at) == (2, at(3))
        assert await states(store, [job.id for job in jobs]) == [State.READY] * 2 + [State.SCHEDULED] * 3

    async def test_a_promotion_without_due_jobs_moves_none(self, store: Store) -> None:
        assert await store.promotion.promote(10, now=T0) == Promotion(0)

    async def test_a_resumed_kind_is_ready_again(self, store: Store) -> None:
        await pause(store, PauseScope.KIND, KIND)
        jobs = [new_job(), new_job(), new_job(queue="fast", priority=5)]
        await enqueue(store, *jobs)
        assert (await store.promotion.sweep(10, now=at(1))).moved == 0
        await store.control.resume(PauseScope.KIND, KIND)

        swept = await store.promotion.sweep(10, now=at(1))

        assert (swept.moved, swept.levels) == (3, frozenset({("default", 100), ("fast", 5)}))
        assert await states(store, [job.id for job in jobs]) == [State.READY] * 3
        assert [c.job_id for c in await claim(store, now=at(1))] == [jobs[0].id, jobs[1].id]
        assert await store.queries.check_places() == []

    async def test_a_resumed_job_that_is_not_due_is_scheduled(self, store: Store) -> None:
        await pause(store, PauseScope.KIND, KIND)
        job_id = await enqueue_one(store, run_at=at(60))
        await store.control.resume(PauseScope.KIND, KIND)

        await store.promotion.sweep(10, now=at(1))

        record = await store.queries.job(job_id)
        assert record is not None
        assert (record.state, record.run_at) == (State.SCHEDULED, at(60))

    async def test_ready_jobs_of_a_kind_that_is_paused_become_blocked(self, store: Store) -> None:
        await enqueue(store, job := new_job(), other := new_job(kind="other"))
        await pause(store, PauseScope.KIND, KIND)

        await store.promotion.sweep(10, now=at(1))

        record = await store.queries.job(job.id)
        assert record is not None
        assert (record.state, record.gate, record.gate_key) == (State.BLOCKED, "paused", KIND)
        assert await state(store, other.id) is State.READY
        await store.control.resume(PauseScope.KIND, KIND)
        await store.promotion.sweep(10, now=at(2))
        assert await state(store, job.id) is State.READY

    async def test_a_blocked_job_keeps_its_spent_attempts(self, store: Store) -> None:
        await settle(store, await start_one(store), Failed(OOPS))
        await store.promotion.promote(10, now=at(60))
        await pause(store, PauseScope.KIND, KIND)
        await store.promotion.sweep(10, now=at(60))
        await store.control.resume(PauseScope.KIND, KIND)
        await store.promotion.sweep(10, now=at(60))

        assert (await claim_one(store, now=at(60))).attempt == 2

    async def test_a_job_runs_when_all_its_dependencies_are_completed(self, store: Store) -> None:
        first, second = await start_one(store), await start_one(store)
        dependent = await enqueue_one(store, depends_on=(first.job_id, second.job_id))
        await complete(store, first)
        await store.promotion.sweep(10, now=at(1))
        assert await state(store, dependent) is State.BLOCKED

        await complete(store, second)
        swept = await store.promotion.sweep(10, now=at(2))

        assert swept == Promotion(1, frozenset({(DEFAULT.queue, DEFAULT.priority)}))
        assert [c.job_id for c in await claim(store, now=at(2))] == [dependent]
        assert await store.queries.check_places() == []

    async def test_a_dependent_job_that_is_not_due_yet_is_scheduled(self, store: Store) -> None:
        need = await start_one(store)
        dependent = await enqueue_one(store, depends_on=(need.job_id,), run_at=at(60))
        await complete(store, need)

        await store.promotion.sweep(10, now=at(1))

        assert await state(store, dependent) is State.SCHEDULED

    async def test_a_dependency_with_errors_counts_as_completed(self, store: Store) -> None:
        need = await start_one(store)
        dependent = await enqueue_one(store, depends_on=(need.job_id,))
        await settle(store, need, Partial(None, (OOPS,)))

        await store.promotion.sweep(10, now=at(1))

        assert await state(store, dependent) is State.READY

    @pytest.mark.parametrize("end", [Failed(OOPS, final=True), Cancelled("no use")])
    async def test_a_job_whose_dependency_failed_is_cancelled_with_a_reason(self, store: Store, end: Outcome) -> None:
        need, other = await start_one(store), await enqueue_one(store, queue="slow")
        dependent = await enqueue_one(store, depends_on=(need.job_id, other))
        await settle(store, need, end)

        await store.promotion.sweep(10, now=at(1))

        record = await store.queries.job(dependent)
        assert record is not None
        assert (record.state, record.finished_at) == (State.CANCELLED, at(1))
        assert record.errors
        assert record.errors[0]["message"]
        assert await store.queries.check_places() == []

    async def test_a_retry_of_a_dependency_does_not_decide_anything(self, store: Store) -> None:
        need = await start_one(store)
        dependent = await enqueue_one(store, depends_on=(need.job_id,))
        await settle(store, need, Failed(OOPS))

        await store.promotion.sweep(10, now=at(1))

        assert await state(store, dependent) is State.BLOCKED

    async def test_a_chain_of_dependents_is_cancelled_to_its_end(self, store: Store) -> None:
        need = await start_one(store)
        chain = [new_job(depends_on=(need.job_id,))]
        chain += [new_job(depends_on=(chain[0].id,))]
        await enqueue(store, *chain)
        await settle(store, need, Failed(OOPS, final=True))

        for _ in chain:
            await store.promotion.sweep(10, now=at(1))

        assert await states(store, [job.id for job in chain]) == [State.CANCELLED] * 2

    async def test_a_dependent_job_of_a_paused_kind_waits_for_both(self, store: Store) -> None:
        need = await start_one(store, kind="other")
        await pause(store, PauseScope.KIND, KIND)
        dependent = await enqueue_one(store, depends_on=(need.job_id,))
        await store.promotion.sweep(10, now=at(1))
        await store.control.resume(PauseScope.KIND, KIND)
        await store.promotion.sweep(10, now=at(1))
        assert await state(store, dependent) is State.BLOCKED

        await pause(store, PauseScope.KIND, KIND)
        await complete(store, need)
        for _ in range(2):
            await store.promotion.sweep(10, now=at(2))
        assert await state(store, dependent) is State.BLOCKED

        await store.control.resume(PauseScope.KIND, KIND)
        for _ in range(2):
            await store.promotion.sweep(10, now=at(3))
        assert await state(store, dependent) is State.READY

    async def test_a_sweep_moves_no_more_than_its_limit(self, store: Store) -> None:
        await pause(store, PauseScope.KIND, KIND)
        jobs = [new_job() for _ in range(5)]
        await enqueue(store, *jobs)
        await store.control.resume(PauseScope.KIND, KIND)

        assert (await store.promotion.sweep(2, now=at(1))).moved == 2
        assert (await states(store, [job.id for job in jobs])).count(State.READY) == 2

    async def test_jobs_that_stay_blocked_do_not_hold_up_the_sweep(self, store: Store) -> None:
        stuck = await start_one(store, queue="slow")
        await enqueue(store, *(new_job(depends_on=(stuck.job_id,)) for _ in range(10)))
        need = await start_one(store, queue="slow")
        dependent = await enqueue_one(store, depends_on=(need.job_id,))
        await complete(store, need)

        for _ in range(3):
            await store.promotion.sweep(5, now=at(1))

        assert await state(store, dependent) is State.READY

    async def test_a_sweep_without_blocked_jobs_moves_none(self, store: Store) -> None:
        await finish_one(store)
        await enqueue_one(store)

        assert await store.promotion.sweep(10, now=at(1)) == Promotion(0)
