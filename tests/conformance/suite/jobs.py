"""Where a job is placed when it is inserted."""

import asyncio
import contextlib
from collections import Counter
from datetime import datetime, timedelta

import pytest

from dutiful.core.errors import DataRefused, UsageError
from dutiful.core.ids import public
from dutiful.core.job import Inserted, Insertion, Unique
from dutiful.core.outcome import Failed
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.control import PauseScope
from dutiful.store.queries import JobFilter
from suite.builders import (
    KIND,
    OOPS,
    T0,
    at,
    claim,
    enqueue,
    enqueue_one,
    finish_one,
    made,
    new_id,
    new_job,
    pause,
    same_json,
    state,
    warm,
)

# A store may have ways of its own for one job, for a few and for many.
with_others = pytest.mark.parametrize("others", [0, 1, 30])


class JobSuite:
    async def test_every_job_of_a_batch_is_acknowledged_in_order(self, store: Store) -> None:
        jobs = [new_job() for _ in range(5)]

        assert await store.jobs.insert(jobs, now=T0) == made(*jobs)
        assert await store.queries.check_places() == []

    async def test_an_empty_batch_does_nothing(self, store: Store) -> None:
        assert await store.jobs.insert([], now=T0) == []

    @with_others
    async def test_a_job_is_stored_as_given(self, store: Store, others: int) -> None:
        parent = await enqueue_one(store)
        job = new_job(
            queue="fast",
            payload='{"to": "ada@example.org", "deep": [1, {"x": null}], "text": "naïve 🎈", "big": 9007199254740993}',
            priority=7,
            max_attempts=9,
            tenant="acme",
            correlation_id="order-17",
            parent_id=parent,
            retry_of=parent,
            subject='{"build": 5}',
            created_by="ada",
            options='{"timeout": 60}',
        )
        await enqueue(store, job, *(new_job(tenant="acme") for _ in range(others)), now=at(1))

        record = await store.queries.job(job.id)

        assert record is not None
        assert (record.id, record.kind, record.queue, record.state) == (job.id, KIND, "fast", State.READY)
        assert record.payload == {
            "to": "ada@example.org", "deep": [1, {"x": None}], "text": "naïve 🎈", "big": 9007199254740993
        }  # fmt: skip
        assert (record.priority, record.max_attempts, record.attempt, record.crashes) == (7, 9, 0, 0)
        assert (record.tenant, record.correlation_id, record.parent_id) == ("acme", "order-17", parent)
        assert (record.retry_of, record.subject, record.created_by) == (parent, {"build": 5}, "ada")
        assert (record.options, record.created_at) == ({"timeout": 60}, at(1))

    async def test_a_job_without_a_correlation_id_has_its_own(self, store: Store) -> None:
        record = await store.queries.job(job_id := await enqueue_one(store))

        assert record is not None
        assert record.correlation_id == str(job_id)

    @with_others
    async def test_a_job_that_is_due_is_ready(self, store: Store, others: int) -> None:
        jobs = [new_job(), new_job(run_at=T0), new_job(run_at=at(-60)), new_job(delay=timedelta(0))]
        for job in jobs:
            await enqueue(store, job, *(new_job() for _ in range(others)))

        assert [await state(store, job.id) for job in jobs] == [State.READY] * 4
        assert {job.id for job in jobs} <= {claimed.job_id for claimed in await claim(store, limit=1_000)}
        assert await store.queries.check_places() == []

    @with_others
    async def test_a_job_for_later_is_scheduled_for_that_time(self, store: Store, others: int) -> None:
        by_time, by_delay = new_job(run_at=at(60)), new_job(delay=timedelta(seconds=90))
        for job in (by_time, by_delay):
            await enqueue(store, job, *(new_job() for _ in range(others)))

        first, second = await store.queries.job(by_time.id), await store.queries.job(by_delay.id)

        assert first is not None
        assert second is not None
        assert (first.state, first.run_at) == (State.SCHEDULED, at(60))
        assert (second.state, second.run_at) == (State.SCHEDULED, at(90))

    async def test_an_enqueue_that_is_repeated_makes_no_second_job(self, store: Store) -> None:
        job = new_job(payload='{"n": 1}')
        await enqueue(store, job)

        again = await store.jobs.insert([new_job(id=job.id, payload='{"n": 2}'), other := new_job()], now=at(1))

        assert again == [Inserted(job.id, Insertion.EXISTING), Inserted(other.id, Insertion.MADE)]
        record = await store.queries.job(job.id)
        assert record is not None
        assert (record.payload, record.created_at) == ({"n": 1}, T0)
        assert [c.job_id for c in await claim(store)] == [job.id, other.id]

    async def test_one_id_twice_in_a_batch_is_one_job(self, store: Store) -> None:
        job = new_job()

        assert await store.jobs.insert([job, job], now=T0) == [*made(job), Inserted(job.id, Insertion.EXISTING)]
        assert len(await claim(store)) == 1

    async def test_a_single_enqueue_that_is_repeated_changes_nothing(self, store: Store) -> None:
        job = new_job(payload='{"n": 1}')
        await enqueue(store, job)

        again = await store.jobs.insert([new_job(id=job.id, payload='{"n": 2}', run_at=at(60))], now=at(1))

        assert again == [Inserted(job.id, Insertion.EXISTING)]
        record = await store.queries.job(job.id)
        assert record is not None
        assert (record.payload, record.created_at, record.state) == ({"n": 1}, T0, State.READY)
        assert await store.queries.check_places() == []

    async def test_a_large_batch_that_partly_exists_makes_the_missing_jobs(self, store: Store) -> None:
        batch = [new_job() for _ in range(50)]
        await enqueue(store, *batch[:3], now=at(-1))
        await warm(store)

        answers = await asyncio.gather(*(store.jobs.insert([*batch, batch[-1]], now=T0) for _ in range(4)))

        answered = Counter((inserted.job_id, inserted.insertion) for answer in answers for inserted in answer)
        assert {job_id for job_id, insertion in answered if insertion is Insertion.MADE} == {
            job.id for job in batch[3:]
        }
        assert {count for (_, insertion), count in answered.items() if insertion is Insertion.MADE} == {1}
        assert [claimed.job_id for claimed in await claim(store)][:3] == [job.id for job in batch[:3]]
        assert await store.queries.check_places() == []

    async def test_an_enqueue_repeated_after_the_job_is_final_does_not_run_it_again(self, store: Store) -> None:
        job_id = await finish_one(store)

        assert await store.jobs.insert([new_job(id=job_id)], now=at(1)) == [Inserted(job_id, Insertion.EXISTING)]
        assert await state(store, job_id) is State.COMPLETED
        assert await store.queries.check_places() == []

    @pytest.mark.parametrize("dependent", [False, True])
    async def test_enqueues_of_one_id_at_once_make_one_job(self, store: Store, dependent: bool) -> None:
        await warm(store)
        job = new_job(depends_on=(await finish_one(store),) if dependent else ())

        answers = await asyncio.gather(*(store.jobs.insert([job], now=T0) for _ in range(8)))

        assert sorted(inserted.insertion for (inserted,) in answers) == ["existing"] * 7 + ["made"]
        assert len(await claim(store)) == 1

    @with_others
    @pytest.mark.parametrize("run_at", [None, at(60)])
    async def test_a_job_of_a_paused_kind_is_blocked(self, store: Store, others: int, run_at: datetime | None) -> None:
        await pause(store, PauseScope.KIND, KIND)
        job = new_job(queue="fast", priority=7, run_at=run_at)
        await enqueue(store, job, *(new_job() for _ in range(others)))

        record = await store.queries.job(job.id)

        assert record is not None
        assert (record.state, record.gate, record.gate_key) == (State.BLOCKED, "paused", KIND)
        assert (record.queue, record.priority, record.run_at, record.created_at) == ("fast", 7, run_at, T0)
        assert await store.queries.check_places() == []

    @with_others
    async def test_a_pause_of_another_kind_or_of_a_queue_does_not_block(self, store: Store, others: int) -> None:
        await pause(store, PauseScope.KIND, "other")
        await pause(store, PauseScope.QUEUE, KIND)
        await pause(store, PauseScope.QUEUE, "default")
        now, later = new_job(), new_job(run_at=at(60))
        for job in (now, later):
            await enqueue(store, job, *(new_job() for _ in range(others)))

        assert [await state(store, job.id) for job in (now, later)] == [State.READY, State.SCHEDULED]

    async def test_a_job_is_blocked_until_all_its_dependencies_are_completed(self, store: Store) -> None:
        done, waiting = await finish_one(store), await enqueue_one(store, queue="slow")

        record = await store.queries.job(await enqueue_one(store, depends_on=(done, waiting)))

        assert record is not None
        assert (record.state, record.gate) == (State.BLOCKED, "dependency")

    async def test_a_job_whose_dependencies_are_completed_is_not_blocked(self, store: Store) -> None:
        done = await finish_one(store)

        ready = await enqueue_one(store, depends_on=(done,))
        later = await enqueue_one(store, depends_on=(done,), run_at=at(60))

        assert await state(store, ready) is State.READY
        assert await state(store, later) is State.SCHEDULED

    async def test_a_job_whose_dependency_has_failed_is_blocked_until_the_sweep(self, store: Store) -> None:
        failed = await finish_one(store, Failed(OOPS, final=True))

        assert await state(store, await enqueue_one(store, depends_on=(failed,))) is State.BLOCKED

    async def test_a_job_can_depend_on_one_of_its_own_batch(self, store: Store) -> None:
        first = new_job()
        second = new_job(depends_on=(first.id,))
        await enqueue(store, first, second)

        assert [c.job_id for c in await claim(store)] == [first.id]
        assert await state(store, second.id) is State.BLOCKED

    async def test_a_job_with_a_key_can_depend_on_one_of_its_own_batch(self, store: Store) -> None:
        first = new_job()
        second = new_job(depends_on=(first.id,), unique=Unique("a-key"))

        await enqueue(store, first, second)

        assert await state(store, second.id) is State.BLOCKED

    async def test_a_batch_keeps_its_order_with_jobs_of_all_sorts(self, store: Store) -> None:
        done = await finish_one(store)
        jobs = [
            new_job(unique=Unique("b")), new_job(), new_job(unique=Unique("a")), new_job(depends_on=(done,)), new_job()
        ]  # fmt: skip
        await enqueue(store, *jobs)

        assert [c.job_id for c in await claim(store)] == [job.id for job in jobs]

    @pytest.mark.parametrize(("whose", "tenant"), [("globex", "acme"), (None, "acme"), ("globex", None)])
    async def test_a_job_of_another_tenant_is_refused_as_a_dependency_like_an_unknown_one(
        self, store: Store, whose: str | None, tenant: str | None
    ) -> None:
        messages = []
        for needed in (await finish_one(store, tenant=whose), await enqueue_one(store, tenant=whose), new_id()):
            job = new_job(tenant=tenant, depends_on=(needed,))
            with pytest.raises(UsageError) as error:
                await store.jobs.insert([job], now=T0)
            text = str(error.value).replace(public(needed), "…").replace(str(needed), "…")
            messages.append(text.replace(public(job.id), "…"))
            assert await store.queries.job(job.id) is None

        assert len(set(messages)) == 1

    async def test_an_unknown_dependency_is_refused_with_its_whole_batch(self, store: Store) -> None:
        unknown = new_id()

        with pytest.raises(UsageError, match=public(unknown)):
            await store.jobs.insert([new_job(), new_job(depends_on=(unknown,)), new_job()], now=T0)

        assert (await store.queries.jobs(JobFilter())).jobs == []
        assert await store.queries.check_places() == []

    async def test_a_repeated_enqueue_of_a_dependent_job_is_recognised(self, store: Store) -> None:
        job = new_job(depends_on=(await enqueue_one(store),))
        await enqueue(store, job)

        assert await store.jobs.insert([job], now=at(1)) == [Inserted(job.id, Insertion.EXISTING)]
        assert await store.queries.check_places() == []

    @pytest.mark.parametrize("text", ["\\u0000", "\\ud800"])
    async def test_a_job_that_cannot_be_stored_is_refused_with_its_whole_batch(self, store: Store, text: str) -> None:
        jobs = [new_job(), new_job(payload=f'{{"text": "{text}"}}')]

        with contextlib.suppress(DataRefused):
            await enqueue(store, *jobs)
            assert len(await store.queries.jobs(JobFilter())) == 2  # this store accepts it, and returns it
            return

        assert (await store.queries.jobs(JobFilter())).jobs == []

    async def test_a_large_batch_keeps_its_order(self, store: Store) -> None:
        jobs = [new_job(payload=f'{{"n": {n}}}') for n in range(2000)]
        await enqueue(store, *jobs)

        claimed = await claim(store, limit=2000)

        assert [c.job_id for c in claimed] == [job.id for job in jobs]
        assert all(same_json(c.payload, job.payload) for c, job in zip(claimed, jobs, strict=True))
