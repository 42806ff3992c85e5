"""What a settler makes of refusals: leases that are locked, claims that are lost, jobs that are to be cancelled."""

import asyncio
from typing import Any

import pytest
from settling import (
    OOPS,
    Settling,
    locked,
    refused,
    running,
    settling,
    turns,
    until,
)
from worker_parts import MovingClock, clock

from dutiful.core.outcome import Done, Failed, Lost
from dutiful.core.states import State
from dutiful.store.claims import RefusalReason
from dutiful.worker import settler as module
from dutiful.worker.settler import RETRY_LOCKED

__all__ = ["clock", "settling"]


# --- leases that a user's transaction holds


async def test_a_locked_lease_is_set_aside_and_tried_again_later(settling: Settling, clock: MovingClock) -> None:
    first, second = settling.settle(1, Done(None)), settling.settle(2, Failed(OOPS, final=True))
    settling.settle(3, Done(None))
    settling.settle(4, Failed(OOPS, final=True))
    settling.claims.script("complete", locked(first), [], locked(first))
    settling.claims.script("settle", locked(second), locked(second))
    async with running(settling.settler):
        await until(lambda: settling.settler.settled_count == 2)
        assert settling.leased() == {1, 2} and settling.settler.pending == 2
        assert settling.settler.unsettled == {1, 2}
        settling.settle(5, Done(None))
        await until(lambda: settling.settler.settled_count == 3)
        assert settling.stored() == [[1, 3], [5]], "not tried again before its time"
        for _ in range(2):
            clock.now += RETRY_LOCKED
            settling.settler._wake.set()
            await turns(20)
        assert settling.leased() == set()
        await asyncio.wait_for(settling.settler.flush(), 5)
    assert settling.stored() == [[1, 3], [5], [1], [1]] and settling.stored("settle") == [[2, 4], [2], [2]]
    assert settling.claims.skipped == [False, False, False, True, True, True, True]
    assert settling.counted() == {"completed": 3, "failed": 2}


async def test_a_locked_lease_is_logged_once(settling: Settling, clock: MovingClock, caplog: Any) -> None:
    claim = settling.settle(1, Done(None))
    settling.claims.script("complete", locked(claim), locked(claim), locked(claim))
    async with running(settling.settler):
        for _ in range(4):
            await turns(10)
            clock.now += RETRY_LOCKED
            settling.settler._wake.set()
        await asyncio.wait_for(settling.settler.flush(), 5)
        assert caplog.text.count("1 outcomes wait for transactions") == 1
        settling.claims.script("complete", locked(settling.settle(2, Done(None))))
        await turns(10)
        clock.now += RETRY_LOCKED
        await asyncio.wait_for(settling.settler.flush(), 5)
    assert caplog.text.count("1 outcomes wait for transactions") == 2, "another one is news"


async def test_a_flush_tries_locked_leases_again_whose_time_has_come(
    settling: Settling, clock: MovingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_LOCKED", 3_600.0)
    settling.claims.script("complete", locked(settling.settle(1, Done(None))))
    async with running(settling.settler):
        await turns(10)
        clock.now += 3_600
        await asyncio.wait_for(settling.settler.flush(), 5)
    assert settling.stored() == [[1], [1]]


async def test_without_a_signal_locked_leases_are_tried_again_after_a_while(
    settling: Settling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_LOCKED", 0.001)  # real time: the wait itself is what is tested
    monkeypatch.setattr(module, "time", __import__("time"))
    claim = settling.settle(1, Done(None))
    settling.claims.script("complete", locked(claim))
    async with running(settling.settler):
        await until(lambda: settling.settler.settled_count == 1)
    assert settling.stored() == [[1], [1]]


# --- claims that are lost, and cancellations


async def test_a_lost_completion_is_not_counted_and_is_logged(settling: Settling, caplog: Any) -> None:
    lost, *repeated = (settling.settle(number, Done(None)) for number in (1, 2, 3))
    refusals = [*refused(RefusalReason.LOST, lost), *refused(RefusalReason.REPEATED, *repeated)]
    settling.claims.script("complete", refusals)
    async with running(settling.settler):
        await settling.settler.flush()
    assert settling.counted() == {"completed": 2} and settling.leased() == set()
    (logged,) = (record for record in caplog.records if "its claim was lost" in record.getMessage())
    assert logged.kind == "greet" and "0000195" in logged.getMessage(), "with what is known of the job"


async def test_a_lost_failure_is_not_counted_and_a_repeated_one_is(settling: Settling, caplog: Any) -> None:
    lost, *repeated = (settling.settle(number, Failed(OOPS, final=True)) for number in (1, 2, 3))
    settling.claims.script("settle", [*refused(RefusalReason.LOST, lost), *refused(RefusalReason.REPEATED, *repeated)])
    async with running(settling.settler):
        await settling.settler.flush()
    assert settling.counted() == {"failed": 2} and not settling.counters._ended
    assert caplog.text.count("its claim was lost, so this outcome is discarded") == 1


async def test_a_lost_attempt_that_a_rescuer_has_stored_is_counted_by_the_rescuer(settling: Settling) -> None:
    claim = settling.settle(1, Lost())
    settling.claims.script("settle", refused(RefusalReason.REPEATED, claim))
    async with running(settling.settler):
        await settling.settler.flush()
    assert settling.counted() == {}


async def test_a_job_that_would_live_on_though_it_is_to_be_cancelled_is_cancelled(settling: Settling) -> None:
    claim = settling.settle(1, Failed(OOPS, ValueError))
    settling.settle(2, Failed(OOPS, ValueError))
    settling.claims.script("settle", refused(RefusalReason.CANCEL_REQUESTED, claim))
    async with running(settling.settler):
        await settling.settler.flush()
    first, (again,) = settling.claims.asked("settle")
    assert [one.to for one in first] == [State.SCHEDULED] * 2
    assert (again.claim_id, again.to) == (1, State.CANCELLED)
    assert settling.leased() == set()
    assert settling.counted().get("cancelled") == 1
    assert len(settling.maintenance.scheduled) == 1, "that of the other one"


async def test_a_completion_of_a_job_that_is_to_be_cancelled_is_stored_as_cancelled(settling: Settling) -> None:
    unwanted, _ = settling.settle(1, Done('"1"')), settling.settle(2, Done('"2"'))
    settling.claims.script("complete", refused(RefusalReason.CANCEL_REQUESTED, unwanted))
    async with running(settling.settler):
        await settling.settler.flush()
    ((change,),) = settling.claims.asked("settle")
    assert (change.claim_id, change.to) == (1, State.CANCELLED)
    times = {one.outcome: (one.count, one.run_microseconds) for one in settling.counters._take()}
    assert times == {"completed": (1, 2_000_000), "cancelled": (1, 2_000_000)}
    assert settling.leased() == set() and settling.settler.settled_count == 2
