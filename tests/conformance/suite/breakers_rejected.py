"""Where jobs wait that a breaker rejected inside their handlers, and when they are released."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from dutiful.core.breaker.probes import CANDIDATES
from dutiful.core.breaker.state import BreakerPolicy, BreakerState, CallResult
from dutiful.core.job import Claim
from dutiful.core.outcome import Snoozed
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.control import PauseScope
from dutiful.store.retention import KEEP_UNUSED
from suite.breakers import MAIL, admit, call, of_name, trip
from suite.breakers_gate import ONE, declare, ready, sweep
from suite.breakers_probes import WEEK
from suite.builders import (
    ADA,
    DEFAULT,
    EXPIRED,
    KIND,
    OOPS,
    T0,
    at,
    claim,
    claim_one,
    complete,
    history,
    pause,
    rescue,
    settle,
    start_one,
    state,
    states,
)
from suite.workers import serve

HOUR = timedelta(hours=1)


async def reject(store: Store, claimed: Claim, *, by: str = MAIL, now: datetime = T0) -> UUID:
    assert await settle(store, claimed, Snoozed(timedelta(0), {**OOPS, "breaker": by}), now=now) == []
    return claimed.job_id


async def reject_one(store: Store, *, by: str = MAIL, now: datetime = T0, **fields: Any) -> UUID:
    return await reject(store, await start_one(store, now=now, **fields), by=by, now=now)


@pytest.mark.req("L57", "L58")
class BreakerRejectedSuite:
    async def test_a_rejected_job_waits_for_its_breaker_and_has_spent_no_attempt(self, store: Store) -> None:
        await trip(store)

        job = await reject_one(store)

        record = await store.queries.job(job)
        assert record is not None
        assert (record.state, record.gate, record.gate_key) == (State.BLOCKED, "breaker", MAIL)
        assert (record.attempt, record.run_at) == (0, None)
        assert await history(store, job) == [(1, "snoozed")]
        (found,) = await store.breakers.all(now=T0)
        assert (found.kinds, found.waiting) == ([], 1)
        assert (await store.leadership.survey(ADA, timedelta(seconds=15), now=at(1))).blocked
        assert (await sweep(store, 59)).moved == 0, "no job is released while it is open"
        assert (await store.promotion.promote(100, now=at(59))).moved == 0
        assert await store.queries.check_places() == []

    async def test_all_rejected_jobs_are_released_in_order_when_the_breaker_is_reset(self, store: Store) -> None:
        await trip(store)
        jobs = [await reject_one(store, now=at(n)) for n in range(5)]
        other = await reject_one(store, by="maps", now=at(5))
        await store.breakers.open("maps", HOUR, now=at(5))
        assert [one.waiting for one in await store.breakers.all(now=at(6))] == [5, 1]

        await store.breakers.reset(MAIL, now=at(6))
        assert [one.waiting for one in await store.breakers.all(now=at(6))] == [0, 1]
        first, rest = await sweep(store, 6, limit=2), await sweep(store, 6)

        assert (first.moved, rest.moved) == (2, 3)
        assert first.levels == frozenset({(DEFAULT.queue, DEFAULT.priority)})
        claimed = await claim(store, now=at(6))
        assert [c.job_id for c in claimed] == jobs
        assert [c.attempt for c in claimed] == [1] * 5
        assert await state(store, other) is State.BLOCKED
        assert await store.queries.check_places() == []

    async def test_as_many_jobs_as_probes_are_released_when_the_time_is_over(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=2)
        await trip(store, policy=policy)
        jobs = [await reject_one(store, now=at(n)) for n in range(6)]

        assert (await sweep(store, 60)).moved == 2

        probes = await claim(store, now=at(60))
        assert [c.job_id for c in probes] == jobs[:2]
        for probe in probes:
            await admit(store, probe, policy=policy, now=at(60))
        assert (await of_name(store)).state is BreakerState.HALF_OPEN
        assert (await sweep(store, 61)).moved == 0, "two probe already"
        (found,) = await store.breakers.all(now=at(61))
        assert (found.probing, found.waiting) == (2, 4)

    async def test_a_successful_probe_releases_the_others_and_a_failed_one_none(self, store: Store) -> None:
        await trip(store, policy=ONE)
        jobs = [await reject_one(store, now=at(n)) for n in range(3)]
        await sweep(store, 60)
        probe = await claim_one(store, now=at(60))
        await call(store, probe, CallResult.BAD, policy=ONE, now=at(61))
        await complete(store, probe, now=at(61))
        assert (await sweep(store, 62)).moved == 0

        await sweep(store, 121)
        probe = await claim_one(store, now=at(121))
        await call(store, probe, CallResult.GOOD, policy=ONE, now=at(122))
        await sweep(store, 122)

        assert await ready(store, jobs) == jobs[2:]

    async def test_rejected_jobs_are_released_between_sweeps_too(self, store: Store) -> None:
        await trip(store)
        jobs = [await reject_one(store, now=at(n)) for n in range(3)]

        assert (await store.promotion.unblock(100, now=at(60))).moved == 1
        await store.breakers.reset(MAIL, now=at(61))
        assert (await store.promotion.unblock(100, now=at(61))).moved == 2

        assert await ready(store, jobs) == jobs

    async def test_a_job_that_is_rejected_again_goes_behind_the_others(self, store: Store) -> None:
        await trip(store)
        first, second = [await reject_one(store, now=at(n)) for n in range(2)]
        await sweep(store, 60)
        await reject(store, await claim_one(store, now=at(60)), now=at(60))

        await sweep(store, 61)

        assert await ready(store, [first, second]) == [second]
        assert await history(store, first) == [(1, "snoozed")]

    async def test_a_probe_lost_with_its_worker_is_replaced_by_a_sweep(self, store: Store) -> None:
        await trip(store)
        first, second = [await reject_one(store, now=at(n)) for n in range(2)]
        await sweep(store, 60)
        await admit(store, await claim_one(store, now=at(60)), now=at(60))
        assert (await sweep(store, 61)).moved == 0

        await sweep(store, 60 + EXPIRED)

        assert await state(store, second) is State.READY
        assert await rescue(store, now=at(60 + EXPIRED)) == []
        assert await state(store, first) is State.READY
        assert await store.queries.check_places() == []

    async def test_a_breaker_forced_open_for_less_is_tried_earlier(self, store: Store) -> None:
        await store.breakers.open(MAIL, HOUR, now=T0)
        job = await reject_one(store)

        await store.breakers.open(MAIL, timedelta(seconds=5), now=at(1))

        assert (await sweep(store, 5)).moved == 0
        assert (await sweep(store, 6)).moved == 1
        assert await state(store, job) is State.READY

    async def test_a_breaker_that_closes_before_the_job_is_settled_blocks_no_job(self, store: Store) -> None:
        await trip(store)
        claimed = await start_one(store)
        await store.breakers.reset(MAIL, now=at(1))
        late, unknown = await reject(store, claimed, now=at(2)), await reject_one(store, by="gone", now=at(2))

        assert (await sweep(store, 2)).moved == 2

        assert await states(store, [late, unknown]) == [State.READY] * 2

    @pytest.mark.parametrize("when", ["before", "meanwhile"])
    async def test_a_paused_kind_stays_paused(self, store: Store, when: str) -> None:
        await trip(store)
        claimed = await start_one(store)
        if when == "before":
            await pause(store, PauseScope.KIND, KIND)
        job = await reject(store, claimed)
        await pause(store, PauseScope.KIND, KIND)

        await store.breakers.reset(MAIL, now=at(1))
        await sweep(store, 1)
        record = await store.queries.job(job)
        assert record is not None and (record.state, record.gate) == (State.BLOCKED, "paused")

        await store.control.resume(PauseScope.KIND, KIND)
        await sweep(store, 2)
        assert await state(store, job) is State.READY
        assert await store.queries.check_places() == []

    async def test_the_breaker_of_a_kind_holds_independently_of_the_other(self, store: Store) -> None:
        await declare(store)
        await trip(store, name="maps")
        job = await reject_one(store, by="maps")
        await trip(store)
        await store.breakers.reset("maps", now=at(1))

        for _ in range(2):
            await sweep(store, 1)
        record = await store.queries.job(job)
        assert record is not None and (record.state, record.gate) == (State.BLOCKED, "paused")

        await store.breakers.reset(MAIL, now=at(2))
        await sweep(store, 2)
        assert await state(store, job) is State.READY

    async def test_the_job_with_the_best_priority_probes_first(self, store: Store) -> None:
        await trip(store)
        await serve(store, general=["*"])
        jobs = [await reject_one(store, priority=priority, now=at(n)) for n, priority in enumerate((200, 50, 50))]

        assert (await sweep(store, 60)).moved == 1

        assert await ready(store, jobs) == jobs[1:2]

    async def test_jobs_that_no_worker_serves_do_not_hide_those_behind_them(self, store: Store) -> None:
        await trip(store)
        await serve(store, kinds=[KIND], general=["default"])
        for n in range(CANDIDATES):
            await reject_one(store, kind="gone", now=at(n / 1000))
        served = [await reject_one(store, now=at(2 + n)) for n in range(2)]

        for second in (60, 61):
            await sweep(store, second, limit=1_000)

        assert await ready(store, served) == served[:1]

    async def test_a_rejected_job_can_be_cancelled_failed_or_run_now(self, store: Store) -> None:
        await trip(store)
        cancelled, failed, due, waiting = [await reject_one(store, now=at(n)) for n in range(4)]

        assert (await store.control.cancel(cancelled, "no use", now=at(5)) or pytest.fail()).state is State.CANCELLED
        assert await store.control.fail(failed, OOPS, now=at(5))
        assert await store.control.run_now(due, now=at(5)) is State.READY
        assert (await claim_one(store, now=at(5))).job_id == due

        assert await states(store, [cancelled, failed, waiting]) == [State.CANCELLED, State.FAILED, State.BLOCKED]
        assert [one.waiting for one in await store.breakers.all(now=at(5))] == [1]
        assert await store.queries.check_places() == []

    async def test_a_pause_holds_for_a_job_that_is_run_now(self, store: Store) -> None:
        await trip(store)
        job = await reject_one(store)
        await pause(store, PauseScope.KIND, KIND)

        assert await store.control.run_now(job, now=at(1)) is State.BLOCKED

        record = await store.queries.job(job)
        assert record is not None and record.gate == "paused"

    async def test_a_job_with_a_cancel_request_is_not_kept_waiting(self, store: Store) -> None:
        await trip(store)
        claimed = await start_one(store)
        await store.control.cancel(claimed.job_id, "no use", now=T0)

        refusals = await settle(store, claimed, Snoozed(timedelta(0), {**OOPS, "breaker": MAIL}))

        assert [one.reason for one in refusals] == ["cancel_requested"]
        assert await state(store, claimed.job_id) is State.RUNNING

    async def test_a_breaker_for_which_jobs_wait_is_not_forgotten(self, store: Store) -> None:
        await trip(store)
        job = await reject_one(store)
        later = T0 + KEEP_UNUSED + WEEK

        await store.retention.delete_leftovers(WEEK, 10, now=later)
        assert [one.waiting for one in await store.breakers.all(now=later)] == [1]
        await store.control.cancel(job, "no use", now=later)
        await store.retention.delete_leftovers(WEEK, 10, now=later)
        assert await store.breakers.all(now=later) == []
