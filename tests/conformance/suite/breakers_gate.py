"""The gate of a breaker that a kind declares: its jobs are blocked while it is open."""

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from dutiful.core.breaker.state import BreakerPolicy, BreakerState, CallResult
from dutiful.core.job import Scope, Unique
from dutiful.core.outcome import Failed, Snoozed
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.control import PauseScope
from dutiful.store.promotion import Promotion
from suite.breakers import MAIL, admit, call, of_name, trip
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
    crash,
    enqueue,
    enqueue_one,
    new_job,
    pause,
    rescue,
    settle,
    start_one,
    state,
    states,
    warm,
)

ONE = BreakerPolicy(failures=1)
TTL = timedelta(seconds=15)


async def declare(store: Store, *kinds: str) -> None:
    await store.breakers.put_kinds(dict.fromkeys(kinds or (KIND,), MAIL), now=T0)


async def sweep(store: Store, seconds: float, *, limit: int = 100) -> Promotion:
    return await store.promotion.sweep(limit, now=at(seconds))


async def ready(store: Store, jobs: list[UUID]) -> list[UUID]:
    return [job for job in jobs if await state(store, job) is State.READY]


@pytest.mark.req("L57", "L58")
class BreakerGateSuite:
    async def test_breakers_are_listed_with_the_kinds_that_declare_them(self, store: Store) -> None:
        await store.breakers.put_kinds({"b": MAIL, "a": MAIL, "c": None, "d": "maps"}, now=T0)

        found = {record.breaker.name: record.kinds for record in await store.breakers.all(now=T0)}

        assert found == {MAIL: ["a", "b"], "maps": ["d"]}

    async def test_declarations_of_another_app_are_left_unchanged(self, store: Store) -> None:
        await store.breakers.put_kinds({"theirs": MAIL, "ours": "old"}, now=T0)

        await store.breakers.put_kinds({"ours": "new"}, now=T0)
        await store.breakers.put_kinds({}, now=T0)

        found = {record.breaker.name: record.kinds for record in await store.breakers.all(now=T0)}
        assert found == {MAIL: ["theirs"], "new": ["ours"], "old": []}

    async def test_a_policy_is_declared_without_a_call(self, store: Store) -> None:
        await store.breakers.put_kinds({KIND: MAIL}, now=T0)
        assert (await of_name(store)).policy == BreakerPolicy()

        await store.breakers.put_kinds({KIND: MAIL}, {MAIL: ONE}, now=T0)
        await store.breakers.put_kinds({KIND: MAIL}, now=T0)

        assert (await of_name(store)).policy == ONE

    async def test_jobs_are_blocked_however_they_become_due(self, store: Store) -> None:
        await declare(store)
        retried, snoozed, given_back = [await start_one(store) for _ in range(3)]
        scheduled, run_at_once = [await enqueue_one(store, delay=timedelta(seconds=5)) for _ in range(2)]
        await trip(store)

        plain = await enqueue_one(store)
        keyed = await enqueue_one(store, unique=Unique("k", Scope.ACTIVE))
        await settle(store, retried, Failed(OOPS))
        await settle(store, snoozed, Snoozed(timedelta(0)))
        assert await store.control.run_now(run_at_once, now=at(1)) is State.BLOCKED
        await store.promotion.promote(10, now=at(6))

        waiting = [plain, keyed, retried.job_id, snoozed.job_id, run_at_once, scheduled]
        assert await states(store, waiting) == [State.BLOCKED] * 6
        record = await store.queries.job(plain)
        assert record is not None
        assert (record.gate, record.gate_key) == ("paused", KIND)
        assert await state(store, given_back.job_id) is State.RUNNING
        (breaker,) = await store.breakers.all(now=at(6))
        assert breaker.waiting == 6
        assert await store.queries.check_places() == []

    async def test_no_job_of_the_kind_is_claimed_while_the_breaker_is_open(self, store: Store) -> None:
        await declare(store)
        await enqueue(store, job := new_job(), other := new_job(kind="other"))
        await trip(store)

        assert [c.job_id for c in await claim(store, kinds=[KIND, "other"])] == [other.id]
        assert (await sweep(store, 1)).levels == frozenset()
        assert await state(store, job.id) is State.BLOCKED
        assert await store.claims.peek([KIND]) == []

    async def test_all_blocked_jobs_are_released_when_the_breaker_closes(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        jobs = [await enqueue_one(store) for _ in range(3)]
        assert (await sweep(store, 1)).moved == 0

        await store.breakers.reset(MAIL, now=at(2))
        swept = await sweep(store, 2)

        assert (swept.moved, swept.levels) == (3, frozenset({(DEFAULT.queue, DEFAULT.priority)}))
        assert [c.job_id for c in await claim(store, now=at(2))] == jobs
        assert await store.queries.check_places() == []

    async def test_a_sweep_half_opens_the_breaker_and_releases_the_oldest_job_to_probe(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        first, second = await enqueue_one(store), await enqueue_one(store, now=at(1))
        assert (await sweep(store, 59)).moved == 0

        swept = await sweep(store, 60)

        assert (swept.moved, swept.levels) == (1, frozenset({(DEFAULT.queue, DEFAULT.priority)}))
        assert (await of_name(store)).state is BreakerState.HALF_OPEN
        third = await enqueue_one(store, now=at(61))
        assert (await sweep(store, 61)).moved == 0
        assert await states(store, [first, second, third]) == [State.READY, State.BLOCKED, State.BLOCKED]
        probe = await claim_one(store, now=at(61))
        assert (probe.job_id, probe.attempt) == (first, 1)
        assert await store.queries.check_places() == []

    async def test_a_successful_probe_releases_the_others_and_a_failed_one_none(self, store: Store) -> None:
        await declare(store)
        await trip(store, policy=ONE)
        jobs = [await enqueue_one(store) for _ in range(3)]
        await sweep(store, 60)
        probe = await claim_one(store, now=at(60))
        await call(store, probe, CallResult.BAD, policy=ONE, now=at(61))
        assert (await sweep(store, 62)).moved == 0

        await sweep(store, 121)
        probe = await claim_one(store, now=at(121))
        await call(store, probe, CallResult.GOOD, policy=ONE, now=at(122))
        await sweep(store, 122)

        assert await ready(store, jobs) == jobs[2:]

    async def test_released_jobs_are_blocked_again_when_the_breaker_opens_again(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        job = await enqueue_one(store)
        await sweep(store, 60)

        await store.breakers.open(MAIL, None, now=at(61))
        assert await claim(store, now=at(61)) == []
        await sweep(store, 61)

        assert await state(store, job) is State.BLOCKED
        assert await store.queries.check_places() == []

    async def test_no_second_job_is_released_while_the_first_waits_runs_or_probes(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        first, second = [await enqueue_one(store) for _ in range(2)]
        await sweep(store, 60)
        assert (await sweep(store, 61)).moved == 0
        probe = await claim_one(store, now=at(62))
        assert (await sweep(store, 62)).moved == 0
        await admit(store, probe, now=at(63))
        assert (await sweep(store, 63)).moved == 0

        await call(store, probe, CallResult.UNCLEAR, now=at(64))

        assert (await sweep(store, 64)).moved == 1
        assert await ready(store, [first, second]) == [second]

    async def test_a_probe_lost_with_its_worker_is_replaced_by_a_sweep(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        first, second = [await enqueue_one(store) for _ in range(2)]
        await sweep(store, 60)
        await admit(store, await claim_one(store, now=at(60)), now=at(60))

        await sweep(store, 60 + EXPIRED)

        assert await ready(store, [first, second]) == [second]
        assert await rescue(store, now=at(60 + EXPIRED)) == []
        assert await state(store, first) is State.BLOCKED
        assert await store.queries.check_places() == []

    async def test_a_probe_cancelled_while_it_waits_is_replaced_by_a_sweep(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        first, second = [await enqueue_one(store) for _ in range(2)]
        await sweep(store, 60)
        await store.control.cancel(first, "no use", now=at(61))

        await sweep(store, 61)

        assert await state(store, second) is State.READY

    async def test_as_many_jobs_as_probes_are_released_across_kinds(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=3)
        await declare(store, KIND, "other")
        await trip(store, policy=policy)
        jobs = [await enqueue_one(store, kind=kind, now=at(n)) for n, kind in enumerate([KIND, "other"] * 3)]

        assert (await sweep(store, 60, limit=2)).moved == 2
        assert (await sweep(store, 60)).moved == 1

        assert len(await ready(store, jobs)) == 3
        assert await ready(store, jobs[:2]) == jobs[:2]

    async def test_concurrent_sweeps_release_no_more_jobs(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        await sweep(store, 60)
        jobs = [await enqueue_one(store, now=at(60)) for _ in range(5)]
        await warm(store)

        await asyncio.gather(*(sweep(store, 60) for _ in range(6)))

        assert len(await ready(store, jobs)) == 1

    async def test_a_job_that_is_not_due_is_not_released_to_probe(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        later = await enqueue_one(store, run_at=at(300))
        due = await enqueue_one(store, now=at(1))

        await sweep(store, 60)

        assert await states(store, [later, due]) == [State.BLOCKED, State.READY]

    async def test_a_pause_holds_independently_of_the_breaker(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        await pause(store, PauseScope.KIND, KIND)
        job = await enqueue_one(store)
        assert [(p.scope, p.name) for p in await store.control.pauses()] == [(PauseScope.KIND, KIND)]

        await sweep(store, 60)
        assert await state(store, job) is State.BLOCKED
        await store.breakers.reset(MAIL, now=at(61))
        await sweep(store, 61)
        assert await state(store, job) is State.BLOCKED
        await store.control.resume(PauseScope.KIND, KIND)
        await sweep(store, 62)
        assert await state(store, job) is State.READY

    async def test_the_breaker_holds_when_a_pause_is_resumed(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        await pause(store, PauseScope.KIND, KIND)
        job = await enqueue_one(store)

        await store.control.resume(PauseScope.KIND, KIND)
        await sweep(store, 1)

        assert await state(store, job) is State.BLOCKED
        assert await store.control.pauses() == []

    async def test_a_job_of_a_paused_queue_is_not_released_to_probe(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        held, free = await enqueue_one(store, queue="held"), await enqueue_one(store, now=at(1))
        await pause(store, PauseScope.QUEUE, "held")

        await sweep(store, 60)

        assert await states(store, [held, free]) == [State.BLOCKED, State.READY]

    async def test_a_probe_that_no_worker_claims_does_not_block_the_others_for_ever(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        lonely, other = await enqueue_one(store, queue="unserved"), await enqueue_one(store, now=at(1))
        await sweep(store, 60)
        assert (await sweep(store, 119)).moved == 0

        await sweep(store, 120)

        assert await ready(store, [lonely, other]) == [lonely, other]

    async def test_a_kind_may_declare_a_breaker_that_is_open(self, store: Store) -> None:
        await trip(store)
        job = await enqueue_one(store)

        await declare(store)

        assert await claim(store, now=at(1)) == []
        await sweep(store, 1)
        assert await state(store, job) is State.BLOCKED
        await declare(store)  # as every worker does when it starts
        await sweep(store, 60)
        assert await state(store, job) is State.READY

    async def test_a_kind_may_declare_another_breaker_or_none(self, store: Store) -> None:
        await declare(store, KIND, "other")
        await trip(store)
        job, other = await enqueue_one(store), await enqueue_one(store, kind="other")

        await store.breakers.put_kinds({KIND: "maps", "other": None}, now=at(1))
        await sweep(store, 1)

        assert await states(store, [job, other]) == [State.READY] * 2

    async def test_a_dependent_job_waits_for_its_dependency_and_the_breaker(self, store: Store) -> None:
        await declare(store)
        need = await start_one(store, kind="other")
        job = await enqueue_one(store, depends_on=(need.job_id,))
        await trip(store)
        await complete(store, need)
        for _ in range(2):
            await sweep(store, 1)
        assert await state(store, job) is State.BLOCKED

        await store.breakers.reset(MAIL, now=at(2))
        for _ in range(2):
            await sweep(store, 2)
        assert await state(store, job) is State.READY

    async def test_a_survey_shows_that_the_time_of_a_breaker_is_over(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        await sweep(store, 1)

        assert (await store.leadership.survey(ADA, TTL, now=at(60))).blocked
        await sweep(store, 60)

        assert (await of_name(store)).state is BreakerState.HALF_OPEN
        assert not (await store.leadership.survey(ADA, TTL, now=at(61))).blocked

    async def test_a_call_of_another_kind_counts_as_a_probe(self, store: Store) -> None:
        await declare(store)
        await trip(store, policy=ONE)
        job = await enqueue_one(store)
        caller = await start_one(store, kind="caller", queue="callers", now=at(60))

        await admit(store, caller, policy=ONE, now=at(60))
        assert (await sweep(store, 60)).moved == 0
        await call(store, caller, CallResult.GOOD, policy=ONE, now=at(61))
        await sweep(store, 61)

        assert await state(store, job) is State.READY

    async def test_a_crash_while_the_breaker_is_open_leaves_every_job_in_one_place(self, store: Store) -> None:
        await declare(store)
        running = await start_one(store)
        await trip(store)
        waiting = await enqueue_one(store)

        later = await crash(store)

        assert await states(store, [running.job_id, waiting]) == [State.BLOCKED] * 2
        await store.breakers.reset(MAIL, now=later)
        await store.promotion.sweep(10, now=later + timedelta(minutes=5))
        assert await states(store, [running.job_id, waiting]) == [State.READY] * 2
        assert await store.queries.check_places() == []
