"""Queries of jobs, queues and counts."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from dutiful.core.outcome import Cancelled, Failed, Partial
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.control import PauseScope
from dutiful.store.queries import DETAILS, JobFilter, QueueRecord, TenantCount
from suite.builders import (
    OOPS,
    T0,
    at,
    claim_one,
    crash,
    enqueue,
    enqueue_one,
    finish_one,
    new_id,
    new_job,
    pause,
    settle,
    start_one,
)


async def one_of_each(store: Store) -> dict[State, UUID]:
    """A job in every state, all of one kind and queue."""
    running = await start_one(store)
    return {
        State.RUNNING: running.job_id,
        State.COMPLETED: await finish_one(store),
        State.COMPLETED_WITH_ERRORS: await finish_one(store, Partial(None, (OOPS,))),
        State.FAILED: await finish_one(store, Failed(OOPS, final=True)),
        State.CANCELLED: await finish_one(store, Cancelled("no use")),
        State.SCHEDULED: await enqueue_one(store, run_at=at(60)),
        State.BLOCKED: await enqueue_one(store, depends_on=(running.job_id,)),
        State.READY: await enqueue_one(store),
    }


class QuerySuite:
    async def test_a_list_without_details_has_all_but_payload_result_and_subject(self, store: Store) -> None:
        await finish_one(store, Partial('{"n": 1}', (OOPS,)), payload='{"n": 2}', subject='{"order": 7}')
        await start_one(store)
        needed = await enqueue_one(store, payload='{"n": 2}', subject='{"order": 7}', options='{"unique": "a"}')
        waiting = await enqueue_one(store, depends_on=(needed,))
        whole = (await store.queries.jobs(JobFilter())).jobs

        found = (await store.queries.jobs(JobFilter(details=False))).jobs

        assert len(found) == 4
        assert found == [msgspec.structs.replace(job, **dict.fromkeys(DETAILS)) for job in whole]
        shuffled = [found[n].id for n in (1, 3, 0, 2)]
        assert await store.queries.records([new_id(), *shuffled], details=False) == found
        assert await store.queries.records(shuffled) == whole
        assert await store.queries.dependencies(waiting) == [job for job in found if job.id == needed]

    async def test_an_unknown_job_is_not_found(self, store: Store) -> None:
        assert await store.queries.job(new_id()) is None
        assert await store.queries.attempts(new_id()) == []
        assert await store.queries.dependencies(new_id()) == []

    async def test_only_final_jobs_have_an_outcome(self, store: Store) -> None:
        each = await one_of_each(store)
        final = {job_id for state, job_id in each.items() if state.final}

        records = await store.queries.outcomes([*each.values(), new_id()])

        assert {record.id for record in records} == final
        assert {each[record.state] for record in records} == final
        assert await store.queries.outcomes([]) == []

    async def test_an_outcome_equals_the_job_of_a_query(self, store: Store) -> None:
        job_id = await finish_one(store, Partial('{"n": 1}', (OOPS,)))

        assert await store.queries.outcomes([job_id]) == [await store.queries.job(job_id)]

    @pytest.mark.parametrize("state", list(State))
    async def test_jobs_are_listed_by_state(self, store: Store, state: State) -> None:
        each = await one_of_each(store)

        (record,) = await store.queries.jobs(JobFilter(state=state))

        assert (record.id, record.state) == (each[state], state)
        assert record == await store.queries.job(record.id)

    async def test_jobs_are_listed_newest_first_page_by_page(self, store: Store) -> None:
        each = await one_of_each(store)
        newest_first = sorted(each.values(), key=str, reverse=True)

        first = await store.queries.jobs(JobFilter(limit=3))
        second = await store.queries.jobs(JobFilter(limit=3, before=first[-1].id))
        third = await store.queries.jobs(JobFilter(limit=3, before=second[-1].id))

        assert [record.id for record in [*first, *second, *third]] == newest_first
        assert [len(page) for page in (first, second, third)] == [3, 3, 2]

    @pytest.mark.parametrize("state", [State.READY, State.COMPLETED])
    async def test_jobs_of_one_state_are_listed_page_by_page(self, store: Store, state: State) -> None:
        made = [await (finish_one if state.final else enqueue_one)(store) for _ in range(5)]

        first = await store.queries.jobs(JobFilter(state=state, limit=3))
        second = await store.queries.jobs(JobFilter(state=state, limit=3, before=first[-1].id))

        assert [record.id for record in [*first, *second]] == made[::-1]

    @pytest.mark.parametrize(
        "fields", [{"kind": "other"}, {"queue": "other"}, {"tenant": "acme"}, {"correlation_id": "order-17"}]
    )
    async def test_jobs_are_listed_by_field(self, store: Store, fields: dict[str, Any]) -> None:
        final = await finish_one(store, **fields)
        await one_of_each(store)
        live = await enqueue_one(store, **fields)

        assert [record.id for record in await store.queries.jobs(JobFilter(**fields))] == [live, final]
        assert [r.id for r in await store.queries.jobs(JobFilter(state=State.READY, **fields))] == [live]

    async def test_a_job_is_found_by_its_own_correlation_id(self, store: Store) -> None:
        job_id = await enqueue_one(store)
        await enqueue_one(store, correlation_id=str(job_id))
        await enqueue_one(store)

        assert len(await store.queries.jobs(JobFilter(correlation_id=str(job_id)))) == 2

    async def test_attempts_are_listed_in_order(self, store: Store) -> None:
        claimed = await start_one(store)
        await settle(store, claimed, Failed(OOPS | {"message": "first"}))
        await store.promotion.promote(1, now=at(10))
        await settle(store, await claim_one(store, now=at(10)), Failed(OOPS | {"message": "second"}), now=at(11))
        await store.promotion.promote(1, now=at(60))
        await claim_one(store, now=at(60))
        await crash(store, now=at(60))

        attempts = await store.queries.attempts(claimed.job_id)

        assert [(a.attempt, a.outcome) for a in attempts] == [(1, "failed"), (2, "failed"), (3, "lost")]
        assert [a.error and a.error["message"] for a in attempts][:2] == ["first", "second"]
        assert attempts[0].claim_id < attempts[1].claim_id < attempts[2].claim_id

    async def test_dependencies_of_a_job_are_listed(self, store: Store) -> None:
        done, ready = await finish_one(store), await enqueue_one(store)
        dependent = await enqueue_one(store, depends_on=(done, ready))

        needs = await store.queries.dependencies(dependent)

        assert {(need.id, need.state) for need in needs} == {(done, State.COMPLETED), (ready, State.READY)}
        assert await store.queries.dependencies(ready) == []

    async def test_queues_are_counted_by_place(self, store: Store) -> None:
        await one_of_each(store)
        await enqueue(store, new_job(queue="fast"), new_job(queue="fast"), now=at(5))
        await pause(store, PauseScope.QUEUE, "fast")

        default, fast = sorted(await store.queries.queues(), key=lambda record: record.queue)

        assert default == QueueRecord(
            queue="default", scheduled=1, ready=1, blocked=1, running=1, oldest_ready_at=T0, paused=False
        )
        assert (fast.queue, fast.ready, fast.paused) == ("fast", 2, True)
        assert fast.oldest_ready_at == at(5)

    async def test_statistics_count_by_state(self, store: Store) -> None:
        await one_of_each(store)

        stats = await store.queries.stats(timedelta(hours=1), now=at(60))

        assert {state: count for state, count in stats.live.items() if count} == {
            State.SCHEDULED: 1, State.READY: 1, State.BLOCKED: 1, State.RUNNING: 1
        }  # fmt: skip
        assert {state: count for state, count in stats.finished.items() if count} == {
            State.COMPLETED: 1, State.COMPLETED_WITH_ERRORS: 1, State.FAILED: 1, State.CANCELLED: 1
        }  # fmt: skip
        assert (stats.dead_letters, stats.oldest_ready_at) == (1, T0)
        assert stats.since == at(60) - timedelta(hours=1)

    async def test_statistics_of_final_jobs_cover_the_given_time(self, store: Store) -> None:
        await finish_one(store)
        await finish_one(store, now=at(120))

        assert (await store.queries.stats(timedelta(seconds=60), now=at(121))).finished["completed"] == 1
        assert (await store.queries.stats(timedelta(seconds=600), now=at(121))).finished["completed"] == 2

    async def test_an_empty_store_has_empty_lists(self, store: Store) -> None:
        assert (await store.queries.jobs(JobFilter())).jobs == []
        assert await store.workers.all() == []
        assert await store.schedules.all() == []
        assert await store.control.pauses() == []
        assert await store.queries.check_places() == []
        stats = await store.queries.stats(timedelta(hours=1), now=T0)
        assert (sum(stats.live.values()), sum(stats.finished.values()), stats.oldest_ready_at) == (0, 0, None)

    async def test_a_store_has_a_url_and_its_health(self, store: Store) -> None:
        assert store.url
        assert await store.queries.health()

    async def test_migrating_again_changes_nothing(self, store: Store) -> None:
        job_id = await enqueue_one(store)

        assert await store.migrate() == []
        assert await store.queries.job(job_id) is not None
        assert "create table" in store.migration_sql().lower()

    @pytest.mark.req("D76")
    async def test_jobs_that_ended_lately_are_counted_by_tenant_and_state(self, store: Store) -> None:
        for tenant in ("acme", "acme", "other", None):
            await finish_one(store, tenant=tenant)
        await finish_one(store, Failed(OOPS, final=True), tenant="acme")
        await enqueue_one(store, tenant="acme")

        found = await store.queries.ended_by_tenant(timedelta(hours=1), now=at(10))

        assert found == [
            TenantCount("acme", State.COMPLETED, 2), TenantCount("acme", State.FAILED, 1),
            TenantCount("other", State.COMPLETED, 1), TenantCount(None, State.COMPLETED, 1),
        ]  # fmt: skip
        assert await store.queries.ended_by_tenant(timedelta(hours=1), now=at(4000)) == []
