"""Which of the jobs that wait for a half-open breaker are let out to find out, and which breakers are forgotten."""

import asyncio
import os
import socket
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

import pytest

from dutiful.acting import PauseScope
from dutiful.core.breaker import BreakerPolicy, BreakerState, Sign
from dutiful.core.transitions import State
from dutiful.duties import WorkerRecord
from dutiful.store import Store
from dutiful.testing.store_suite.breaker_gate import declare, ready, sweep
from dutiful.testing.store_suite.breaking import MAIL, call, let_in, of_name, trip
from dutiful.testing.store_suite.builders import ADA, KIND, T0, at, enqueue_one, pause, start_one, state, states

WEEK = timedelta(days=7)


async def serve(
    store: Store,
    kinds: Collection[str] = (KIND,),
    now: datetime = T0,
    ttl: timedelta = timedelta(days=1),
    **lanes: Any,
) -> None:
    """Say that a worker of this process lives with these lanes: their queues, or all about them."""
    its = {name: {"slots": 1, **(lane if isinstance(lane, dict) else {"queues": lane})} for name, lane in lanes.items()}
    worker = WorkerRecord(
        id=ADA, name="ada", host=socket.gethostname(), pid=os.getpid(), started_at=T0, seen_at=T0, lanes=its,
        kinds=[*kinds],
    )  # fmt: skip
    await store.beat(worker, ttl, now=now)


