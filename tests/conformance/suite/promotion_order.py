"""A blocked job keeps its position in its queue."""

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from dutiful.core.breaker.state import BreakerPolicy
from dutiful.core.outcome import Failed, Released
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.control import PauseScope
from suite.breakers import MAIL, trip
from suite.breakers_gate import declare
from suite.builders import (
    BACKOFF,
    KIND,
    OOPS,
    T0,
    at,
    claim,
    complete,
    enqueue_one,
    pause,
    settle,
    start_one,
    state,
    states,
)

KINDS = [KIND, "other"]


async def claim_order(store: Store, now: datetime) -> list[UUID]:
    return [claimed.job_id for claimed in await claim(store, kinds=KINDS, now=now)]


class PromotionOrderSuite:
    @pytest.mark.parametrize("reached", [1, 10], ids=["some were blocked", "all were blocked"])
    async def test_jobs_come_back_from_a_pause_to_their_places(self, store: Store, reached: int) -> None:
        kinds = [KIND, "other", KIND, "other", KIND]
        jobs = [await enqueue_one(store, kind=kind, now=at(n)) for n, kind in enumerate(kinds)]
        await pause(store, PauseScope.KIND, KIND, now=at(5))
        await store.promotion.sweep(reached, now=at(6))
        jobs += [await enqueue_one(store, kind=kind, now=at(7 + n / 10)) for n, kind in enumerate(kinds)]
        await store.control.resume(PauseScope.KIND, KIND)

        await store.promotion.sweep(10, now=at(8))

        assert await claim_order(store, at(8)) == jobs
        assert await store.queries.check_places() == []

    async def test_blocked_jobs_are_released_in_the_order_of_their_places(self, store: Store) -> None:
        first = [await enqueue_one(store, now=at(seconds)) for seconds in (-2, -1)]
        await pause(store, PauseScope.KIND, KIND, now=at(1))
        await pause(store, PauseScope.KIND, "other", now=at(1))
        later = [await enqueue_one(store, kind=kind, now=at(2 + n)) for n, kind in enumerate(["other", KIND])]
        await store.promotion.sweep(10, now=at(3))
        for kind in KINDS:
            await store.control.resume(PauseScope.KIND, kind)

        for out in (1, 2, 3, 4):
            await store.promotion.unblock(1, now=at(4))
            assert await states(store, first + later) == [State.READY] * out + [State.BLOCKED] * (4 - out)

    async def test_jobs_come_back_from_an_open_breaker_to_their_places(self, store: Store) -> None:
        await declare(store)
        stood = [await enqueue_one(store, kind=kind, now=at(n - 2)) for n, kind in enumerate(KINDS)]
        await trip(store, policy=BreakerPolicy(failures=1, probes=2))
        came = [await enqueue_one(store, kind=kind, now=at(1 + n / 10)) for n, kind in enumerate([*KINDS, KIND])]
        await store.promotion.sweep(10, now=at(2))
        await store.promotion.sweep(10, now=at(60))
        assert await states(store, [stood[0], came[0]]) == [State.READY] * 2, "they probe"
        await store.breakers.open(MAIL, None, now=at(61))
        await store.promotion.sweep(10, now=at(62))
        await store.breakers.reset(MAIL, now=at(63))

        await store.promotion.sweep(10, now=at(64))

        assert await claim_order(store, at(64)) == stood + came

    async def test_a_job_that_becomes_due_while_blocked_has_its_place_from_then_on(self, store: Store) -> None:
        delayed, promoted = [await enqueue_one(store, run_at=at(seconds)) for seconds in (10, 20)]
        await pause(store, PauseScope.KIND, KIND)
        at_the_gate = await enqueue_one(store, run_at=at(30))
        far = await enqueue_one(store, run_at=at(900))
        retried = await start_one(store, kind="other")
        await pause(store, PauseScope.KIND, "other")
        await settle(store, retried, Failed(OOPS), now=at(40) - BACKOFF)
        await store.control.resume(PauseScope.KIND, "other")
        await store.promotion.sweep(10, now=at(5))
        others = []
        for seconds in (5, 15, 25, 35, 45):
            await store.promotion.promote(10, now=at(seconds))
            await store.promotion.unblock(10, now=at(seconds))
            others.append(await enqueue_one(store, kind="other", now=at(seconds)))
        await store.control.resume(PauseScope.KIND, KIND)

        await store.promotion.sweep(10, now=at(50))

        due = [delayed, promoted, at_the_gate, retried.job_id]
        assert await claim_order(store, at(50)) == [
            others[0], due[0], others[1], due[1], others[2], due[2], others[3], due[3], others[4]
        ]  # fmt: skip
        assert await state(store, far) is State.SCHEDULED

    async def test_a_job_released_while_its_kind_is_paused_keeps_its_place(self, store: Store) -> None:
        released = await start_one(store)
        other = await enqueue_one(store, kind="other", now=at(0.5))
        await pause(store, PauseScope.KIND, KIND)
        assert await settle(store, released, Released(), now=at(1)) == []
        assert await state(store, released.job_id) is State.BLOCKED
        await store.control.resume(PauseScope.KIND, KIND)

        await store.promotion.sweep(10, now=at(2))

        assert await claim_order(store, at(2)) == [released.job_id, other]

    async def test_a_dependent_job_has_its_place_from_the_end_of_its_dependencies(self, store: Store) -> None:
        need = await start_one(store, queue="slow")
        dependent = await enqueue_one(store, depends_on=(need.job_id,))
        both = await enqueue_one(store, kind="other", depends_on=(need.job_id,))
        before = await enqueue_one(store)
        await pause(store, PauseScope.KIND, "other")
        await complete(store, need, now=at(1))
        for _ in range(2):
            await store.promotion.sweep(10, now=at(1))
        after = await enqueue_one(store, now=at(2))
        await store.control.resume(PauseScope.KIND, "other")

        for _ in range(2):
            await store.promotion.sweep(10, now=at(3))

        assert set((await claim_order(store, at(3)))[1:3]) == {dependent, both}
        assert await state(store, before) is await state(store, after) is State.RUNNING

    async def test_the_oldest_ready_time_counts_the_time_of_a_pause(self, store: Store) -> None:
        await pause(store, PauseScope.KIND, KIND)
        await enqueue_one(store)
        await enqueue_one(store, kind="other", now=at(3600))
        await store.control.resume(PauseScope.KIND, KIND)

        await store.promotion.sweep(10, now=at(3660))

        assert (await store.queries.stats(timedelta(hours=1), now=at(3660))).oldest_ready_at == T0
