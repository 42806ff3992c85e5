"""Acts on many jobs hold few payloads at a time, however many there are."""

import tracemalloc
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from operating import operator

from dutiful import Dutiful
from dutiful.core.outcome import Failed
from dutiful.core.review.state import ReviewAct
from dutiful.maintenance import bulk_step
from dutiful.operator import trees
from dutiful.store import Store
from dutiful.store.dead_letters import BulkState, DeadLetterFilter
from dutiful.store.queries import JobFilter
from suite.builders import OOPS, change, claim, new_job

JOBS, SIZE = 24, 500_000
LARGE = '{"text":"' + "x" * SIZE + '"}'
FEW = 10_000_000  # bytes: a part with one payload more, and their copies on the way to the store


async def dead_letters(store: Store, number: int) -> list[UUID]:
    now = datetime.now(UTC) - timedelta(hours=1)
    jobs = [new_job(payload=LARGE, correlation_id="order-7") for _ in range(number)]
    for start in range(0, number, 4):
        await store.jobs.insert(jobs[start : start + 4], now=now)
        claims = await claim(store, limit=4, now=now)
        await store.claims.settle([change(one, Failed(OOPS, final=True)) for one in claims], now=now)
    return [job.id for job in jobs]


async def peak(act: Callable[[], Awaitable[Any]]) -> tuple[Any, int]:
    tracemalloc.start()
    try:
        return await act(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def check_new(store: Store, new: list[UUID]) -> None:
    for job_id in new:
        job = await store.queries.job(job_id)
        assert job is not None and len(job.payload["text"]) == SIZE


async def test_a_tree_is_run_again_with_few_payloads_in_memory(app: Dutiful, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "PART", 1)
    monkeypatch.setattr(trees, "PART_BYTES", SIZE)
    store = (await app.client()).store
    failed = await dead_letters(store, JOBS // 2)
    waiting = [new_job(payload=LARGE, correlation_id="order-7") for _ in range(JOBS // 2)]
    for one in waiting:
        await store.jobs.insert([one])
    ada = operator(store)
    await ada.trees.cancel("order-7")

    retried, most = await peak(lambda: ada.trees.retry("order-7", cancelled=True))

    assert {*retried.jobs} == {*failed, *(job.id for job in waiting)}
    assert most < FEW, f"{most:,} bytes for {JOBS} payloads of {SIZE:,}"
    await check_new(store, [*retried.jobs.values()])


async def test_a_bulk_run_reprocesses_large_jobs_with_few_in_memory(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_step, "PART", 1)
    monkeypatch.setattr(bulk_step, "PART_BYTES", SIZE)
    store = (await app.client()).store
    await dead_letters(store, JOBS)
    ada = operator(store)
    run = await ada.bulk.start(ReviewAct.REPROCESS, DeadLetterFilter())

    steps = 0
    while run.state is BulkState.RUNNING:
        run, most = await peak(partial(ada.bulk.step, run.id))
        assert most < FEW, f"{most:,} bytes in one step"
        steps += 1

    assert (run.done, run.skipped) == (JOBS, 0) and steps > 1
    page = await store.queries.jobs(JobFilter(limit=1_000, details=False))
    await check_new(store, [job.id for job in page if job.retry_of is not None])
