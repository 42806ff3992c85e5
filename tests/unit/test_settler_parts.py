"""What limits, dependents and counters learn of the outcomes that a settler has stored."""

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from settling import OOPS, WEBHOOK, Settling, refused, running, until
from worker_parts import AWAY, MovingClock, after, clock, new_claim

from dutiful.core import ids
from dutiful.core.limits import KindLimit, Limit
from dutiful.core.outcome import Done, Failed, Outcome, Partial, Released, Snoozed
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.error_info import make_error
from dutiful.core.settle import Policy
from dutiful.core.states import State
from dutiful.store.claims import RefusalReason
from dutiful.worker import settler as module
from dutiful.worker.executor.outcomes import UserCompletion

__all__ = ["clock"]
AWAITED = '{"awaited":true}'
WAIT = timedelta(seconds=7)
BUSY = make_error("TooMany", "slow down", ErrorClass.RATE_LIMITED)
TRANSIENT = make_error("Gone", "come back", ErrorClass.TRANSIENT)


class Holds:
    """The limits' holds, as they were asked for; fails so many times."""

    def __init__(self) -> None:
        self.asked: list[Mapping[UUID, timedelta]] = []
        self.failures = 0

    async def hold(self, holds: Mapping[UUID, timedelta]) -> None:
        self.asked.append(dict(holds))
        if self.failures:
            self.failures -= 1
            raise AWAY


def kind(*, feedback: bool = False, limited: bool = True) -> Any:
    limits = [KindLimit(Limit("calls", 1, feedback=feedback))] if limited else []
    return SimpleNamespace(limits=limits, policy=Policy())


def limited(holds: Holds | None = None) -> Settling:
    kinds = {"greet": kind(), "ask": kind(feedback=True), "free": kind(limited=False)}
    return Settling(kinds, holds)


async def stored(settling: Settling) -> None:
    async with running(settling.settler):
        await settling.settler.flush()


@pytest.mark.parametrize("outcome", [Done(None), Failed(OOPS, final=True), Released(), Snoozed(WAIT)])
async def test_the_slots_of_a_limited_kind_are_freed_by_whatever_ends_its_attempts(outcome: Outcome) -> None:
    settling = limited()
    settling.settle(1, outcome, kind="free")
    await stored(settling)
    assert settling.maintenance.freed == 0

    settling = limited()
    settling.settle(1, outcome, kind="greet")
    await stored(settling)
    assert settling.maintenance.freed == 1


@pytest.mark.parametrize(("outcome", "ended"), [(Done(None), True), (Failed(OOPS, final=True), True),
                                                (Failed(OOPS, ValueError), False), (Released(), False)])  # fmt: skip
async def test_those_that_wait_for_a_job_are_released_when_it_has_ended(outcome: Outcome, ended: bool) -> None:
    settling = Settling()
    settling.settle(1, outcome)
    claim = settling.settle(2, outcome, options=AWAITED)
    await stored(settling)
    assert settling.maintenance.awaited == [claim.job_id.int] * ended


async def test_those_that_wait_for_a_job_of_a_users_transaction_are_released() -> None:
    settling = Settling()
    claim = settling.settle(1, State.COMPLETED, options=AWAITED)
    assert settling.maintenance.awaited == [claim.job_id.int]


async def test_a_user_who_has_committed_is_counted_by_what_the_store_recognises(caplog: Any) -> None:
    settling = Settling()
    rolled_back = Failed(OOPS, final=True)
    done = settling.settle(
        1, UserCompletion(State.COMPLETED_WITH_ERRORS, rolled_back), options=WEBHOOK[:-1] + ',"awaited":1}'
    )
    settling.settle(2, UserCompletion(State.COMPLETED, rolled_back))
    settling.claims.script("settle", refused(RefusalReason.REPEATED, done))
    await stored(settling)
    counted = {one.outcome: (one.count, one.run_microseconds) for one in settling.counters._take()}
    assert counted == {"completed_with_errors": (1, 2_000_000), "failed": (1, 2_000_000)}
    assert settling.maintenance.awaited == [done.job_id.int] and settling.maintenance.ended == 1
    (logged,) = caplog.records
    assert logged.getMessage().endswith("it is a dead letter now") and logged.job == ids.public(UUID(int=2))
    assert not settling.settler._by_users and not settling.counters._ended


async def test_without_counters_a_users_commit_is_forgotten_too() -> None:
    settling = Settling()
    settling.settler.counters = None
    settling.settle(1, UserCompletion(State.COMPLETED, Failed(OOPS, final=True)))
    await stored(settling)
    assert not settling.settler._by_users


async def test_a_service_that_asks_to_wait_holds_its_key_before_other_jobs_may_start() -> None:
    holds = Holds()
    settling = limited(holds)
    asked = settling.settle(1, Failed(BUSY, retry_after=WAIT), kind="ask")
    settling.settle(2, Failed(BUSY, retry_after=WAIT), kind="greet")
    settling.settle(3, Failed(TRANSIENT, retry_after=WAIT), kind="ask")
    settling.settle(4, Released(), kind="ask")
    retried = settling.settle(5, Failed(BUSY, ValueError), kind="ask")
    await stored(settling)
    assert [{job_id: wait > timedelta(0) for job_id, wait in one.items()} for one in holds.asked] == [
        {asked.job_id: True, retried.job_id: True}
    ]
    assert holds.asked[0][asked.job_id] == WAIT


async def test_a_hold_that_failed_is_made_again_with_the_outcomes(
    clock: MovingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr("dutiful.worker.settler.asyncio.sleep", at_once)
    holds = Holds()
    holds.failures = 1
    settling = limited(holds)
    claim = settling.settle(1, Failed(BUSY, retry_after=WAIT), kind="ask")
    await stored(settling)
    assert holds.asked == [{claim.job_id: WAIT}] * 2
    assert settling.stored("settle") == [[1]]
    settling.settle(2, Done(None), kind="ask")
    await settling.settler._write_batch(settling.settler._waiting)
    assert len(holds.asked) == 2, "without a wait there is nothing to hold"


# --- handlers that end after their job was settled


async def test_a_late_failure_is_logged_and_nothing_is_stored(caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    settling = Settling()
    settling.settler.settle_late(new_claim(1), Failed(OOPS, final=True))
    assert settling.settler.pending == 0
    assert [record.getMessage().endswith("its handler has ended at last") for record in caplog.records] == [True]


@pytest.mark.parametrize("outcome", [Done('"late"'), Partial('"late"', ())])
async def test_a_late_success_is_given_to_the_store_which_refuses_it_by_its_claim(outcome: Outcome) -> None:
    settling = Settling()
    settling.settler.settle_late(new_claim(1), outcome)
    await stored(settling)
    assert (settling.stored(), settling.stored("settle")) == ([], [[1]])


async def test_a_late_success_waits_until_the_outcome_without_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_LOCKED", 0.001)
    settling, gate = Settling(), asyncio.Event()
    settling.claims.script("settle", after(gate, []))
    claim = settling.settle(1, Failed(OOPS, final=True))
    settling.settler.settle_late(claim, Done('"late"'))
    async with running(settling.settler):
        await asyncio.sleep(0.01)
        assert settling.stored("settle") == [[1]], "the first is not known to be stored"
        gate.set()
        await until(lambda: len(settling.stored("settle")) == 2)
    assert [change.outcome for (change,) in settling.claims.asked("settle")] == ["failed", "done"]
