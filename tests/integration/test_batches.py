"""Batches with real workers: who is in one, what becomes of each job, and what a stop does."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from running_workers import EVERYWHERE, eventually, final, state, working

from dutiful import (
    BatchContext,
    BatchJob,
    Cancel,
    Concurrency,
    Dutiful,
    Fail,
    Fixed,
    Inject,
    JobRecord,
    LaneSettings,
    PayloadInvalid,
    Retry,
    Rules,
    Snooze,
    State,
)
from dutiful.handle import Handle
from dutiful.store.control import PauseScope
from dutiful.store.queries import JobFilter
from dutiful.worker import Worker

pytestmark = pytest.mark.req("L101")
SOON = Retry(max_attempts=3, backoff=Fixed("1ms"))


@dataclass
class Page:
    number: int
    title: str = ""


class Noted:
    """The calls of a handler, each with the numbers of its jobs."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.began = asyncio.Event()
        self.go = asyncio.Event()

    def note(self, jobs: "list[BatchJob[Page]]") -> None:
        self.calls.append([job.payload.number for job in jobs])

    async def wait(self, jobs: "list[BatchJob[Page]]") -> None:
        self.note(jobs)
        self.began.set()
        await self.go.wait()


def pages(*numbers: int) -> list[dict[str, Any]]:
    return [{"number": number} for number in numbers]


def gathering(worker: Worker) -> list[UUID]:
    return [job for lane in worker.lanes for job in lane.gathering]


async def ended(app: Dutiful, jobs: list[Handle[Any]]) -> list[JobRecord]:
    return [await final(app, job) for job in jobs]


@pytest.mark.parametrize("app_url", [*EVERYWHERE, "pg16_url"], indirect=True)
async def test_one_call_gets_many_jobs_and_each_has_its_result(app: Dutiful) -> None:
    noted = Noted()

    @app.job(batch=50)
    async def index(ctx: BatchContext, jobs: list[BatchJob[Page]], shelf: str = Inject("shelf")) -> list[str]:
        noted.note(jobs)
        assert list(ctx.jobs) == jobs and ctx.kind == "index" and ctx.tenant is None
        assert len({job.job_id for job in jobs}) == len(jobs)
        return [f"{shelf} {job.payload.number} of attempt {job.attempt}" for job in jobs]

    @app.resource
    def shelf() -> str:
        return "shelf"

    async with app:
        jobs = await index.enqueue_many(pages(*range(120)))
        async with working(app):
            results = [await job.result("30s") for job in jobs]
    assert results == [f"shelf {number} of attempt 1" for number in range(120)]
    assert Counter(number for call in noted.calls for number in call) == dict.fromkeys(range(120), 1)
    assert max(map(len, noted.calls)) == 50 and len(noted.calls) <= 5


async def test_a_plain_function_gets_payloads_and_returns_nothing(app: Dutiful) -> None:
    calls: list[list[Page]] = []

    @app.job(batch=10)
    def index(pages: list[Page]) -> None:
        calls.append(pages)

    async with app:
        jobs = await index.enqueue_many(pages(1, 2, 3))
        async with working(app):
            records = await ended(app, jobs)
    assert {record.state for record in records} == {State.COMPLETED}
    assert calls == [[Page(1), Page(2), Page(3)]]


@pytest.mark.parametrize("app_url", [*EVERYWHERE, "pg16_url"], indirect=True)
async def test_every_job_has_the_outcome_that_is_returned_for_it(app: Dutiful) -> None:
    @app.job(batch=10, retry=SOON)
    async def judge(jobs: list[BatchJob[Page]]) -> list[Any]:
        first = {
            1: "good",
            2: None,
            3: Snooze("1ms"),
            4: Cancel("not wanted"),
            5: Fail("never"),
            6: ValueError("perhaps"),
            7: object(),  # no JSON
        }
        return [first[job.payload.number] if job.attempt == 1 else f"again {job.attempt}" for job in jobs]

    async with app:
        jobs = await judge.enqueue_many(pages(1, 2, 4, 5, 6, 7))
        async with working(app):
            one, two, four, five, six, seven = await ended(app, jobs)
    assert (one.result, two.state, two.result) == ("good", State.COMPLETED, None)
    assert four.state is State.CANCELLED
    assert four.error is not None and four.error["message"] == "not wanted"
    assert five.state is State.FAILED and five.attempt == 1
    assert five.error is not None and five.error["type"] == "Fail"
    assert (six.result, six.attempt) == ("again 2", 2)
    assert seven.state is State.FAILED and seven.error is not None and "result" in seven.error["message"]


