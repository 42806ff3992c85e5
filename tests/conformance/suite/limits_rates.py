"""Limits on starts: never more within a time than allowed, bursts included, and what services ask for."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from dutiful.core.limits import KindLimit, Limit
from dutiful.core.outcome import Failed, Released
from dutiful.store import Store
from dutiful.store.limits import KeyUse
from suite.builders import (
    KIND,
    OOPS,
    T0,
    at,
    claim,
    complete,
    enqueue,
    new_job,
    renewing,
    settle,
    warm,
)
from suite.limits import OTHER, TWO, TWO_A_MINUTE, admit, gate, keyed, limited, ready


class RateLimitSuite:
    async def test_no_more_jobs_start_within_the_time_than_allowed(self, store: Store) -> None:
        await limited(store, TWO_A_MINUTE)
        jobs = [keyed("acme") for _ in range(4)]
        await enqueue(store, *jobs)
        await admit(store)
        await complete(store, *await claim(store, now=at(10)), now=at(11))

        await admit(store, now=at(69))
        assert await ready(store, jobs) == []
        admission = await store.limits.admit(100, now=at(69))
        assert admission.wait == timedelta(seconds=1)
        await admit(store, now=at(70))

        assert await ready(store, jobs) == [2, 3]

    async def test_a_start_counts_from_when_the_job_was_claimed(self, store: Store) -> None:
        await limited(store, TWO_A_MINUTE)
        jobs = [keyed("acme") for _ in range(3)]
        await enqueue(store, *jobs)
        await admit(store)

        await admit(store, now=at(3600))  # both are ready, and have not started yet
        assert await ready(store, jobs) == [0, 1]

        await claim(store, now=at(3600))
        await admit(store, now=at(3659))
        assert await ready(store, jobs) == []
        await admit(store, now=at(3660))
        assert await ready(store, jobs) == [2]

    async def test_a_job_that_never_started_costs_nothing(self, store: Store) -> None:
        await limited(store, Limit("calls", 1, per=timedelta(minutes=1)))
        jobs = [keyed("acme") for _ in range(2)]
        await enqueue(store, *jobs)
        await admit(store)

        await store.control.cancel(jobs[0].id, "no", now=T0)
        await admit(store)

        assert await ready(store, jobs) == [1]

    @pytest.mark.parametrize("began", [True, False])
    async def test_a_job_that_is_given_back_counts_if_it_had_begun(self, store: Store, began: bool) -> None:
        await limited(store, Limit("calls", 1, per=timedelta(minutes=1)), Limit("others", 1))
        job = keyed("acme")
        await enqueue(store, job)
        await admit(store)
        (first,) = await claim(store, now=at(1))

        await settle(store, first, Released(began), now=at(2))
        await admit(store, now=at(60))
        assert await ready(store, [job]) == ([] if began else [0])
        await admit(store, now=at(61))

        assert await ready(store, [job]) == [0]

    async def test_a_job_of_a_worker_that_ends_itself_counts_as_started(self, store: Store) -> None:
        await limited(store, Limit("calls", 1, per=timedelta(hours=1)))
        job, now = keyed("acme"), datetime.now(UTC)
        await enqueue(store, job, now=now)
        await admit(store, now=now)
        (first,) = await claim(store, now=now)

        async with renewing(store) as renewer:
            await renewer.release(first)
        await admit(store, now=now)

        assert await gate(store, job.id) == ("limit", '["calls", "acme"]')

    async def test_every_attempt_is_a_start(self, store: Store) -> None:
        await limited(store, Limit("calls", 1, per=timedelta(minutes=1)))
        jobs = [keyed("acme") for _ in range(2)]
        await enqueue(store, *jobs)
        await admit(store)
        (first,) = await claim(store)
        await settle(store, first, Failed(OOPS))

        await admit(store, now=at(59))
        assert await ready(store, jobs) == []
        await store.promotion.promote(10, now=at(60))
        await admit(store, now=at(60))
        assert await ready(store, jobs) == [1]
        await complete(store, *await claim(store, now=at(61)), now=at(61))
        await admit(store, now=at(120))
        assert await ready(store, jobs) == []
        await admit(store, now=at(121))

        assert await ready(store, jobs) == [0]

    async def test_fixed_windows_begin_by_the_clock(self, store: Store) -> None:
        await limited(store, Limit("calls", 1, per=timedelta(minutes=1), fixed=True))
        jobs = [keyed("acme") for _ in range(3)]
        await enqueue(store, *jobs)
        await admit(store, now=at(50))
        await complete(store, *await claim(store, now=at(50)), now=at(50))
        await admit(store, now=at(59.9))
        assert await ready(store, jobs) == []
        assert (await store.limits.admit(100, now=at(59))).wait == timedelta(seconds=1)

        await admit(store, now=at(60))

        assert await ready(store, jobs) == [1]

    async def test_a_burst_starts_together_and_the_others_evenly(self, store: Store) -> None:
        # Six a minute, two at once: two in any twenty seconds.
        await limited(store, Limit("calls", 6, per=timedelta(minutes=1), burst=2))
        jobs = [keyed("acme") for _ in range(9)]
        await enqueue(store, *jobs)
        started = []
        for second in range(0, 61, 5):
            await admit(store, now=at(second))
            claims = await claim(store, now=at(second))
            await complete(store, *claims, now=at(second))
            started.append(len(claims))

        assert started == [2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2]
        assert (await store.limits.admit(100, now=at(61))).wait == timedelta(seconds=19)

    async def test_a_limit_that_is_raised_or_lowered_changes_how_evenly_the_rest_of_a_burst_starts(
        self, store: Store
    ) -> None:
        await limited(store, Limit("calls", 60, per=timedelta(minutes=1), burst=1))
        jobs = [keyed("acme") for _ in range(9)]
        await enqueue(store, *jobs)

        async def starts(*times: float) -> int:
            started = 0
            for moment in times:
                await admit(store, now=at(moment), everywhere=True)
                done = await claim(store, now=at(moment))
                await complete(store, *done, now=at(moment))
                started += len(done)
            return started

        assert await starts(0, 0.5, 1) == 2
        assert await store.limits.choose("calls", 120)
        assert await starts(1.5, 2, 2.2) == 2
        assert await store.limits.choose("calls", 6)
        assert await starts(3, 11.9, 12) == 1
        assert await store.limits.choose("calls", 0)
        assert await starts(30, 60) == 0

    async def test_a_burst_that_is_used_up_keeps_no_other_gate_waiting(self, store: Store) -> None:
        burst, other = Limit("a: burst", 9, per=timedelta(minutes=1), burst=1), Limit("b", 1)
        await store.limits.put({KIND: [KindLimit(burst)], OTHER: [KindLimit(other)]}, now=T0)
        jobs = [new_job(kind=OTHER) for _ in range(2)]
        await enqueue(store, *(new_job() for _ in range(5)), *jobs)
        await admit(store)
        await store.limits.choose("b", 2)

        assert (await store.limits.admit(3, everywhere=True, now=T0)).seen == 1
        assert await ready(store, jobs) == [0, 1]

    async def test_a_burst_does_not_begin_anew_with_a_fixed_window(self, store: Store) -> None:
        # Six a minute, one at once: one in any ten seconds.
        await limited(store, Limit("calls", 6, per=timedelta(minutes=1), burst=1, fixed=True))
        jobs = [keyed("acme") for _ in range(3)]
        await enqueue(store, *jobs)
        await admit(store, now=at(55))
        await complete(store, *await claim(store, now=at(55)), now=at(55))

        admission = await store.limits.admit(100, now=at(61))

        assert await ready(store, jobs) == []
        assert admission.wait == timedelta(seconds=4)
        (record,) = await store.limits.all(now=at(61))
        assert record.used == 0, "the start was in the last minute, and counts towards the burst alone"
        await admit(store, now=at(65))
        assert await ready(store, jobs) == [1]

    async def test_starts_of_the_last_fixed_window_take_no_place_in_the_next(self, store: Store) -> None:
        # Two a minute, one at once: one in any thirty seconds.
        await limited(store, Limit("calls", 2, per=timedelta(minutes=1), burst=1, fixed=True))
        jobs = [keyed("acme") for _ in range(4)]
        await enqueue(store, *jobs)
        started = []
        for second in (0, 30, 59, 60, 90, 119, 120):
            await admit(store, now=at(second))
            claims = await claim(store, now=at(second))
            await complete(store, *claims, now=at(second))
            started.append(len(claims))

        assert started == [1, 1, 0, 1, 1, 0, 0]
        assert await store.queries.check_places() == []


class LimitRaceSuite:
    @pytest.mark.parametrize("limit", [TWO, TWO_A_MINUTE])
    async def test_admissions_at_once_admit_no_more_than_one_would(self, store: Store, limit: Limit) -> None:
        await limited(store, limit)
        await warm(store)
        jobs = [keyed("acme") for _ in range(20)]
        await enqueue(store, *jobs)

        await asyncio.gather(*(store.limits.admit(100, everywhere=n % 2 == 0, now=T0) for n in range(8)))

        assert len(await ready(store, jobs)) == 2
        assert await store.queries.check_places() == []


class LimitFeedbackSuite:
    """A service that asks one job to wait holds the others with its key."""

    FED = Limit("calls", 3, per=timedelta(seconds=1), feedback=True)

    async def test_nothing_starts_with_the_key_until_the_service_may_be_called_again(self, store: Store) -> None:
        await limited(store, self.FED)
        jobs = [keyed("acme"), *(keyed(key) for key in ("acme", "acme", "acme", "zeta"))]
        await enqueue(store, *jobs)
        await admit(store)
        (first,) = await claim(store, limit=1)

        await store.limits.hold({first.job_id: timedelta(minutes=2)}, now=at(1))
        assert await ready(store, jobs) == [4], "what was ready is blocked again"
        await complete(store, first, now=at(1))
        admission = await store.limits.admit(100, everywhere=True, now=at(100))
        assert await ready(store, jobs) == [4] and admission.wait == timedelta(seconds=21)
        (record,) = await store.limits.all(now=at(100))
        assert record.keys[0] == KeyUse("acme", 0, 3, at(121))

        await admit(store, now=at(121))
        assert await ready(store, jobs) == [1, 2, 3, 4]
        assert await store.queries.check_places() == []

    async def test_the_longest_wait_holds_until_the_limit_is_reset(self, store: Store) -> None:
        await limited(store, self.FED)
        jobs = [keyed("acme") for _ in range(2)]
        await enqueue(store, *jobs)
        await admit(store)
        (first,) = await claim(store, limit=1)
        await store.limits.hold({first.job_id: timedelta(minutes=2)}, now=T0)
        await store.limits.hold({first.job_id: timedelta(minutes=1)}, now=T0)
        await store.limits.choose("calls", 2)
        await admit(store, now=at(61), everywhere=True)
        assert await ready(store, jobs) == []

        await store.limits.choose("calls", None)
        await admit(store, now=at(62), everywhere=True)
        assert await ready(store, jobs) == [1]

    async def test_a_limit_without_feedback_and_a_job_that_is_gone_hold_nothing(self, store: Store) -> None:
        await limited(store, TWO_A_MINUTE)
        jobs = [keyed("acme") for _ in range(2)]
        await enqueue(store, *jobs)
        await admit(store)

        await store.limits.hold({jobs[0].id: timedelta(minutes=2), new_job().id: timedelta(minutes=2)}, now=T0)

        assert await ready(store, jobs) == [0, 1]
        assert [one.held_until for one in (await store.limits.all(now=T0))[0].keys] == [None]

    async def test_a_limit_that_has_no_feedback_any_more_holds_nothing(self, store: Store) -> None:
        await limited(store, self.FED)
        job = keyed("acme")
        await enqueue(store, job)
        await admit(store)
        await store.limits.hold({job.id: timedelta(minutes=2)}, now=T0)

        await limited(store, Limit("calls", 3, per=timedelta(seconds=1)))
        await admit(store, everywhere=True)

        assert await ready(store, [job]) == [0]
