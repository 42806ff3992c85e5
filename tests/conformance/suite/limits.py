"""Jobs of limited kinds become ready as their limits admit them: never more at once, or within a time, than allowed."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from dutiful.core.job import NewJob
from dutiful.core.limits import KindLimit, Limit
from dutiful.core.outcome import Failed, Released
from dutiful.core.states import State
from dutiful.store import Store
from dutiful.store.control import PauseScope
from dutiful.store.limits import KeyUse
from suite.builders import (
    KIND,
    OOPS,
    T0,
    at,
    claim,
    complete,
    crash,
    enqueue,
    new_job,
    pause,
    settle,
    state,
    states,
)

TWO = Limit("calls", 2)
TWO_A_MINUTE = Limit("calls", 2, per=timedelta(minutes=1))
OTHER = "wave"


def keyed(key: str | None, *, limit: str = "calls", **fields: Any) -> NewJob:
    return new_job(options=msgspec.json.encode({"limits": {limit: key}}).decode(), **fields)


async def limited(store: Store, *limits: Limit, kind: str = KIND, now: Any = T0, field: str | None = None) -> None:
    await store.limits.put({kind: [KindLimit(limit, field) for limit in limits]}, now=now)


async def admit(store: Store, *, now: Any = T0, everywhere: bool = False) -> None:
    await store.limits.admit(100, everywhere=everywhere, now=now)


async def ready(store: Store, jobs: Sequence[NewJob]) -> list[int]:
    """The positions of those that are ready."""
    found = await states(store, [job.id for job in jobs])
    return [n for n, one in enumerate(found) if one is State.READY]


async def gate(store: Store, job_id: UUID) -> tuple[str | None, str | None]:
    record = await store.queries.job(job_id)
    assert record is not None
    return record.gate, record.gate_key


class LimitSuite:
    async def test_as_many_jobs_become_ready_as_the_limit_of_their_key_allows(self, store: Store) -> None:
        await limited(store, TWO)
        jobs = [keyed("acme") for _ in range(4)] + [keyed("zeta")]
        await enqueue(store, *jobs)
        assert await ready(store, jobs) == []

        admission = await store.limits.admit(100, now=T0)

        assert [(level.queue, level.priority) for level in admission.levels] == [("default", 100)]
        assert list(admission.levels) == await store.claims.peek([KIND]), "so that a worker needs none"
        assert await ready(store, jobs) == [0, 1, 4]
        assert await gate(store, jobs[2].id) == ("limit", '["calls", "acme"]')
        assert await store.queries.check_places() == []

    async def test_the_next_one_is_admitted_when_a_job_ends(self, store: Store) -> None:
        await limited(store, TWO)
        jobs = [keyed("acme") for _ in range(4)]
        await enqueue(store, *jobs)
        await admit(store)
        first, _ = await claim(store)
        await admit(store)
        assert await ready(store, jobs) == []

        await complete(store, first)
        await admit(store)

        assert await ready(store, jobs) == [2]
        assert await store.queries.check_places() == []

    async def test_a_retry_gives_its_slot_back_and_waits_for_another(self, store: Store) -> None:
        await limited(store, TWO)
        jobs = [keyed("acme") for _ in range(3)]
        await enqueue(store, *jobs)
        await admit(store)
        first, _ = await claim(store)
        await settle(store, first, Failed(OOPS))
        assert await state(store, first.job_id) is State.SCHEDULED

        await admit(store)
        assert await ready(store, jobs) == [2]
        await store.promotion.promote(10, now=at(60))
        await admit(store, now=at(60))

        assert await state(store, first.job_id) is State.BLOCKED
        assert await gate(store, first.job_id) == ("limit", '["calls", "acme"]')

    async def test_a_released_job_gives_its_slot_back(self, store: Store) -> None:
        await limited(store, Limit("calls", 1))
        jobs = [keyed("acme") for _ in range(2)]
        await enqueue(store, *jobs)
        await admit(store)
        (only,) = await claim(store)
        await settle(store, only, Released())

        await admit(store)

        assert len(await ready(store, jobs)) == 1

    async def test_a_job_of_a_dead_worker_gives_its_slot_back(self, store: Store) -> None:
        await limited(store, Limit("calls", 1))
        jobs = [keyed("acme") for _ in range(2)]
        await enqueue(store, *jobs)
        await admit(store)
        assert len(await claim(store)) == 1

        later = await crash(store)
        await admit(store, now=later)

        assert len(await ready(store, jobs)) == 1

    async def test_a_cancelled_job_gives_its_slot_back(self, store: Store) -> None:
        await limited(store, Limit("calls", 1))
        jobs = [keyed("acme") for _ in range(2)]
        await enqueue(store, *jobs)
        await admit(store)

        await store.control.cancel(jobs[0].id, "no", now=T0)
        await admit(store)

        assert await ready(store, jobs) == [1]

    async def test_jobs_of_one_key_are_admitted_by_priority_and_then_in_order(self, store: Store) -> None:
        await limited(store, Limit("calls", 1))
        jobs = [keyed("acme"), keyed("acme"), keyed("acme", priority=5)]
        await enqueue(store, *jobs)
        await admit(store)
        assert await ready(store, jobs) == [0]
        (first,) = await claim(store)
        await complete(store, first)

        await admit(store)

        assert await ready(store, jobs) == [2]

    async def test_a_job_without_a_key_has_no_limit(self, store: Store) -> None:
        await limited(store, Limit("calls", 1))
        jobs = [keyed(None) for _ in range(3)]
        await enqueue(store, *jobs)

        await admit(store)

        assert await ready(store, jobs) == [0, 1, 2]

    async def test_a_job_that_names_no_key_has_that_of_its_payload(self, store: Store) -> None:
        await limited(store, Limit("calls", 1), field="account")
        jobs = [new_job(payload=f'{{"account": {account}}}') for account in ("7", "7", '"7"', "8")]
        await enqueue(store, *jobs)

        await admit(store)

        assert await ready(store, jobs) == [0, 3]
        assert await gate(store, jobs[2].id) == ("limit", '["calls", "7"]')

    async def test_a_job_that_names_no_key_has_its_tenant_if_that_is_the_field(self, store: Store) -> None:
        await limited(store, Limit("calls", 1), field="tenant")
        jobs = [new_job(tenant=tenant) for tenant in ("acme", "acme", "zeta")]
        await enqueue(store, *jobs)

        await admit(store)

        assert await ready(store, jobs) == [0, 2]

    async def test_kinds_that_name_the_same_limit_share_it(self, store: Store) -> None:
        await limited(store, Limit("calls", 1))
        await limited(store, Limit("calls", 1), kind=OTHER)
        jobs = [keyed("acme"), keyed("acme", kind=OTHER)]
        await enqueue(store, *jobs)

        await admit(store)

        assert await ready(store, jobs) == [0]

    async def test_a_job_with_two_limits_needs_a_slot_of_both(self, store: Store) -> None:
        await limited(store, Limit("account", 1), Limit("everyone", 2))
        options = [{"account": account, "everyone": ""} for account in "abbc"]
        jobs = [new_job(options=msgspec.json.encode({"limits": one}).decode()) for one in options]
        await enqueue(store, *jobs)

        await admit(store)
        assert await ready(store, jobs) == [0, 1]
        assert await gate(store, jobs[2].id) == ("limit", '["account", "b"]')
        assert await gate(store, jobs[3].id) == ("limit", '["everyone", ""]')

        first, _ = await claim(store)
        await complete(store, first)
        await admit(store)
        assert await ready(store, jobs) == [3]

    async def test_jobs_that_lack_another_slot_leave_theirs_to_those_behind_them(self, store: Store) -> None:
        await limited(store, Limit("a: everyone", 3), Limit("b: account", 1))

        def asking(account: str) -> NewJob:
            return new_job(options=msgspec.json.encode({"limits": {"a: everyone": "", "b: account": account}}).decode())

        first = [asking(account) for account in "xyz"]
        flood, quiet = [asking("acme") for _ in range(20)], asking("zeta")
        await enqueue(store, *first, *flood, quiet)
        await admit(store)
        assert await gate(store, quiet.id) == ("limit", '["a: everyone", ""]')

        await complete(store, *await claim(store))
        await admit(store)

        assert await ready(store, [*flood, quiet]) == [0, 20]
        assert {await gate(store, job.id) for job in flood[1:]} == {("limit", '["b: account", "acme"]')}

    async def test_only_slots_of_jobs_that_are_named_as_ended_are_freed(self, store: Store) -> None:
        await limited(store, TWO)
        jobs = [keyed("acme") for _ in range(4)]
        await enqueue(store, *jobs)
        await admit(store)
        first, second = await claim(store)
        await complete(store, first, second)

        await store.limits.admit(100, ended=[first.job_id], now=T0)
        assert await ready(store, jobs) == [2]
        await store.limits.admit(100, ended=[], now=T0)
        assert await ready(store, jobs) == [2]
        await admit(store)

        assert await ready(store, jobs) == [2, 3]

    async def test_a_job_that_is_admitted_again_gives_back_what_it_had_before(self, store: Store) -> None:
        await limited(store, TWO)
        jobs = [keyed("acme") for _ in range(2)]
        await enqueue(store, jobs[0])
        await admit(store)
        (first,) = await claim(store)
        await settle(store, first, Released())

        await store.limits.admit(100, ended=[], now=T0)
        await enqueue(store, jobs[1])
        await store.limits.admit(100, ended=[], now=T0)

        assert await ready(store, jobs) == [0, 1]

    async def test_other_kinds_are_not_held_up(self, store: Store) -> None:
        await limited(store, Limit("calls", 1))
        jobs = [new_job(kind=OTHER), new_job(kind=OTHER, run_at=at(60))]

        await enqueue(store, *jobs)

        assert await states(store, [job.id for job in jobs]) == [State.READY, State.SCHEDULED]

    async def test_a_delayed_job_is_scheduled_and_then_waits_for_its_slot(self, store: Store) -> None:
        await limited(store, Limit("calls", 1))
        job = keyed("acme", run_at=at(60))
        await enqueue(store, job)
        assert await state(store, job.id) is State.SCHEDULED

        await store.promotion.promote(10, now=at(60))
        assert await state(store, job.id) is State.BLOCKED
        await admit(store, now=at(60))

        assert await state(store, job.id) is State.READY

    async def test_jobs_that_are_there_when_a_kind_becomes_limited_are_counted(self, store: Store) -> None:
        jobs = [keyed("acme") for _ in range(4)]
        await enqueue(store, *jobs)
        running = await claim(store, limit=1)

        await limited(store, TWO)
        assert await ready(store, jobs) == []
        await admit(store)

        assert await ready(store, jobs) == [1]
        await complete(store, *running)
        await admit(store)
        assert await ready(store, jobs) == [1, 2]

    async def test_a_kind_without_limits_is_free_again(self, store: Store) -> None:
        await limited(store, Limit("calls", 1))
        jobs = [keyed("acme") for _ in range(3)]
        await enqueue(store, *jobs)
        await admit(store)

        await limited(store)
        await store.promotion.sweep(100, now=T0)

        assert await ready(store, jobs) == [0, 1, 2]
        assert await store.limits.all(now=T0) == []
        assert await store.queries.check_places() == []

    async def test_a_limit_that_a_limited_kind_gets_besides_counts_what_runs_and_admits_the_others_anew(
        self, store: Store
    ) -> None:
        await limited(store, Limit("all", 10))
        jobs = [new_job() for _ in range(6)]
        await enqueue(store, *jobs)
        await admit(store)
        running = await claim(store, limit=1)
        assert await ready(store, jobs) == [1, 2, 3, 4, 5]

        await limited(store, Limit("all", 10), TWO)
        assert await ready(store, jobs) == []
        await admit(store)

        assert await ready(store, jobs) == [1]
        assert {one.limit.name: one.used for one in await store.limits.all(now=T0)} == {"all": 2, "calls": 2}
        await complete(store, *running)
        await admit(store)
        assert await ready(store, jobs) == [1, 2]
        assert await store.queries.check_places() == []

    async def test_a_limit_with_another_name_counts_what_runs_and_keeps_none_waiting(self, store: Store) -> None:
        await limited(store, TWO)
        jobs = [new_job() for _ in range(5)]
        await enqueue(store, *jobs)
        await admit(store)
        running = await claim(store)
        assert await gate(store, jobs[2].id) == ("limit", '["calls", ""]')

        await limited(store, Limit("renamed", 3))
        await admit(store)
        assert await ready(store, jobs) == [2]
        assert await gate(store, jobs[3].id) == ("limit", '["renamed", ""]')

        await complete(store, *running)
        await admit(store)
        assert await ready(store, jobs) == [2, 3, 4]

    async def test_what_waits_for_a_limit_that_its_kind_has_no_more_waits_for_the_other(self, store: Store) -> None:
        await limited(store, Limit("a", 1), Limit("b", 2))
        await limited(store, Limit("a", 1), kind=OTHER)  # so that the limit itself remains
        jobs = [new_job() for _ in range(4)]
        await enqueue(store, *jobs)
        await admit(store)
        assert await gate(store, jobs[1].id) == ("limit", '["a", ""]')

        await limited(store, Limit("b", 2))
        await admit(store)

        assert await ready(store, jobs) == [0, 1]
        assert await gate(store, jobs[2].id) == ("limit", '["b", ""]')
        assert await store.queries.check_places() == []

    async def test_a_limit_can_turn_from_starts_to_what_runs_at_once_and_back(self, store: Store) -> None:
        await limited(store, TWO_A_MINUTE)
        jobs = [new_job() for _ in range(6)]
        await enqueue(store, *jobs)
        await admit(store)
        first, second = await claim(store)
        await complete(store, first)
        await admit(store)  # it notes both starts

        await limited(store, TWO)
        await admit(store, everywhere=True)
        assert await ready(store, jobs) == [2], "one runs"
        await complete(store, second)
        await admit(store)
        assert await ready(store, jobs) == [2, 3]

        third, _ = await claim(store, now=at(1))
        await limited(store, TWO_A_MINUTE, now=at(2))
        await complete(store, third, now=at(3))
        await admit(store, now=at(3))
        assert await ready(store, jobs) == []
        await admit(store, now=at(61))
        assert await ready(store, jobs) == [4, 5]
        assert await store.queries.check_places() == []

    async def test_a_limit_can_be_changed_while_it_is_in_use(self, store: Store) -> None:
        await limited(store, Limit("calls", 1))
        jobs = [keyed("acme") for _ in range(4)]
        await enqueue(store, *jobs)
        await admit(store)

        assert await store.limits.choose("calls", 3)
        await admit(store, everywhere=True)
        assert await ready(store, jobs) == [0, 1, 2]
        running = await claim(store)
        assert await store.limits.choose("calls", 0)
        await complete(store, *running)
        await admit(store, everywhere=True)
        assert await ready(store, jobs) == []
        await limited(store, TWO)  # what an operator chose outlives a deploy
        await admit(store, everywhere=True)
        assert await ready(store, jobs) == []
        assert await store.limits.choose("calls", None)
        await admit(store, everywhere=True)

        assert await ready(store, jobs) == [3]
        assert not await store.limits.choose("unknown", 1)

    @pytest.mark.parametrize("most", [0, 1])
    @pytest.mark.parametrize("declared", [True, False])
    async def test_what_is_ready_waits_again_if_fewer_may_run(self, store: Store, most: int, declared: bool) -> None:
        await limited(store, Limit("calls", 4))
        jobs = [keyed("acme") for _ in range(6)]
        await enqueue(store, *jobs)
        await admit(store)
        (running,) = await claim(store, limit=1)

        if declared:
            await limited(store, Limit("calls", most + 1))
        else:
            assert await store.limits.choose("calls", most + 1, now=T0)
        assert await ready(store, jobs) == []
        await admit(store)

        assert await ready(store, jobs) == list(range(1, most + 1))
        await complete(store, running)
        await admit(store)
        assert await ready(store, jobs) == list(range(1, most + 2))
        assert await store.queries.check_places() == []

    async def test_nothing_that_was_ready_starts_once_a_limit_is_0(self, store: Store) -> None:
        await limited(store, TWO)
        jobs = [keyed("acme") for _ in range(3)]
        await enqueue(store, *jobs)
        await admit(store)

        assert await store.limits.choose("calls", 0, now=T0)
        await admit(store, everywhere=True)

        assert await ready(store, jobs) == []
        assert await store.limits.choose("calls", None, now=T0)
        await admit(store, everywhere=True)
        assert await ready(store, jobs) == [0, 1]

    async def test_limits_are_listed_with_their_use(self, store: Store) -> None:
        await limited(store, TWO)
        await enqueue(store, *(keyed("acme") for _ in range(5)), keyed("zeta"))
        await admit(store)

        (listed,) = await store.limits.all(now=T0)

        assert (listed.limit, listed.kinds, listed.used, listed.waiting) == (TWO, [KIND], 3, 3)
        assert listed.keys == [KeyUse("acme", 2, 3), KeyUse("zeta", 1, 0)]

    async def test_jobs_of_a_paused_kind_are_not_admitted(self, store: Store) -> None:
        await limited(store, Limit("calls", 1))
        jobs = [keyed("acme") for _ in range(3)]
        await enqueue(store, *jobs)
        await admit(store)
        await pause(store, PauseScope.KIND, KIND)
        await store.promotion.sweep(100, now=T0)

        await admit(store, everywhere=True)
        assert await ready(store, jobs) == []
        assert await gate(store, jobs[2].id) == ("paused", KIND)

        await store.control.resume(PauseScope.KIND, KIND)
        await store.promotion.sweep(100, now=T0)
        assert await ready(store, jobs) == []
        await admit(store, everywhere=True)
        assert await ready(store, jobs) == [0]

    async def test_a_dependent_job_waits_for_its_slot_when_the_others_are_done(self, store: Store) -> None:
        await limited(store, Limit("calls", 1))
        needed = new_job(kind=OTHER)
        await enqueue(store, needed)
        jobs = [keyed("acme", depends_on=(needed.id,)), keyed("acme")]
        await enqueue(store, *jobs)
        await admit(store)
        assert await ready(store, jobs) == [1]

        await complete(store, *await claim(store, kinds=[OTHER]))
        await store.promotion.sweep(100, now=T0)
        await admit(store)

        assert await gate(store, jobs[0].id) == ("limit", '["calls", "acme"]')

    async def test_no_admission_sees_more_jobs_than_it_may(self, store: Store) -> None:
        await limited(store, TWO)
        await enqueue(store, *(keyed(str(n)) for n in range(7)))

        assert [(await store.limits.admit(3, now=T0)).seen for _ in range(4)] == [3, 3, 1, 0]
