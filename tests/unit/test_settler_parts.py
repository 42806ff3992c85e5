"""What limits, dependents and counters learn of the outcomes that a settler has stored."""

from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from test_settler import OOPS, WEBHOOK, Settling, refused, running
from worker_parts import AWAY, MovingClock, clock

from dutiful.core.limits import KindLimit, Limit
from dutiful.core.outcome import Done, Failed, Outcome, Released, Snoozed
from dutiful.core.retry.classify import ErrorClass
from dutiful.core.retry.error_info import make_error
from dutiful.core.settle import Policy
from dutiful.core.states import State
from dutiful.store.claims import RefusalReason
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
    assert [record.getMessage().endswith("it is a dead letter now") for record in caplog.records] == [True]
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
