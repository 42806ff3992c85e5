"""Conformance: all jobs of one correlation id."""

import pytest

from dutiful.core.outcome import Failed
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.dependents import Edge
from suite.builders import (
    OOPS,
    at,
    claim,
    complete,
    enqueue,
    new_id,
    new_job,
    settle,
    start_one,
    state,
    states,
)

TREE = "order-7"


@pytest.mark.req("L101")
class TreeSuite:
    async def test_progress_counts_the_jobs_of_a_tree_by_state_with_their_times(self, store: Store) -> None:
        done = await start_one(store, correlation_id=TREE)
        failed = await start_one(store, correlation_id=TREE)
        await complete(store, done, now=at(5))
        await settle(store, failed, Failed(OOPS, final=True), now=at(6))
        await enqueue(
            store,
            new_job(correlation_id=TREE),
            new_job(correlation_id=TREE, run_at=at(60)),
            new_job(correlation_id=TREE, depends_on=(failed.job_id,)),
            new_job(correlation_id="another"),
        )

        progress = await store.trees.progress(TREE)

        assert progress.states == {"blocked": 1, "completed": 1, "failed": 1, "ready": 1, "scheduled": 1}
        assert (progress.total, progress.ended, progress.percent, progress.done) == (5, 2, 40, False)
        assert progress.created_at is not None
        assert (progress.started_at is None, progress.finished_at) == (False, None)

    async def test_a_tree_that_has_ended_says_when(self, store: Store) -> None:
        done = await start_one(store, correlation_id=TREE)
        await complete(store, done, now=at(5))

        progress = await store.trees.progress(TREE)

        assert (progress.percent, progress.done, progress.finished_at) == (100, True, at(5))

    async def test_a_job_without_a_correlation_id_is_the_root_of_those_that_have_its_own(self, store: Store) -> None:
        root = new_job()
        await enqueue(store, root, new_job(correlation_id=str(root.id)))

        assert (await store.trees.progress(str(root.id))).states == {"ready": 2}
        step = await store.trees.cancel(str(root.id), "no", None, 10, now=at(1))
        assert (step.cancelled, step.before) == (2, None)

    async def test_the_oldest_jobs_of_a_tree_are_found_also_of_those_that_failed(self, store: Store) -> None:
        root = new_job()
        await enqueue(store, root)
        rest = [new_job(correlation_id=str(root.id), tenant=tenant) for tenant in ("acme", "zeta", "acme", "acme")]
        await enqueue(store, *rest, new_job(correlation_id="another"))
        for held in await claim(store, limit=4):
            await settle(store, held, Failed(OOPS, final=True))
        oldest, tree = store.trees.oldest, str(root.id)

        assert await oldest(tree, 3) == [root.id, rest[0].id, rest[1].id]
        assert await oldest(tree, 10, failed=True) == [root.id, *(job.id for job in rest[:3])]
        assert await oldest(tree, 10, failed=True, tenant="acme") == [rest[0].id, rest[2].id]
        assert await oldest("none", 10) == []

    async def test_there_is_no_progress_of_no_jobs(self, store: Store) -> None:
        progress = await store.trees.progress("none")

        assert (progress.states, progress.percent, progress.done) == ({}, 100, True)

    async def test_only_the_jobs_of_a_tenant_are_counted_and_cancelled_if_one_is_given(self, store: Store) -> None:
        ours, theirs = new_job(correlation_id=TREE, tenant="acme"), new_job(correlation_id=TREE, tenant="zeta")
        await enqueue(store, ours, theirs)

        assert (await store.trees.progress(TREE, tenant="acme")).total == 1
        await store.trees.cancel(TREE, "no", None, 10, tenant="acme", now=at(1))

        assert await states(store, [ours.id, theirs.id]) == [State.CANCELLED, State.READY]

    async def test_a_tree_is_cancelled_from_its_newest_job_in_bounded_steps(self, store: Store) -> None:
        jobs = [new_job(correlation_id=TREE) for _ in range(5)]
        await enqueue(store, *jobs)

        first = await store.trees.cancel(TREE, "no use", None, 2, now=at(1))
        assert (first.cancelled, first.before) == (2, jobs[3].id)
        assert await states(store, [job.id for job in jobs]) == [State.READY] * 3 + [State.CANCELLED] * 2
        second = await store.trees.cancel(TREE, "no use", first.before, 2, now=at(1))
        third = await store.trees.cancel(TREE, "no use", second.before, 2, now=at(1))

        assert (second.cancelled, third.cancelled, third.before) == (2, 1, None)
        record = await store.queries.job(jobs[0].id)
        assert record is not None
        assert record.errors == [{"type": "Cancelled", "message": "no use"}]
        assert await store.queries.check_places() == []

    async def test_a_running_job_of_the_tree_is_asked_to_stop_and_an_ended_one_is_left(self, store: Store) -> None:
        running = await start_one(store, correlation_id=TREE)
        done = await start_one(store, correlation_id=TREE)
        await complete(store, done)

        step = await store.trees.cancel(TREE, "no use", None, 10, now=at(1))

        assert (step.cancelled, step.requested) == (0, (running.job_id,))
        record = await store.queries.job(running.job_id)
        assert record is not None
        assert record.cancel_requested_at == at(1)
        assert await state(store, done.job_id) is State.COMPLETED

    async def test_what_waits_for_a_job_waits_for_one_that_joins_it(self, store: Store) -> None:
        parent = await start_one(store)
        child, waiting = new_job(joins=parent.job_id), new_job(depends_on=(parent.job_id,))
        await enqueue(store, waiting)
        await enqueue(store, child)
        assert await store.dependents.edges([waiting.id]) == sorted(
            await store.dependents.edges([waiting.id]), key=lambda edge: edge.needs_id
        )
        assert {edge.needs_id for edge in await store.dependents.edges([waiting.id])} == {parent.job_id, child.id}

        await complete(store, parent)
        release = await store.dependents.release([parent.job_id], 10, now=at(1))
        assert (await state(store, waiting.id), release.next) == (State.BLOCKED, (child.id,))
        [held] = await claim(store, now=at(1))
        await complete(store, held, now=at(1))
        await store.dependents.release([child.id], 10, now=at(2))

        assert await state(store, waiting.id) is State.READY
        assert await store.queries.check_places() == []

    async def test_of_very_many_edges_the_newest_of_each_job_can_be_asked_for(self, store: Store) -> None:
        needs = [new_job() for _ in range(4)]
        first = new_job(depends_on=tuple(job.id for job in needs))
        second = new_job(depends_on=(needs[0].id,))
        await enqueue(store, *needs, first, second)

        edges = await store.dependents.edges([first.id, second.id], newest=2)

        assert [edge.needs_id for edge in edges if edge.job_id == first.id] == [needs[2].id, needs[3].id]
        assert [edge.needs_id for edge in edges if edge.job_id == second.id] == [needs[0].id]
        assert len(await store.dependents.edges([first.id, second.id])) == 5

    async def test_a_job_can_join_one_that_nothing_waits_for_and_another_tenants_is_not_joined(
        self, store: Store
    ) -> None:
        parent = await start_one(store, tenant="acme")
        waiting = new_job(depends_on=(parent.job_id,), tenant="acme")
        await enqueue(store, waiting)

        await enqueue(store, new_job(joins=parent.job_id, tenant="zeta"), new_job(joins=new_id()))

        assert [edge.needs_id for edge in await store.dependents.edges([waiting.id])] == [parent.job_id]
        assert isinstance((await store.dependents.edges([waiting.id]))[0], Edge)
