"""A job that waits before a gate keeps its place in line."""

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from dutiful.acting import PauseScope
from dutiful.core.breaker import BreakerPolicy
from dutiful.core.outcome import Failed, Released
from dutiful.core.transitions import State
from dutiful.store import Store
from dutiful.testing.store_suite.breaker_gate import declare
from dutiful.testing.store_suite.breaking import MAIL, trip
from dutiful.testing.store_suite.builders import (
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


async def in_line(store: Store, now: datetime) -> list[UUID]:
    return [claimed.job_id for claimed in await claim(store, kinds=KINDS, now=now)]


class GateOrderSuite:
    @pytest.mark.parametrize("reached", [1, 10], ids=["some were shut out", "all were shut out"])
    async def test_jobs_come_back_from_a_pause_to_their_places(self, store: Store, reached: int) -> None:
        kinds = [KIND, "other", KIND, "other", KIND]
        jobs = [await enqueue_one(store, kind=kind, now=at(n)) for n, kind in enumerate(kinds)]
        await pause(store, PauseScope.KIND, KIND, now=at(5))
        await store.sweep(reached, now=at(6))
        jobs += [await enqueue_one(store, kind=kind, now=at(7)) for kind in kinds]
        await store.resume(PauseScope.KIND, KIND)

        await store.sweep(10, now=at(8))

        assert await in_line(store, at(8)) == jobs
        assert await store.check_places() == []

    async def test_the_first_in_line_are_let_out_first(self, store: Store) -> None:
        first = [await enqueue_one(store) for _ in range(2)]
        await pause(store, PauseScope.KIND, KIND, now=at(1))
        await pause(store, PauseScope.KIND, "other", now=at(1))
        later = [await enqueue_one(store, kind=kind, now=at(2)) for kind in ("other", KIND)]
        await store.sweep(10, now=at(3))
        for kind in KINDS:
            await store.resume(PauseScope.KIND, kind)

        for out in (1, 2, 3, 4):
            await store.let_out(1, now=at(4))
            assert await states(store, first + later) == [State.READY] * out + [State.BLOCKED] * (4 - out)

    async def test_jobs_come_back_from_an_open_breaker_to_their_places(self, store: Store) -> None:
        await declare(store)
        stood = [await enqueue_one(store, kind=kind) for kind in (KIND, "other")]
        await trip(store, policy=BreakerPolicy(failures=1, probes=2))
        came = [await enqueue_one(store, kind=kind, now=at(1)) for kind in (KIND, "other", KIND)]
        await store.sweep(10, now=at(2))
        await store.sweep(10, now=at(60))
        assert await states(store, [stood[0], came[0]]) == [State.READY] * 2, "they probe"
        await store.force_breaker(MAIL, None, now=at(61))
        await store.sweep(10, now=at(62))
        await store.reset_breaker(MAIL, now=at(63))

        await store.sweep(10, now=at(64))

        assert await in_line(store, at(64)) == stood + came

    async def test_what_becomes_due_before_a_gate_has_its_place_from_then_on(self, store: Store) -> None:
        delayed, promoted = [await enqueue_one(store, run_at=at(seconds)) for seconds in (10, 20)]
        await pause(store, PauseScope.KIND, KIND)
        at_the_gate = await enqueue_one(store, run_at=at(30))
        far = await enqueue_one(store, run_at=at(900))
        retried = await start_one(store, kind="other")
        await pause(store, PauseScope.KIND, "other")
        await settle(store, retried, Failed(OOPS), now=at(40) - BACKOFF)
        await store.resume(PauseScope.KIND, "other")
        await store.sweep(10, now=at(5))
        others = []
        for seconds in (5, 15, 25, 35, 45):
            await store.promote(10, now=at(seconds))
            await store.let_out(10, now=at(seconds))
            others.append(await enqueue_one(store, kind="other", now=at(seconds)))
        await store.resume(PauseScope.KIND, KIND)

        await store.sweep(10, now=at(50))

        due = [delayed, promoted, at_the_gate, retried.job_id]
        assert await in_line(store, at(50)) == [
            others[0], due[0], others[1], due[1], others[2], due[2], others[3], due[3], others[4]
        ]  # fmt: skip
        assert await state(store, far) is State.SCHEDULED

    async def test_a_claim_that_is_given_back_before_a_gate_keeps_its_place(self, store: Store) -> None:
        given_back = await start_one(store)
        other = await enqueue_one(store, kind="other")
        await pause(store, PauseScope.KIND, KIND)
        assert await settle(store, given_back, Released(), now=at(1)) == []
        assert await state(store, given_back.job_id) is State.BLOCKED
        await store.resume(PauseScope.KIND, KIND)

        await store.sweep(10, now=at(2))

        assert await in_line(store, at(2)) == [given_back.job_id, other]

    async def test_a_job_that_waited_for_others_is_ready_when_they_have_ended(self, store: Store) -> None:
        need = await start_one(store, queue="slow")
        dependent = await enqueue_one(store, depends_on=(need.job_id,))
        both = await enqueue_one(store, kind="other", depends_on=(need.job_id,))
        before = await enqueue_one(store)
        await pause(store, PauseScope.KIND, "other")
        await complete(store, need, now=at(1))
        for _ in range(2):
            await store.sweep(10, now=at(1))
        after = await enqueue_one(store, now=at(2))
        await store.resume(PauseScope.KIND, "other")

        for _ in range(2):
            await store.sweep(10, now=at(3))

        assert set((await in_line(store, at(3)))[1:3]) == {dependent, both}
        assert await state(store, before) is await state(store, after) is State.RUNNING

    async def test_what_has_waited_for_the_longest_is_told_after_a_pause(self, store: Store) -> None:
        await pause(store, PauseScope.KIND, KIND)
        await enqueue_one(store)
        await enqueue_one(store, kind="other", now=at(3600))
        await store.resume(PauseScope.KIND, KIND)

        await store.sweep(10, now=at(3660))

        assert (await store.stats(timedelta(hours=1), now=at(3660))).oldest_ready_at == T0