@pytest.mark.parametrize("app_url", [*EVERYWHERE, "pg16_url"], indirect=True)
async def test_an_error_that_is_raised_lets_every_job_try_again_alone(app: Dutiful) -> None:
    noted = Noted()

    @app.job(batch=10, retry=SOON)
    async def fragile(jobs: list[BatchJob[Page]]) -> None:
        noted.note(jobs)
        if any(job.payload.number == 3 for job in jobs):
            raise Fail("three is poison")  # final for the job that is alone, not for those beside it

    async with app:
        jobs = await fragile.enqueue_many(pages(1, 2, 3, 4))
        async with working(app):
            records = await ended(app, jobs)
    assert noted.calls[0] == [1, 2, 3, 4] and sorted(noted.calls[1:]) == [[1], [2], [3], [4]]
    good, bad = State.COMPLETED, State.FAILED
    assert [record.state for record in records] == [good, good, bad, good]
    assert {record.attempt for record in records} == {2}
    letter = records[2].error
    assert letter is not None and letter["message"] == "three is poison"


@pytest.mark.parametrize("returned", [[1], [1, 2, 3], "ab", {1: "a", 2: "b"}], ids=["few", "many", "text", "object"])
async def test_outcomes_that_do_not_match_the_jobs_fail_all_of_them_once(app: Dutiful, returned: Any) -> None:
    calls = 0

    @app.job(batch=2, retry=SOON)
    def careless(pages: list[Page]) -> Any:
        nonlocal calls
        calls += 1
        return returned

    async with app:
        jobs = await careless.enqueue_many(pages(1, 2))
        async with working(app):
            records = await ended(app, jobs)
    assert calls == 1
    for record in records:
        assert record.state is State.FAILED and record.attempt == 1 and record.error is not None
        assert "careless" in record.error["message"] and "in their order, or nothing" in record.error["message"]


async def test_a_payload_that_cannot_be_read_fails_its_job_alone(app: Dutiful) -> None:
    noted = Noted()

    @app.job(batch=10)
    async def index(jobs: list[BatchJob[Page]]) -> None:
        noted.note(jobs)

    other = Dutiful(app.settings.database_url)

    @other.job(name="index")
    async def untyped(number: Any, extra: Any = 0) -> None: ...

    async with app, other:
        jobs = await untyped.enqueue_many([{"number": 1}, {"number": "two"}, {"number": 3, "extra": 1}, {"number": 4}])
        async with working(app):
            records = await ended(app, jobs)
    good, bad = State.COMPLETED, State.FAILED
    assert [record.state for record in records] == [good, bad, bad, good]
    assert noted.calls == [[1, 4]]
    assert records[1].error is not None and "field 'number'" in records[1].error["message"]
    with pytest.raises(PayloadInvalid, match="number"):
        await index.enqueue(number="two")


async def test_a_batch_has_one_tenant_unless_it_is_asked_for(app: Dutiful) -> None:
    seen: list[tuple[str | None, set[str | None]]] = []
    mixed: list[set[str | None]] = []

    @app.job(batch=10)
    async def separate(ctx: BatchContext, jobs: list[BatchJob[Page]]) -> None:
        seen.append((ctx.tenant, {job.tenant for job in jobs}))
        await child.enqueue()

    @app.job(batch=10, across_tenants=True)
    async def together(ctx: BatchContext, jobs: list[BatchJob[Page]]) -> None:
        mixed.append({job.tenant for job in jobs})
        assert ctx.tenant is None

    @app.job(queue="never run")
    async def child() -> None: ...

    tenants = ["ada", None, "bob"] * 3
    async with app:
        jobs = [
            await kind.options(tenant=tenant).enqueue(number=0) for kind in (separate, together) for tenant in tenants
        ]
        async with working(app):
            await ended(app, jobs)
        children = await (await app.client()).store.queries.jobs(JobFilter(kind="child"))
    assert all(tenants == {tenant} for tenant, tenants in seen) and {tenant for tenant, _ in seen} == {
        "ada",
        "bob",
        None,
    }
    assert {"ada", "bob", None} in mixed
    assert Counter(job.tenant for job in children) == Counter(tenant for tenant, _ in seen)
    assert all(job.parent_id is None for job in children), "none of several jobs is the parent by chance"


