"""Batches when something goes wrong, or is asked of them that only one job can have."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from running_workers import eventually, final, working

from dutiful import BatchContext, BatchJob, Dutiful, KeyRing, Retry, Snooze, State, StoreUnavailable, chain
from dutiful.testing import Clock, app_on, inline
from dutiful.worker import batches
from dutiful.worker.lanes import fetcher
from dutiful.workflow import PREVIOUS

ONCE = Retry(max_attempts=1)


@dataclass
class Page:
    number: int


def pages(*numbers: int) -> list[dict[str, Any]]:
    return [{"number": number} for number in numbers]


async def test_leases_are_renewed_while_a_batch_gathers_and_operators_see_that(app: Dutiful) -> None:
    @app.job(batch=5, linger="1h")
    async def index(pages: list[Page]) -> None: ...

    app.configure(lease="1s", heartbeat="100ms")
    async with app, working(app):
        jobs = await index.enqueue_many(pages(1, 2))
        operator, began = await app.operator(), datetime.now(UTC)

        async def gathering() -> bool:
            return (await operator.jobs.explain(jobs[1].id)).code == "gathering"

        await eventually(gathering)
        why = await operator.jobs.explain(jobs[0].id)
        assert "waits for more jobs of its batch" in why.sentence and "linger" in (why.remedy or "")
        (worker,) = await operator.fleet.workers()
        seen = [job for lane in worker.lanes.values() for job in lane.gathering]
        assert set(seen) == {job.id for job in jobs}

        async def renewed() -> bool:
            record = await app.find(jobs[1].id)
            assert record is not None and record.state is State.RUNNING and record.crashes == 0
            return record.expires_at is not None and (record.expires_at - began).total_seconds() > 2

        await eventually(renewed)


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_jobs_of_a_handler_that_does_not_stop_are_settled_without_it(app: Dutiful, plain: bool) -> None:
    release, calls = threading.Event(), 0

    def block(pages: list[Page]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            release.wait(60)

    async def hang(pages: list[Page]) -> None:
        nonlocal calls
        calls += 1
        while calls == 1 and not release.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    kind = app.job(name="stubborn", batch=5, timeout="100ms", retry=ONCE)(block if plain else hang)
    app.configure(lanes="general=1:*", timeout_grace="0s")
    async with app, working(app):
        try:
            jobs = await kind.enqueue_many(pages(1, 2, 3))
            records = [await final(app, job) for job in jobs]
            other = await kind.enqueue(number=4)  # the slot, or another in its place, works on
            assert (await final(app, other)).state is State.COMPLETED
        finally:
            release.set()
    assert {record.error["type"] for record in records if record.error} == {"TimeoutExceeded"}
    assert {record.state for record in records} == {State.FAILED}


async def test_a_batch_begins_with_what_it_has_if_no_more_can_be_claimed(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[int]] = []
    asked = 0
    claim_more = batches.claim_more

    async def fail_once(*args: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        claims = await claim_more(*args, **options)
        if asked == 1:
            raise StoreUnavailable("the answer was lost")  # the claims were made, and no worker knows of them
        return claims

    monkeypatch.setattr(fetcher, "claim_more", fail_once)

    @app.job(batch=50)
    async def index(pages: list[Page]) -> None:
        calls.append([page.number for page in pages])

    async with app:
        jobs = await index.enqueue_many(pages(*range(50)))
        async with working(app):
            records = [await final(app, job) for job in jobs]
    assert {(record.state, record.attempt, record.crashes) for record in records} == {(State.COMPLETED, 1, 0)}
    assert sorted(number for call in calls for number in call) == list(range(50)), "each ran once"
    assert len(calls[0]) < 50


async def test_sealed_jobs_are_opened_and_sealed_each_by_itself(app: Dutiful) -> None:
    sealing = Dutiful(app.settings.database_url, encryption=KeyRing({"k": b"x" * 32}))
    seen: list[int] = []

    @sealing.job(batch=5, encrypted=True, retry=ONCE)
    async def index(jobs: list[BatchJob[Page]]) -> list[Any]:
        seen.extend(job.payload.number for job in jobs)
        return [f"secret {job.payload.number}" if job.payload.number != 2 else ValueError("secret") for job in jobs]

    async with sealing, app:
        jobs = await index.enqueue_many(pages(1, 2))
        async with working(sealing):
            await final(sealing, jobs[1])
            assert await jobs[0].result("10s") == "secret 1"
        stored = [await app.find(job.id) for job in jobs]
    assert sorted(seen) == [1, 2]
    assert "secret" not in repr([(one.payload, one.result, one.errors) for one in stored if one])
    sealing.close_sync()


async def test_a_hook_surrounds_the_call_and_what_belongs_to_one_job_is_refused(app: Dutiful) -> None:
    around: list[tuple[str, int]] = []

    @app.around_attempt
    def note(ctx: Any) -> Iterator[None]:
        around.append((ctx.kind, len(ctx.jobs)))
        assert ctx.job_id is None and ctx.public_id is None
        yield

    @app.job(batch=5, retry=ONCE)
    async def greedy(ctx: BatchContext, pages: list[Page]) -> None:
        async with ctx.timeout("10s"), ctx.lock("index", 1):
            await ctx.step("one", print)  # type: ignore[attr-defined]

    async with app:
        jobs = await greedy.enqueue_many(pages(1, 2))
        async with working(app):
            records = [await final(app, job) for job in jobs]
    assert around == [("greedy", 2)]
    for record in records:
        assert record.error is not None and "a batch has no ctx.step" in record.error["message"]


async def test_batches_are_part_of_workflows(app: Dutiful) -> None:
    @app.job
    async def count(n: int) -> int:
        return n + 1

    @app.job(batch=5)
    async def double(pages: list[Page]) -> list[int]:
        return [2 * page.number for page in pages]

    async with app, working(app):
        flows = [
            await chain(count.call(n), double.call(number=PREVIOUS), count.call(PREVIOUS)).enqueue() for n in range(3)
        ]
        assert [await flow.result("30s") for flow in flows] == [3, 5, 7]


async def test_the_kit_drains_batches_of_what_is_due() -> None:
    app, calls = Dutiful(), []

    @app.job(batch=3, linger="1h", retry=Retry(max_attempts=3))
    def index(jobs: list[BatchJob[Page]]) -> list[Any]:
        calls.append([job.payload.number for job in jobs])
        later = ValueError("again"), Snooze("1m")
        return [
            later[job.payload.number] if job.attempt == 1 and len(calls) == 1 and job.payload.number < 2 else "done"
            for job in jobs
        ]

    async with app_on(app, clock=Clock()) as kit:
        await index.enqueue_many(pages(0, 1, 2, 3))
        ran = await kit.drain()
        assert calls == [[0, 1, 2], [3]]
        states = {one.job.payload["number"]: one.state for one in ran}
        assert states == {0: State.SCHEDULED, 1: State.SCHEDULED, 2: State.COMPLETED, 3: State.COMPLETED}
        await kit.drain(advance=True)
    assert sorted(calls[2:]) == [[0], [1]]


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_inline_runs_a_batch_at_once(plain: bool) -> None:
    app, calls = Dutiful(), list[int]()

    def index(ctx: BatchContext, jobs: list[BatchJob[Page]]) -> list[Any]:
        calls.append(len(ctx.jobs))
        return [f"page {job.payload.number}" if job.payload.number else ValueError("no page 0") for job in jobs]

    async def indexing(ctx: BatchContext, jobs: list[BatchJob[Page]]) -> list[Any]:
        return index(ctx, jobs)

    kind = app.job(name="index", batch=2)(index if plain else indexing)
    with inline(app):
        assert await (await kind.enqueue(number=1)).result() == "page 1"
        assert [await job.result() for job in await kind.enqueue_many(pages(1, 2, 3))] == ["page 1", "page 2", "page 3"]
        with pytest.raises(ValueError, match="no page 0"):
            await kind.enqueue(number=0)
        if plain:
            assert kind.sync.enqueue(number=4).result() == "page 4"
            assert [job.result() for job in kind.sync.enqueue_many(pages(5, 6))] == ["page 5", "page 6"]
    assert calls[:3] == [1, 2, 1]