class BreakerProbeSuite:
    async def test_what_no_worker_would_take_is_no_probe(self, store: Store) -> None:
        await declare(store, KIND, "gone")
        await trip(store)
        await serve(store, fast=["mail"], slow=["batch"], ours={"queues": ["tenants"], "tenants": ["acme"]})
        await pause(store, PauseScope.LANE, "slow")
        unserved = [
            await enqueue_one(store, kind=kind, queue=queue, tenant=tenant)
            for kind, queue, tenant in (
                ("gone", "mail", None),
                (KIND, "nobody's", None),
                (KIND, "batch", None),
                (KIND, "tenants", None),
                (KIND, "tenants", "other"),
            )
        ]
        served = await enqueue_one(store, queue="mail", now=at(1))
        assert (await sweep(store, 60)).moved == 1
        assert await state(store, served) is State.READY
        await store.cancel(served, "no use", now=at(61))

        its_tenants = await enqueue_one(store, queue="tenants", tenant="acme", now=at(61))
        await sweep(store, 62)

        assert await state(store, its_tenants) is State.READY
        assert await states(store, unserved) == [State.BLOCKED] * 5
        assert await store.check_places() == []

    async def test_any_queue_may_be_served(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        await serve(store, general=["*"])
        job = await enqueue_one(store, queue="whichever")

        await sweep(store, 60)

        assert await state(store, job) is State.READY

    @pytest.mark.parametrize("tenants", [["acme", "globex"], []], ids=["some tenants", "anybody"])
    async def test_who_is_the_first_in_line_probes_first_whosever_it_is(self, store: Store, tenants: list[str]) -> None:
        await declare(store)
        await trip(store)
        await serve(store, ours={"queues": ["default"], "tenants": tenants})
        late = await enqueue_one(store, tenant="acme", run_at=at(50))
        first = await enqueue_one(store, tenant="acme", now=at(10))
        second = await enqueue_one(store, tenant="globex", now=at(20))
        idle = await enqueue_one(store, tenant="acme", priority=500, now=T0)
        urgent = await enqueue_one(store, tenant="globex", priority=5, now=at(30))
        soon = await enqueue_one(store, tenant="acme", priority=5, run_at=at(900), now=at(30))
        jobs = [late, first, second, idle, urgent, soon]

        for let_out in (urgent, first, second, late, idle):
            await store.let_out(10, now=at(60))
            assert await ready(store, jobs) == [let_out]
            await store.cancel(let_out, "no use", now=at(60))

    async def test_of_queues_that_had_no_turn_the_one_with_the_most_urgent_job_is_first(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        plain = await enqueue_one(store, queue="backlog")
        urgent = await enqueue_one(store, queue="urgent", priority=5)

        await store.let_out(10, now=at(60))

        assert await ready(store, [plain, urgent]) == [urgent]

    async def test_many_that_are_half_open_at_once_each_let_one_out(self, store: Store) -> None:
        names = {f"kind {n}": f"breaker {n}" for n in range(40)}
        await store.put_breaker_kinds(names, now=T0)
        for name in names.values():
            await store.force_breaker(name, timedelta(seconds=60), now=T0)
        jobs = {kind: [await enqueue_one(store, kind=kind) for _ in range(2)] for kind in names}
        await store.reset_breaker("breaker 7", now=T0)

        assert (await sweep(store, 60)).moved == 41

        assert [len(await ready(store, its)) for its in jobs.values()] == [2 if n == 7 else 1 for n in range(40)]
        assert {one.breaker.state for one in await store.breakers(now=at(60)) if one.breaker.name != "breaker 7"} == {
            BreakerState.HALF_OPEN
        }
        assert await store.check_places() == []

    async def test_a_probe_whose_worker_is_gone_goes_back_and_another_one_comes(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        await serve(store, fast=["mail"], slow=["batch"])
        first, second = await enqueue_one(store, queue="batch"), await enqueue_one(store, queue="mail", now=at(1))
        await sweep(store, 60)
        assert await ready(store, [first, second]) == [first]

        await serve(store, fast=["mail"])
        await sweep(store, 61)

        assert await states(store, [first, second]) == [State.BLOCKED, State.READY]
        assert await store.check_places() == []
        await serve(store, slow=["batch"])
        await sweep(store, 62)
        assert await states(store, [first, second]) == [State.READY, State.BLOCKED]

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

    async def test_what_was_long_half_open_lets_no_crowd_out(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        await sweep(store, 60)
        jobs = [await enqueue_one(store, now=at(3600)) for _ in range(5)]

        for second in range(4):
            await sweep(store, 3600 + second)

        assert len(await ready(store, jobs)) == 1

    async def test_probes_are_let_out_without_a_sweep(self, store: Store) -> None:
        await declare(store)
        await trip(store)
        job = await enqueue_one(store)
        assert (await store.let_out(10, now=at(59))).moved == 0

        let_out = await store.let_out(10, now=at(60))

        assert (let_out.moved, let_out.lines) == (1, frozenset({("default", 100)}))
        assert await state(store, job) is State.READY

    async def test_late_jobs_leave_the_lines_of_a_pause_that_is_long_known(self, store: Store) -> None:
        await declare(store)
        late = [await enqueue_one(store) for _ in range(3)]
        await store.force_breaker(MAIL, timedelta(days=1), now=T0)
        for second in (1, 2, 90, 91):
            await sweep(store, second, limit=1)

        assert await states(store, late) == [State.BLOCKED] * 3
        await store.force_breaker(MAIL, timedelta(seconds=1), now=at(100))
        await sweep(store, 110)
        assert len(await ready(store, late)) == 1
        await store.force_breaker(MAIL, timedelta(days=1), now=at(111))
        await sweep(store, 200)
        assert await states(store, late) == [State.BLOCKED] * 3

    async def test_forced_by_somebody_who_knows_the_code_it_has_the_policy_declared_there(self, store: Store) -> None:
        policy = BreakerPolicy(failures=9, open_for=timedelta(minutes=10))

        forced = await store.force_breaker(MAIL, None, policy, now=T0)

        assert (forced.open_until, forced.policy) == (at(600), policy)
        assert await of_name(store) == forced

    async def test_what_nobody_declares_or_uses_is_forgotten(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, open_for=timedelta(seconds=60))
        await declare(store)
        caller = await start_one(store)
        for name in ("closed", "reset", "over", "half-open", "open", "fresh"):
            await call(store, caller, Sign.BAD, name=name, policy=BreakerPolicy() if name == "closed" else policy)
        await store.reset_breaker("reset", now=T0)
        await store.force_breaker("open", timedelta(days=9), now=T0)
        await let_in(store, await start_one(store, now=at(60)), name="half-open", policy=policy, now=at(60))
        later = T0 + WEEK + timedelta(hours=1)
        await store.force_breaker("fresh", timedelta(seconds=1), now=later - WEEK)

        while await store.tidy(WEEK, 2, now=later):
            pass

        # The probe has not left, and its claim is still there.
        found = [record.breaker.name for record in await store.breakers(now=later)]
        assert found == [MAIL, "fresh", "half-open", "open"]

    async def test_a_long_list_is_told_whole(self, store: Store) -> None:
        await declare(store, KIND, "other")
        policies = {f"host {n:03}": BreakerPolicy(failures=n + 1) for n in range(300)}
        await store.put_breaker_kinds({}, policies, now=T0)
        await trip(store)
        await asyncio.gather(*(enqueue_one(store, kind=kind) for kind in (KIND, "other")))

        first, *others = await store.breakers(now=T0)

        assert (first.breaker.name, first.kinds, first.waiting) == (MAIL, [KIND, "other"], 2)
        assert {one.breaker.name: one.breaker.policy for one in others} == policies