async def test_payloads_of_older_versions_are_upgraded_each_by_itself(app: Dutiful) -> None:
    noted: list[str] = []

    @app.job(batch=10, rules=Rules(versions=["1", "2"]))
    async def index(pages: list[Page]) -> None:
        noted.extend(page.title for page in pages)

    @index.upgrade("1")
    def add_title(payload: dict[str, Any]) -> dict[str, Any]:
        return {**payload, "title": f"page {payload['number']}"}

    async with app:
        old = await index.enqueue(number=1, payload_version="1")
        new = await index.enqueue(number=2, title="second", payload_version="2")
        async with working(app):
            await ended(app, [old, new])
    assert sorted(noted) == ["page 1", "second"]


@pytest.mark.parametrize("app_url", [*EVERYWHERE, "pg16_url"], indirect=True)
async def test_a_batch_lingers_for_jobs_that_come_later(app: Dutiful) -> None:
    noted = Noted()

    @app.job(batch=3, linger="30s")
    async def index(jobs: list[BatchJob[Page]]) -> None:
        noted.note(jobs)

    async with app:
        async with working(app) as worker:
            jobs = [await index.enqueue(number=1)]

            async def gathers() -> bool:
                return len(gathering(worker)) == len(jobs)

            await eventually(gathers)
            assert noted.calls == [] and [lane.busy for lane in worker.lanes if lane.busy] == [1]
            assert not any(lane.running for lane in worker.lanes)
            jobs.append(await index.enqueue(number=2))
            await eventually(gathers)
            jobs.append(await index.enqueue(number=3))
            await ended(app, jobs)
            assert noted.calls == [[1, 2, 3]]
            left = await index.enqueue(number=4)
            jobs = [left]
            await eventually(gathers)
        # The worker has stopped without waiting for the rest of the 30 s.
        record = await app.find(left.id)
    assert record is not None and (record.state, record.attempt) == (State.READY, 0)


async def test_one_job_of_a_batch_is_cancelled_while_it_lingers_or_runs(app: Dutiful) -> None:
    noted = Noted()
    saw: list[bool] = []

    @app.job(batch=3, linger="30s")
    async def index(jobs: list[BatchJob[Page]]) -> None:
        await noted.wait(jobs)
        saw.extend(job.cancelled for job in jobs)

    async with app, working(app) as worker:
        jobs = await index.enqueue_many(pages(1, 2))

        async def gathers() -> bool:
            return len(gathering(worker)) == 2

        await eventually(gathers)
        await jobs[0].cancel()
        assert (await final(app, jobs[0])).state is State.CANCELLED
        jobs += await index.enqueue_many(pages(3, 4))
        await asyncio.wait_for(noted.began.wait(), 30)
        assert noted.calls == [[2, 3, 4]]
        await jobs[2].cancel()

        async def notified() -> bool:
            slot = next(slot for lane in worker.lanes for slot in lane.slots if slot.batch is not None)
            return len(slot.batch.stopped) == 2  # type: ignore[union-attr]

        await eventually(notified)
        noted.go.set()
        records = await ended(app, jobs)
    assert [record.state for record in records] == [State.CANCELLED, State.COMPLETED, State.CANCELLED, State.COMPLETED]
    assert saw == [False, True, False]


async def test_a_timeout_is_that_of_the_whole_call(app: Dutiful) -> None:
    noted = Noted()

    @app.job(batch=5, timeout="200ms", retry=Retry(max_attempts=1))
    async def slow(jobs: list[BatchJob[Page]]) -> None:
        await noted.wait(jobs)

    async with app:
        jobs = await slow.enqueue_many(pages(1, 2, 3))
        async with working(app):
            records = await ended(app, jobs)
    assert noted.calls == [[1, 2, 3]]
    assert {record.state for record in records} == {State.FAILED}
    assert {record.error["type"] for record in records if record.error} == {"TimeoutExceeded"}


