"""What counts as an attempt, and its time, where claims and ends come in odd ways."""

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from running_workers import eventually, final, working

from dutiful import Context, Dutiful, ShutdownTimeout, State
from dutiful.core.job import Claim
from dutiful.core.outcome import Done
from dutiful.store import Store
from dutiful.store.claims import Completion
from dutiful.store.metrics import AttemptStats
from dutiful.worker import worker as worker_module
from dutiful.worker.counters import AttemptCounters, Timing
from dutiful.worker.leases import LeaseRenewalThread, Leases
from dutiful.worker.settler import Settler
from dutiful.worker.slots import Slot
from suite.builders import counted_ever, start_one


async def totals(app: Dutiful) -> dict[str, AttemptStats]:
    """By outcome; of the one kind that there is."""
    async with app.opened() as client:
        return {one.outcome: one for one in await counted_ever(client.store)}


async def test_what_is_stored_counts_though_its_claim_was_found_gone_before_the_reply_came(store: Store) -> None:
    stats, leases = AttemptCounters(), Leases()
    one = await start_one(store)

    class Late:
        """The renewer runs between the commit and its reply, finds no claim, and drops what it knows of it."""

        async def complete(self, done: Sequence[Completion], **options: Any) -> Any:
            refused = await store.claims.complete(done, **options)
            leases.drop([one.claim_id])
            return refused

    settler = Settler(Late(), {}, leases, lambda low, high: low, counters=stats)  # type: ignore[arg-type]
    leases.add([one])
    settler.settle(one, Done(), Timing(2.0, 0.5))
    settler.close()
    await settler.run()
    await stats.flush(store.metrics, uuid4())
    (total,) = await counted_ever(store)
    assert (total.count, total.run_microseconds) == (1, 500_000)
    assert total.wait_microseconds == 2_000_000 + int(one.waited * 1e6), "until it began, not until it was claimed"


async def test_a_job_that_ends_with_errors_in_its_own_transaction_is_counted_so(app: Dutiful) -> None:
    @app.job
    async def partial(ctx: Context) -> None:
        async def work(item: int) -> None:
            if item == 1:
                raise ValueError("a bad item")

        await ctx.each([0, 1, 2], work)
        async with ctx.transaction():
            pass

    async with working(app):
        job = await partial.enqueue()
        assert (await final(app, job)).state is State.COMPLETED_WITH_ERRORS
    assert {outcome: one.count for outcome, one in (await totals(app)).items()} == {"completed_with_errors": 1}


async def test_a_handler_that_goes_on_after_its_own_transaction_is_left_alone(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []
    lost: list[int] = []
    lose = LeaseRenewalThread._lose

    def note(self: LeaseRenewalThread, claim: Claim) -> None:
        lost.append(claim.claim_id)
        lose(self, claim)

    monkeypatch.setattr(LeaseRenewalThread, "_lose", note)

    async def missed() -> bool:
        return len(lost) >= 2

    @app.job
    async def report(ctx: Context) -> None:
        async with ctx.transaction():
            pass
        await eventually(missed)  # renewals find the claim gone
        story.append("to the end")

    async with working(app):
        await final(app, await report.enqueue())
        await eventually(lambda: _reported(story))
    assert {outcome: one.count for outcome, one in (await totals(app)).items()} == {"completed": 1}


async def _reported(story: list[str]) -> bool:
    return bool(story)


def test_what_waits_for_a_process_has_not_begun() -> None:
    slot, claimed = Slot("general"), time.monotonic() - 5
    slot.start_clock()
    slot.started -= 3
    span = slot.timing(claimed)
    assert 2 <= span.buffered < 3 <= span.ran


async def test_payloads_are_counted_in_bytes(app: Dutiful) -> None:
    @app.job
    async def write(text: str) -> None: ...

    async with working(app):
        await final(app, await write.enqueue("日" * 100))
    assert (await totals(app))["completed"].payload_most > 300


async def test_an_attempt_that_does_not_heed_the_end_of_its_worker_is_counted_as_released(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "CLEANUP_SECONDS", 0.2)
    begun, go = threading.Event(), threading.Event()

    @app.job
    def stubborn() -> None:
        begun.set()
        while not go.wait(0.05):
            pass

    app.configure(grace="100ms")
    try:
        async with app.opened() as client:
            worker = app.make_worker(client)
            running = asyncio.create_task(worker.run())
            await stubborn.enqueue()
            await asyncio.to_thread(begun.wait, 60)
            worker.stop(timedelta(0))
            await asyncio.wait([running], timeout=60)
            assert running.done() and running.exception() is not None
    finally:
        go.set()
    assert (await totals(app))["released"].count == 1


async def test_a_job_that_completed_itself_counts_so_though_its_handler_outlives_the_worker(
    app: Dutiful, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "CLEANUP_SECONDS", 0.2)
    begun, go = asyncio.Event(), asyncio.Event()

    @app.job
    async def deaf(ctx: Context) -> None:
        async with ctx.transaction():
            pass
        begun.set()
        while not go.is_set():
            with suppress(asyncio.CancelledError):
                await go.wait()

    try:
        with pytest.raises(ShutdownTimeout):
            async with app.embedded(grace="0s"):
                await deaf.enqueue()
                await asyncio.wait_for(begun.wait(), 60)
    finally:
        go.set()
    assert {outcome: one.count for outcome, one in (await totals(app)).items()} == {"completed": 1}
