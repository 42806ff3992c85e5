"""Conformance: jobs that wait for others, by the policy of each edge."""

import itertools
from datetime import timedelta
from uuid import UUID

import pytest

from dutiful.core.errors import UsageError
from dutiful.core.ids import public
from dutiful.core.job import NewJob, OnFailure, Unique
from dutiful.core.outcome import Cancelled, Failed, Outcome
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.dependents import Edge
from suite.builders import (
    OOPS,
    T0,
    at,
    claim,
    complete,
    enqueue,
    enqueue_one,
    finish_one,
    new_job,
    settle,
    start_one,
    state,
    states,
)

CANCEL, RUN, FAIL = OnFailure.CANCEL, OnFailure.RUN, OnFailure.FAIL
WEEK = timedelta(days=7)
LATER = T0 + WEEK + timedelta(hours=1)
FAILED, CANCELLED = Failed(OOPS, final=True), Cancelled("no use")


@pytest.mark.req("L101")
class DependentSuite:
    @pytest.mark.parametrize("end", [FAILED, CANCELLED])
    @pytest.mark.parametrize(
        ("policy", "becomes"), [(CANCEL, State.CANCELLED), (FAIL, State.FAILED), (RUN, State.READY)]
    )
    async def test_the_policy_of_an_edge_decides_when_its_parent_does_not_complete(
        self, store: Store, end: Outcome, policy: OnFailure, becomes: State
    ) -> None:
        need = await start_one(store)
        child = await enqueue_one(store, depends_on=(need.job_id,), policies=(policy,))
        await settle(store, need, end)

        release = await store.dependents.release([need.job_id], 10, now=at(1))

        assert await state(store, child) is becomes
        assert bool(release.levels) == (policy is RUN)
        assert await store.queries.check_places() == []

    async def test_a_job_that_fails_by_its_policy_leaves_a_dead_letter_that_names_the_parent(
        self, store: Store
    ) -> None:
        need = await start_one(store)
        child = await enqueue_one(store, depends_on=(need.job_id,), policies=(FAIL,))
        await settle(store, need, FAILED)

        await store.dependents.release([need.job_id], 10, now=at(1))

        letter = await store.dead_letters.find(child)
        assert letter is not None
        assert (letter.error_type, letter.error_class) == ("DependencyFailed", "non_retryable")
        assert letter.message == f"job {public(need.job_id)}, which it depends on, failed"

    @pytest.mark.parametrize("policy", [CANCEL, FAIL])
    async def test_a_failed_parent_decides_before_the_others_have_ended(self, store: Store, policy: OnFailure) -> None:
        first, other, last = await start_one(store), await start_one(store), await enqueue_one(store, queue="slow")
        needs = (first.job_id, other.job_id, last)
        child = await enqueue_one(store, depends_on=needs, policies=(policy, RUN, CANCEL))
        await settle(store, first, FAILED)

        await store.dependents.release([first.job_id], 10, now=at(1))

        assert await state(store, child) is {CANCEL: State.CANCELLED, FAIL: State.FAILED}[policy]

    async def test_a_parent_whose_failure_is_allowed_does_not_end_the_wait_for_the_others(self, store: Store) -> None:
        first, other = await start_one(store), await start_one(store)
        child = await enqueue_one(store, depends_on=(first.job_id, other.job_id), policies=(RUN, CANCEL))
        await settle(store, first, FAILED)
        await store.dependents.release([first.job_id], 10, now=at(1))
        assert await state(store, child) is State.BLOCKED

        await complete(store, other)
        await store.dependents.release([other.job_id], 10, now=at(1))

        assert await state(store, child) is State.READY

    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    async def test_a_join_is_released_by_the_last_parent_in_any_order(
        self, store: Store, order: tuple[int, ...]
    ) -> None:
        needs = [await start_one(store) for _ in range(3)]
        child = await enqueue_one(store, depends_on=tuple(need.job_id for need in needs))

        for at_last, index in enumerate(order, start=1):
            await complete(store, needs[index])
            release = await store.dependents.release([needs[index].job_id], 10, now=at(1))
            assert await state(store, child) is (State.READY if at_last == 3 else State.BLOCKED)
            assert bool(release.levels) == (at_last == 3)
        assert await store.queries.check_places() == []

    async def test_a_sweep_decides_what_no_release_has(self, store: Store) -> None:
        needs = [await start_one(store) for _ in range(3)]
        joined = await enqueue_one(store, depends_on=tuple(need.job_id for need in needs))
        failing = await enqueue_one(store, depends_on=(needs[0].job_id,), policies=(FAIL,))
        running = await enqueue_one(store, depends_on=(needs[0].job_id,), policies=(RUN,))
        await settle(store, needs[0], FAILED)

        await store.promotion.sweep(10, now=at(1))

        assert await states(store, [joined, failing, running]) == [State.CANCELLED, State.FAILED, State.READY]

    async def test_a_job_that_has_not_ended_releases_nothing(self, store: Store) -> None:
        need = await start_one(store)
        child = await enqueue_one(store, depends_on=(need.job_id,), policies=(RUN,))

        release = await store.dependents.release([need.job_id, new_job().id], 10, now=at(1))

        assert (release.moved, await state(store, child)) == (0, State.BLOCKED)

    async def test_a_parent_of_very_many_is_released_in_bounded_steps(self, store: Store) -> None:
        need = await start_one(store)
        children = [new_job(depends_on=(need.job_id,)) for _ in range(25)]
        await enqueue(store, *children)
        await complete(store, need)

        moved = [(await store.dependents.release([need.job_id], 10, now=at(1))).moved for _ in range(4)]

        assert moved == [10, 10, 5, 0]
        assert set(await states(store, [child.id for child in children])) == {State.READY}

    async def test_a_failed_parent_of_very_many_is_decided_in_bounded_steps(self, store: Store) -> None:
        need = await start_one(store)
        children = [new_job(depends_on=(need.job_id,)) for _ in range(25)]
        await enqueue(store, *children)
        await settle(store, need, FAILED)

        moved = [(await store.dependents.release([need.job_id], 10, now=at(1))).moved for _ in range(4)]

        assert sum(moved) == 25
        assert max(moved) <= 20
        assert set(await states(store, [child.id for child in children])) == {State.CANCELLED}

    async def test_a_failure_ends_a_chain_in_steps_of_many_jobs(self, store: Store) -> None:
        need = await start_one(store)
        chain = _chain(need.job_id, 25)
        await enqueue(store, *chain)
        await settle(store, need, FAILED)
        waiting, moved = [need.job_id], []

        while waiting:
            step = await store.dependents.release(waiting, 10, now=at(1))
            moved.append(step.moved)
            waiting = [*step.next]

        assert (sum(moved), len(moved)) == (25, 3)
        assert set(await states(store, [job.id for job in chain])) == {State.CANCELLED}
        assert await store.queries.check_places() == []

    async def test_a_sweep_ends_a_chain_in_steps_of_many_jobs(self, store: Store) -> None:
        need = await start_one(store)
        chain = _chain(need.job_id, 25)
        await enqueue(store, *chain)
        await settle(store, need, FAILED)

        moved = [(await store.promotion.sweep(10, now=at(1))).moved for _ in range(4)]

        assert (sum(moved), moved[-1]) == (25, 0)
        assert set(await states(store, [job.id for job in chain])) == {State.CANCELLED}

    async def test_each_job_that_a_failure_ends_names_its_own_parent_and_its_state(self, store: Store) -> None:
        need = await start_one(store)
        first = new_job(depends_on=(need.job_id,), policies=(FAIL,))
        second = new_job(depends_on=(need.job_id, first.id), policies=(CANCEL, FAIL))
        third = new_job(depends_on=(second.id,))
        fourth = new_job(depends_on=(third.id,))
        last = new_job(depends_on=(fourth.id, need.job_id), policies=(RUN, RUN))
        await enqueue(store, first, second, third, fourth, last)
        await settle(store, need, CANCELLED)

        await store.dependents.release([need.job_id], 10, now=at(1))

        assert [await _message(store, job.id) for job in (first, second, third, fourth)] == [
            (State.FAILED, f"job {public(need.job_id)}, which it depends on, was cancelled"),
            (State.FAILED, f"job {public(first.id)}, which it depends on, failed"),
            (State.CANCELLED, f"job {public(second.id)}, which it depends on, failed"),
            (State.CANCELLED, f"job {public(third.id)}, which it depends on, was cancelled"),
        ]
        assert await state(store, last.id) is State.READY
        assert {await _letter(store, job.id) for job in (first, second)} == {"DependencyFailed"}
        assert await _letter(store, third.id) is None

    async def test_a_dense_graph_is_ended_once(self, store: Store) -> None:
        """Each job depends on all before it: there are 2^28 ways to the last."""
        need = await start_one(store)
        jobs = [new_job(id=need.job_id)]
        for _ in range(30):
            jobs.append(new_job(depends_on=tuple(job.id for job in jobs)))
        await enqueue(store, *jobs[1:])
        await settle(store, need, FAILED)

        step = await store.dependents.release([need.job_id], 100, now=at(1))

        assert (step.moved, step.next) == (30, ())

    async def test_a_parent_that_has_failed_already_is_met_only_where_that_is_allowed(self, store: Store) -> None:
        need = await start_one(store)
        await settle(store, need, FAILED)

        allowed = await enqueue_one(store, depends_on=(need.job_id,), policies=(RUN,))
        refused = await enqueue_one(store, depends_on=(need.job_id,), policies=(FAIL,))

        assert await states(store, [allowed, refused]) == [State.READY, State.BLOCKED]
        await store.promotion.sweep(10, now=at(1))
        assert await state(store, refused) is State.FAILED

    async def test_edges_are_counted_for_each_job(self, store: Store) -> None:
        needs = [new_job() for _ in range(3)]
        await enqueue(store, *needs)
        one, all_of = new_job(depends_on=(needs[0].id,)), new_job(depends_on=tuple(job.id for job in needs))
        await enqueue(store, one, all_of)

        assert await store.dependents.counts([needs[0].id, one.id, all_of.id]) == {one.id: 1, all_of.id: 3}

    async def test_edges_are_kept_when_all_have_ended(self, store: Store) -> None:
        need = await start_one(store)
        job = new_job(depends_on=(need.job_id,), policies=(RUN,))
        await enqueue(store, job)
        await complete(store, need)
        await store.dependents.release([need.job_id], 10, now=at(1))
        [held] = await claim(store)
        await complete(store, held)

        assert await store.dependents.edges([need.job_id, job.id]) == [Edge(job.id, need.job_id, RUN)]
        assert await store.queries.check_places() == []

    async def test_a_parent_is_kept_until_its_children_have_ended(self, store: Store) -> None:
        """A child reads the results of its parents when it starts, however long it has waited for that."""
        need = await finish_one(store)
        child = await enqueue_one(store, depends_on=(need,))

        await store.retention.delete(WEEK, 10, None, now=LATER)
        assert await state(store, need) is State.COMPLETED

        [held] = await claim(store)
        assert held.job_id == child
        await store.retention.delete(WEEK, 10, None, now=LATER)
        assert await state(store, need) is State.COMPLETED

        await complete(store, held)
        await store.retention.delete(WEEK, 10, None, now=LATER)
        assert await store.queries.job(need) is None
        assert await store.queries.check_places() == []

    @pytest.mark.parametrize("unique", [False, True])
    async def test_a_job_that_depends_on_a_later_one_of_its_batch_is_refused_with_all(
        self, store: Store, unique: bool
    ) -> None:
        """So that there can be no cycle."""
        second = new_job(unique=Unique("key") if unique else None)
        first = new_job(depends_on=(second.id,))

        with pytest.raises(UsageError, match=f"depends_on: there is no job {public(second.id)}"):
            await store.jobs.insert([new_job(), first, second], now=at(0))
        itself = new_job()
        with pytest.raises(UsageError, match="depends_on"):
            await store.jobs.insert([new_job(id=itself.id, depends_on=(itself.id,))], now=at(0))

        assert not any((await store.queries.stats(WEEK, now=at(1))).live.values())

    async def test_a_graph_is_stored_in_one_transaction_with_its_edges(self, store: Store) -> None:
        """More jobs than one statement of Postgres takes, with edges across its chunks."""
        root = new_job()
        width = 60
        layers = [[root]]
        for _ in range(100):
            above = layers[-1]
            layers.append(
                [new_job(depends_on=tuple({one.id for one in (above[n % len(above)], above[0])})) for n in range(width)]
            )
        jobs = [job for layer in layers for job in layer]

        inserted = await store.jobs.insert(jobs, now=at(0))

        assert [one.job_id for one in inserted] == [job.id for job in jobs]
        stats = await store.queries.stats(WEEK, now=at(1))
        assert (stats.live["ready"], stats.live["blocked"]) == (1, len(jobs) - 1)
        edges = await store.dependents.edges([job.id for job in layers[-1]])
        assert {(edge.job_id, edge.needs_id) for edge in edges} == {
            (job.id, need) for job in layers[-1] for need in job.depends_on
        }


def _chain(first: UUID, length: int) -> list[NewJob]:
    """Jobs each of which depends on the one before."""
    jobs: list[NewJob] = []
    for _ in range(length):
        jobs.append(new_job(depends_on=(jobs[-1].id if jobs else first,)))
    return jobs


async def _message(store: Store, job_id: UUID) -> tuple[State, str]:
    record = await store.queries.job(job_id)
    assert record is not None and record.error is not None
    return record.state, record.error["message"]


async def _letter(store: Store, job_id: UUID) -> str | None:
    letter = await store.dead_letters.find(job_id)
    return None if letter is None else letter.error_type