@pytest.mark.parametrize("stubborn", [False, True])
async def test_jobs_of_a_batch_that_is_interrupted_are_ready_again(app: Dutiful, stubborn: bool) -> None:
    noted = Noted()

    @app.job(batch=5)
    async def slow(jobs: list[BatchJob[Page]]) -> None:
        while not noted.go.is_set():
            try:
                await noted.wait(jobs)
            except asyncio.CancelledError:
                if not stubborn:
                    raise

    async with app:
        jobs = await slow.enqueue_many(pages(1, 2, 3))
        with pytest.raises(Exception, match="interrupted"):
            async with working(app) as worker:
                await asyncio.wait_for(noted.began.wait(), 30)
                worker.abort(cleanup=0.1)
        noted.go.set()
        records = [await app.find(job.id) for job in jobs]
    assert [(one.state, one.attempt) for one in records if one] == [(State.READY, 0)] * 3


async def test_limits_hold_for_the_jobs_of_batches(app: Dutiful) -> None:
    noted = Noted()

    @app.job(batch=10, concurrency=Concurrency(2))
    async def index(jobs: list[BatchJob[Page]]) -> None:
        noted.note(jobs)

    async with app:
        jobs = await index.enqueue_many(pages(*range(6)))
        async with working(app):
            await ended(app, jobs)
    assert max(map(len, noted.calls)) <= 2
    assert sorted(number for call in noted.calls for number in call) == list(range(6))


async def test_a_breaker_counts_a_batch_as_one_call(app: Dutiful) -> None:
    service = app.breaker("service", failures=3, open_for="1h")

    @app.job(batch=5, breaker=service, retry=Retry(max_attempts=2, backoff=Fixed("1h")))
    async def call(pages: list[Page]) -> None:
        raise ConnectionError("away")

    async with app:
        jobs = await call.enqueue_many(pages(1, 2, 3, 4, 5))
        async with working(app):

            async def failed() -> bool:
                return {await state(app, job) for job in jobs} == {State.SCHEDULED}

            await eventually(failed)
        (record,) = await (await app.client()).store.breakers.all()
    assert record.breaker.failures == 1


async def test_a_pause_releases_a_batch_that_gathers(app: Dutiful) -> None:
    noted = Noted()

    @app.job(batch=5, linger="1h")
    async def index(jobs: list[BatchJob[Page]]) -> None:
        noted.note(jobs)

    app.configure(heartbeat="200ms")
    async with app:
        job = await index.enqueue(number=1)
        async with working(app) as worker:

            async def gathers() -> bool:
                return bool(gathering(worker))

            await eventually(gathers)
            await (await app.operator()).fleet.pause(PauseScope.KIND, "index")

            async def released() -> bool:
                return not gathering(worker) and await state(app, job) is not State.RUNNING

            await eventually(released)
    assert noted.calls == []


async def test_batches_of_tenants_take_turns_in_a_fair_lane(app: Dutiful) -> None:
    noted = Noted()
    app.configure(lanes=[LaneSettings("general", 2, fair=True)])

    @app.job(batch=20)
    async def index(jobs: list[BatchJob[Page]]) -> None:
        noted.note(jobs)
        assert len({job.tenant for job in jobs}) == 1

    async with app:
        jobs = [
            *await index.options(tenant="ada").enqueue_many(pages(*range(60))),
            *await index.options(tenant="bob").enqueue_many(pages(*range(60, 70))),
        ]
        async with working(app) as worker:
            records = await ended(app, jobs)

            async def all_free() -> bool:
                fair = worker.lanes[0]._fair
                return fair is not None and fair.shares.total == 0 and not len(fair)

            await eventually(all_free)
    assert {record.state for record in records} == {State.COMPLETED}
    assert len(noted.calls) <= 12


async def test_a_batch_does_not_linger_in_a_slot_that_is_lent(app: Dutiful) -> None:
    noted = Noted()
    app.configure(lanes=[LaneSettings("general", 1, ("default",)), LaneSettings("spare", 1, ("other",), lend=1)])

    @app.job
    async def hold() -> None:
        noted.began.set()
        await noted.go.wait()

    @app.job(batch=5, linger="1h")
    async def index(jobs: list[BatchJob[Page]]) -> None:
        noted.note(jobs)

    async with app, working(app):
        held = await hold.enqueue()
        await asyncio.wait_for(noted.began.wait(), 30)
        job = await index.enqueue(number=1)
        assert (await final(app, job)).state is State.COMPLETED
        noted.go.set()
        await final(app, held)
    assert noted.calls == [[1]]
