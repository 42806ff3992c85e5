"""Which of the jobs behind a half-open breaker are released to probe, and which breakers are forgotten."""

import asyncio
from datetime import timedelta

import pytest

from dutiful.core.breaker.state import BreakerPolicy, BreakerState, CallResult
from dutiful.core.outcome import Released
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.control import PauseScope
from dutiful.store.retention import KEEP_UNUSED
from dutiful.store.workers import LaneRecord
from suite.breakers import MAIL, admit, call, of_name, trip
from suite.breakers_gate import declare, ready, sweep
from suite.builders import KIND, T0, at, enqueue_one, pause, renewing, settle, start_one, state, states
from suite.workers import serve

WEEK = timedelta(days=7)


@pytest.mark.req("L57", "L58")
class BreakerProbeSuite:
    async def test_a_job_that_no_worker_serves_is_not_released_to_probe(self, store: Store) -> None:
        await declare(store, KIND, "gone")
        await trip(store)
        await serve(
            store, fast=["mail"], slow=["batch"], ours=LaneRecord(slots=1, queues=("tenants",), tenants=("acme",))
        )
        await pause(store, PauseScope.LANE, "slow")
        unserved = [
            await enqueue_one(store, kind=kind, queue=queue, tenant=tenant)
            for kind, queue, tenant in (
                ("gone", "mail", None),
                (KIND, "unserved", None),
                (KIND, "batch", None),
                (KIND, "tenants", None),
                (KIND, "tenants", "other"),
            )
        ]
        served = await enqueue_one(store, queue="mail", now=at(1))
        assert (await sweep(store, 60)).moved == 1
        assert await state(store, served) is State.READY
        await store.control.cancel(served, "no use", now=at(61))

        its_tenants = await enqueue_one(store, queue="tenants", tenant="acme", now=at(61))
        await sweep(store, 62)

        assert await state(store, its_tenants) is State.READY
        assert await states(store, unserved) == [State.BLOCKED] * 5
        assert await store.queries.check_places() == []

    async def test_any_queue_may_be_served(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        await serve(store, general=["*"])
        job = await enqueue_one(store, queue="any")

        await sweep(store, 60)

        assert await state(store, job) is State.READY

    @pytest.mark.parametrize("tenants", [["acme", "globex"], []], ids=["some tenants", "all tenants"])
    async def test_the_first_job_in_line_probes_first_in_any_tenant(self, store: Store, tenants: list[str]) -> None:
        await declare(store)
        await trip(store)
        await serve(store, ours=LaneRecord(slots=1, queues=("default",), tenants=tuple(tenants)))
        late = await enqueue_one(store, tenant="acme", run_at=at(50))
        first = await enqueue_one(store, tenant="acme", now=at(10))
        second = await enqueue_one(store, tenant="globex", now=at(20))
        idle = await enqueue_one(store, tenant="acme", priority=500, now=T0)
        urgent = await enqueue_one(store, tenant="globex", priority=5, now=at(30))
        soon = await enqueue_one(store, tenant="acme", priority=5, run_at=at(900), now=at(30))
        jobs = [late, first, second, idle, urgent, soon]

        for admitted in (urgent, first, second, late, idle):
            await store.promotion.unblock(10, now=at(60))
            assert await ready(store, jobs) == [admitted]
            await store.control.cancel(admitted, "no use", now=at(60))

    async def test_among_new_queues_the_one_with_the_most_urgent_job_is_first(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        plain = await enqueue_one(store, queue="backlog")
        urgent = await enqueue_one(store, queue="urgent", priority=5)

        await store.promotion.unblock(10, now=at(60))

        assert await ready(store, [plain, urgent]) == [urgent]

    async def test_each_of_many_half_open_breakers_releases_one_job(self, store: Store) -> None:
        names = {f"kind {n}": f"breaker {n}" for n in range(40)}
        await store.breakers.put_kinds(names, now=T0)
        for name in names.values():
            await store.breakers.open(name, timedelta(seconds=60), now=T0)
        jobs = {kind: [await enqueue_one(store, kind=kind) for _ in range(2)] for kind in names}
        await store.breakers.reset("breaker 7", now=T0)

        assert (await sweep(store, 60)).moved == 41

        assert [len(await ready(store, its)) for its in jobs.values()] == [2 if n == 7 else 1 for n in range(40)]
        assert {
            one.breaker.state for one in await store.breakers.all(now=at(60)) if one.breaker.name != "breaker 7"
        } == {BreakerState.HALF_OPEN}
        assert await store.queries.check_places() == []

    async def test_a_probe_whose_worker_is_gone_is_blocked_again_and_replaced(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        await serve(store, fast=["mail"], slow=["batch"])
        first, second = await enqueue_one(store, queue="batch"), await enqueue_one(store, queue="mail", now=at(1))
        await sweep(store, 60)
        assert await ready(store, [first, second]) == [first]

        await serve(store, fast=["mail"])
        await sweep(store, 61)

        assert await states(store, [first, second]) == [State.BLOCKED, State.READY]
        assert await store.queries.check_places() == []
        await serve(store, slow=["batch"])
        await sweep(store, 62)
        assert await states(store, [first, second]) == [State.READY, State.BLOCKED]

    @pytest.mark.parametrize("by", ["worker", "renewer"])
    @pytest.mark.parametrize("kinds", [[KIND, "caller"], [KIND]], ids=["served", "unserved"])
    async def test_a_call_whose_claim_was_given_back_keeps_no_job_from_probing(
        self, store: Store, by: str, kinds: list[str]
    ) -> None:
        two = BreakerPolicy(failures=2, open_for=timedelta(seconds=60), probes=2)
        await declare(store)
        await trip(store, policy=two)
        await serve(store, kinds, general=["*"])
        waiting = await enqueue_one(store, now=at(59))
        callers = [await start_one(store, kind="caller", queue="callers", now=at(59)) for _ in range(2)]
        assert [(await admit(store, caller, policy=two, now=at(60))).probe for caller in callers] == [True, True]

        if by == "worker":
            assert await settle(store, callers[0], Released(), now=at(60)) == []
        else:
            async with renewing(store) as renewer:
                await renewer.release(callers[0])
        await sweep(store, 60)

        assert await states(store, [callers[0].job_id, waiting]) == [State.READY, State.READY]
        assert await store.queries.check_places() == []

    async def test_each_kind_and_queue_has_its_turn(self, store: Store) -> None:
        await declare(store, KIND, "other")
        await trip(store)
        await serve(store, [KIND, "other"], general=["*"])
        crowd = [await enqueue_one(store, queue="crowd") for _ in range(10)]
        few = [
            await enqueue_one(store, kind=kind, queue=queue, now=at(1))
            for kind, queue in ((KIND, "aside"), ("other", "crowd"))
        ]

        for turn in range(3):
            await sweep(store, 60 * (turn + 1))

        assert len(await ready(store, crowd)) == 1
        assert await ready(store, few) == few

    async def test_a_breaker_that_was_half_open_for_long_releases_no_crowd(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        await sweep(store, 60)
        jobs = [await enqueue_one(store, now=at(3600)) for _ in range(5)]

        for second in range(4):
            await sweep(store, 3600 + second)

        assert len(await ready(store, jobs)) == 1

    async def test_probes_are_released_without_a_sweep(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        job = await enqueue_one(store)
        assert (await store.promotion.unblock(10, now=at(59))).moved == 0

        unblocked = await store.promotion.unblock(10, now=at(60))

        assert (unblocked.moved, unblocked.levels) == (1, frozenset({("default", 100)}))
        assert await state(store, job) is State.READY

    async def test_late_jobs_of_a_long_pause_are_blocked_too(self, store: Store) -> None:
        await declare(store)
        late = [await enqueue_one(store) for _ in range(3)]
        await store.breakers.open(MAIL, timedelta(days=1), now=T0)
        for second in (1, 2, 90, 91):
            await sweep(store, second, limit=1)

        assert await states(store, late) == [State.BLOCKED] * 3
        await store.breakers.open(MAIL, timedelta(seconds=1), now=at(100))
        await sweep(store, 110)
        assert len(await ready(store, late)) == 1
        await store.breakers.open(MAIL, timedelta(days=1), now=at(111))
        await sweep(store, 200)
        assert await states(store, late) == [State.BLOCKED] * 3

    async def test_forced_open_with_a_policy_the_breaker_keeps_that_policy(self, store: Store) -> None:
        policy = BreakerPolicy(failures=9, open_for=timedelta(minutes=10))

        opened = await store.breakers.open(MAIL, None, policy, now=T0)

        assert (opened.open_until, opened.policy) == (at(600), policy)
        assert await of_name(store) == opened

    async def test_breakers_that_are_neither_declared_nor_used_are_forgotten(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, open_for=timedelta(seconds=60))
        await declare(store)
        caller = await start_one(store)
        for name in ("closed", "reset", "over", "half-open", "open", "fresh"):
            await call(store, caller, CallResult.BAD, name=name, policy=BreakerPolicy() if name == "closed" else policy)
        await store.breakers.reset("reset", now=T0)
        await store.breakers.open("open", timedelta(days=40), now=T0)
        await admit(store, await start_one(store, now=at(60)), name="half-open", policy=policy, now=at(60))
        later = T0 + KEEP_UNUSED + timedelta(hours=1)
        await store.breakers.open("fresh", timedelta(seconds=1), now=later - KEEP_UNUSED)

        while await store.retention.delete_leftovers(WEEK, 2, now=later):
            pass

        # The probe of "half-open" has not ended, and its claim still exists.
        found = [record.breaker.name for record in await store.breakers.all(now=later)]
        assert found == [MAIL, "fresh", "half-open", "open"]

    async def test_a_long_list_is_complete(self, store: Store) -> None:
        await declare(store, KIND, "other")
        policies = {f"host {n:03}": BreakerPolicy(failures=n + 1) for n in range(300)}
        await store.breakers.put_kinds({}, policies, now=T0)
        await trip(store)
        await asyncio.gather(*(enqueue_one(store, kind=kind) for kind in (KIND, "other")))

        first, *others = await store.breakers.all(now=T0)

        assert (first.breaker.name, first.kinds, first.waiting) == (MAIL, [KIND, "other"], 2)
        assert {one.breaker.name: one.breaker.policy for one in others} == policies
