"""Which calls a closed, open or half-open breaker admits, and how their results change it."""

import asyncio
from datetime import datetime, timedelta

import msgspec
import pytest

from dutiful.core.breaker.state import PROBE_WAIT, Breaker, BreakerPolicy, BreakerState, CallResult, Entry, Rejected
from dutiful.core.errors import ClaimLost
from dutiful.core.job import Claim
from dutiful.store import Store
from suite.builders import (
    EXPIRED,
    T0,
    at,
    claim_one,
    complete,
    crash,
    enqueue,
    new_job,
    renewing,
    start_one,
    token,
    warm,
)

MAIL = "email-service"
POLICY = BreakerPolicy(failures=2, open_for=timedelta(seconds=60))


async def enter(
    store: Store, claimed: Claim, *, name: str = MAIL, policy: BreakerPolicy = POLICY, now: datetime = T0
) -> Entry | Rejected:
    return await store.breakers.enter(name, policy, token(claimed), now=now)


async def admit(
    store: Store, claimed: Claim, *, name: str = MAIL, policy: BreakerPolicy = POLICY, now: datetime = T0
) -> Entry:
    entry = await enter(store, claimed, name=name, policy=policy, now=now)
    assert isinstance(entry, Entry)
    return entry


async def finish(
    store: Store,
    claimed: Claim,
    entry: Entry,
    result: CallResult,
    *,
    name: str = MAIL,
    policy: BreakerPolicy = POLICY,
    now: datetime = T0,
) -> Breaker:
    return await store.breakers.exit(name, policy, token(claimed), entry, result, now=now)


async def call(
    store: Store,
    claimed: Claim,
    result: CallResult,
    *,
    name: str = MAIL,
    policy: BreakerPolicy = POLICY,
    now: datetime = T0,
) -> Breaker:
    entry = await admit(store, claimed, name=name, policy=policy, now=now)
    return await finish(store, claimed, entry, result, name=name, policy=policy, now=now)


async def trip(store: Store, *, name: str = MAIL, policy: BreakerPolicy = POLICY, now: datetime = T0) -> Breaker:
    """Calls fail until the breaker is open; the job that made them is done."""
    caller = await start_one(store, kind="caller", queue="callers", now=now)
    for _ in range(policy.failures):
        breaker = await call(store, caller, CallResult.BAD, name=name, policy=policy, now=now)
    assert breaker.state is BreakerState.OPEN
    await complete(store, caller, now=now)
    return breaker


async def of_name(store: Store, name: str = MAIL, *, now: datetime = T0) -> Breaker:
    (breaker,) = [record.breaker for record in await store.breakers.all(now=now) if record.breaker.name == name]
    return breaker


async def probing(store: Store, *, now: datetime) -> int:
    (record,) = await store.breakers.all(now=now)
    return record.probing


@pytest.mark.req("L27", "L55", "L56", "L57", "L58", "L66")
class BreakerSuite:
    async def test_an_unknown_breaker_admits_calls_and_gets_no_row(self, store: Store) -> None:
        caller = await start_one(store)

        after = await call(store, caller, CallResult.GOOD)

        assert after == Breaker(name=MAIL, policy=POLICY)
        assert await store.breakers.all(now=T0) == []

    async def test_consecutive_failures_open_a_breaker(self, store: Store) -> None:
        caller, policy = await start_one(store), BreakerPolicy()
        for n in range(1, 5):
            breaker = await call(store, caller, CallResult.BAD, policy=policy, now=at(n))
            assert (breaker.state, breaker.failures, breaker.last_failure_at) == (BreakerState.CLOSED, n, at(n))

        breaker = await call(store, caller, CallResult.BAD, policy=policy, now=at(5))

        assert (breaker.state, breaker.failures, breaker.trips) == (BreakerState.OPEN, 5, 1)
        assert (breaker.opened_at, breaker.open_until) == (at(5), at(65))
        assert await of_name(store) == breaker

    async def test_a_success_resets_the_count_of_failures(self, store: Store) -> None:
        caller = await start_one(store)
        await call(store, caller, CallResult.BAD)
        assert (await call(store, caller, CallResult.GOOD)).failures == 0

        assert (await call(store, caller, CallResult.BAD)).state is BreakerState.CLOSED
        assert (await call(store, caller, CallResult.BAD)).state is BreakerState.OPEN

    @pytest.mark.parametrize("result", [CallResult.NEUTRAL, CallResult.UNCLEAR])
    async def test_neutral_and_unclear_results_do_not_count(self, store: Store, result: CallResult) -> None:
        caller = await start_one(store)
        await call(store, caller, CallResult.BAD)

        assert (await call(store, caller, result)).failures == 1

    async def test_an_open_breaker_rejects_calls_until_its_time_is_over(self, store: Store) -> None:
        await trip(store)
        one, other = await start_one(store), await start_one(store, now=at(59))

        assert await enter(store, one, now=at(1)) == Rejected(at(60), timedelta(seconds=59))
        assert await enter(store, other, now=at(59)) == Rejected(at(60), timedelta(seconds=1))
        entry = await admit(store, other, now=at(60))
        assert entry == Entry((await of_name(store)).round, probe=True)

    async def test_breakers_of_other_names_stay_closed(self, store: Store) -> None:
        await trip(store)

        assert await enter(store, await start_one(store), name="maps") == Entry(0)

    async def test_a_half_open_breaker_admits_as_many_calls_as_it_has_probes(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=2)
        await trip(store, policy=policy)
        callers = [await start_one(store, now=at(60)) for _ in range(3)]

        entries = [await enter(store, caller, policy=policy, now=at(60)) for caller in callers]

        assert [getattr(entry, "probe", None) for entry in entries] == [True, True, None]
        assert entries[2] == Rejected(at(60) + PROBE_WAIT, PROBE_WAIT)
        assert (await of_name(store)).half_opened_at == at(60)
        assert await probing(store, now=at(60)) == 2

    async def test_a_breaker_closes_when_all_its_probes_succeeded(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=2)
        await trip(store, policy=policy)
        caller = await start_one(store, now=at(60))

        half = await call(store, caller, CallResult.GOOD, policy=policy, now=at(60))
        closed = await call(store, caller, CallResult.GOOD, policy=policy, now=at(61))

        assert (half.state, half.successes) == (BreakerState.HALF_OPEN, 1)
        assert (closed.state, closed.failures, closed.open_until) == (BreakerState.CLOSED, 0, None)
        assert await enter(store, caller, policy=policy, now=at(61)) == Entry(closed.round)

    async def test_no_more_probes_are_admitted_than_are_needed(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=2)
        await trip(store, policy=policy)
        callers = [await start_one(store, now=at(60)) for _ in range(3)]
        await call(store, callers[0], CallResult.GOOD, policy=policy, now=at(60))

        assert isinstance(await enter(store, callers[1], policy=policy, now=at(60)), Entry)
        assert isinstance(await enter(store, callers[2], policy=policy, now=at(60)), Rejected)

    async def test_one_failed_probe_opens_a_breaker_again(self, store: Store) -> None:
        await trip(store)
        caller = await start_one(store, now=at(70))

        breaker = await call(store, caller, CallResult.BAD, now=at(70))

        assert (breaker.state, breaker.trips, breaker.open_until) == (BreakerState.OPEN, 2, at(130))
        assert await enter(store, caller, now=at(71)) == Rejected(at(130), timedelta(seconds=59))

    async def test_a_probe_with_an_unclear_result_frees_its_place(self, store: Store) -> None:
        await trip(store)
        one, other = await start_one(store, now=at(60)), await start_one(store, now=at(60))
        entry = await admit(store, one, now=at(60))
        assert isinstance(await enter(store, other, now=at(60)), Rejected)

        after = await finish(store, one, entry, CallResult.UNCLEAR, now=at(61))

        assert after.state is BreakerState.HALF_OPEN
        assert isinstance(await enter(store, other, now=at(61)), Entry)

    async def test_as_many_neutral_probes_close_a_breaker_as_failures_open_it(self, store: Store) -> None:
        await trip(store)
        callers = [await start_one(store, now=at(60)) for _ in range(3)]

        first = await call(store, callers[0], CallResult.NEUTRAL, now=at(60))
        await call(store, callers[1], CallResult.UNCLEAR, now=at(61))
        assert (first.state, first.neutral) == (BreakerState.HALF_OPEN, 1)
        assert await of_name(store) == first
        shut = await call(store, callers[2], CallResult.NEUTRAL, now=at(62))

        assert (shut.state, shut.neutral, shut.failures) == (BreakerState.CLOSED, 0, 0)
        assert await of_name(store) == shut
        assert await enter(store, callers[0], now=at(62)) == Entry(shut.round)

    async def test_a_neutral_probe_frees_its_place(self, store: Store) -> None:
        await trip(store)
        one, other = await start_one(store, now=at(60)), await start_one(store, now=at(60))
        await call(store, one, CallResult.NEUTRAL, now=at(60))

        assert (await call(store, other, CallResult.BAD, now=at(60))).state is BreakerState.OPEN
        entry = await admit(store, await start_one(store, now=at(120)), now=at(120))
        assert (entry.probe, (await of_name(store)).neutral) == (True, 0)

    async def test_a_claim_has_one_place_however_often_it_enters(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=2)
        await trip(store, policy=policy)
        one, other = await start_one(store, now=at(60)), await start_one(store, now=at(60))

        assert await enter(store, one, policy=policy, now=at(60)) == await enter(store, one, policy=policy, now=at(60))
        assert await probing(store, now=at(60)) == 1
        assert isinstance(await enter(store, other, policy=policy, now=at(60)), Entry)

    async def test_a_second_result_of_one_probe_is_ignored(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=3)
        await trip(store, policy=policy)
        caller = await start_one(store, now=at(60))
        entry = await admit(store, caller, policy=policy, now=at(60))

        first = await finish(store, caller, entry, CallResult.GOOD, policy=policy, now=at(60))

        for result in CallResult:
            assert await finish(store, caller, entry, result, policy=policy, now=at(61)) == first

    async def test_a_result_of_an_earlier_round_is_ignored(self, store: Store) -> None:
        late = await start_one(store)
        entry = await admit(store, late)
        await trip(store)

        opened = await of_name(store)
        for result in CallResult:
            assert await finish(store, late, entry, result, now=at(1)) == opened

    async def test_a_late_probe_does_not_open_a_breaker_that_was_reset(self, store: Store) -> None:
        await trip(store)
        caller = await start_one(store, now=at(60))
        entry = await admit(store, caller, now=at(60))
        reset = await store.breakers.reset(MAIL, now=at(61))

        assert await finish(store, caller, entry, CallResult.BAD, now=at(62)) == reset

    async def test_a_probe_whose_lease_has_expired_loses_its_place_and_its_result(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=2)
        await trip(store, policy=policy)
        dead, alive = await start_one(store, now=at(60)), await start_one(store, now=at(60))
        entry = await admit(store, dead, policy=policy, now=at(60))
        await admit(store, alive, policy=policy, now=at(60))
        later = at(60 + EXPIRED)
        async with renewing(store) as renewer:
            await renewer.renew(alive, now=later)
            another = await start_one(store, now=later)

            assert await probing(store, now=later) == 1
            assert isinstance(await enter(store, another, policy=policy, now=later), Entry)
            await renewer.renew(dead, now=later)  # too late: another probe has replaced it

        assert await probing(store, now=later) == 2
        assert (
            await finish(store, dead, entry, CallResult.BAD, policy=policy, now=later)
        ).state is BreakerState.HALF_OPEN
        assert await store.queries.check_places() == []

    async def test_a_job_that_is_run_again_may_probe_again(self, store: Store) -> None:
        await trip(store)
        dead = await start_one(store, now=at(60))
        await admit(store, dead, now=at(60))
        later = await crash(store, now=at(60))
        await store.promotion.promote(10, now=(again_at := later + timedelta(minutes=1)))

        again = await claim_one(store, now=again_at, limit=0, suspects=1)

        assert again.job_id == dead.job_id
        assert (await call(store, again, CallResult.GOOD, now=again_at)).state is BreakerState.CLOSED

    async def test_a_claim_that_is_lost_cannot_probe(self, store: Store) -> None:
        await trip(store)
        caller = await start_one(store)

        with pytest.raises(ClaimLost, match=MAIL):
            await enter(store, caller, now=at(60))

        assert (await of_name(store)).state is BreakerState.OPEN
        with pytest.raises(ClaimLost):
            await enter(store, msgspec.structs.replace(caller, claim_id=caller.claim_id + 1), now=at(60))

    async def test_a_breaker_can_be_forced_open_in_any_state(self, store: Store) -> None:
        caller = await start_one(store)

        opened = await store.breakers.open(MAIL, None, now=at(1))
        assert (opened.state, opened.opened_at, opened.open_until) == (BreakerState.OPEN, at(1), at(61))
        assert await enter(store, caller, now=at(2)) == Rejected(at(61), timedelta(seconds=59))

        longer = await store.breakers.open(MAIL, timedelta(hours=1), now=at(2))
        assert (longer.opened_at, longer.open_until, longer.trips) == (at(2), at(3602), 0)
        assert await of_name(store) == longer

    async def test_a_breaker_forced_open_stays_so_for_the_time_of_its_policy(self, store: Store) -> None:
        await store.breakers.put_kinds({}, {MAIL: BreakerPolicy(open_for=timedelta(seconds=7))}, now=T0)

        assert (await store.breakers.open(MAIL, None, now=T0)).open_until == at(7)

    async def test_a_breaker_can_be_reset(self, store: Store) -> None:
        await trip(store)

        reset = await store.breakers.reset(MAIL, now=at(1))

        assert reset == await of_name(store)
        assert reset is not None
        assert (reset.state, reset.failures, reset.trips) == (BreakerState.CLOSED, 0, 1)
        assert await enter(store, await start_one(store), now=at(1)) == Entry(reset.round)

    async def test_an_unknown_breaker_cannot_be_reset(self, store: Store) -> None:
        assert await store.breakers.reset("unknown", now=T0) is None
        assert await store.breakers.all(now=T0) == []

    async def test_breakers_are_listed_by_name_with_their_latest_policy(self, store: Store) -> None:
        other = BreakerPolicy(failures=9, open_for=timedelta(days=3), probes=4)
        caller = await start_one(store)
        await call(store, caller, CallResult.BAD, name="b")
        await call(store, caller, CallResult.BAD, name="a")
        await call(store, caller, CallResult.BAD, name="b", policy=other)

        found = [record.breaker for record in await store.breakers.all(now=T0)]

        assert [(breaker.name, breaker.policy, breaker.failures) for breaker in found] == [
            ("a", POLICY, 1),
            ("b", other, 2),
        ]

    async def test_the_breaker_that_a_kind_declares_can_be_looked_up(self, store: Store) -> None:
        await store.breakers.put_kinds({"mail": MAIL, "post": "letters"}, now=T0)
        assert await store.breakers.kinds() == {"mail": MAIL, "post": "letters"}

        await store.breakers.put_kinds({"mail": None, "post": MAIL}, now=T0)
        assert await store.breakers.kinds() == {"post": MAIL}
        assert await store.breakers.kinds() == {"post": MAIL}

    async def test_breakers_outlive_the_process(self, store: Store) -> None:
        opened = await trip(store)
        await store.breakers.put_kinds({"mail": MAIL}, now=T0)
        before = await store.breakers.all(now=T0)

        await store.close()
        await store.open()

        assert await of_name(store) == opened
        assert await store.breakers.all(now=T0) == before

    async def test_concurrent_failures_are_all_counted(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1000)
        await enqueue(store, *(new_job() for _ in range(12)))
        callers = [await claim_one(store) for _ in range(12)]
        await warm(store)

        await asyncio.gather(*(call(store, caller, CallResult.BAD, policy=policy) for caller in callers))

        assert (await of_name(store)).failures == 12

    async def test_only_as_many_concurrent_calls_as_probes_are_admitted(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=3)
        await trip(store, policy=policy)
        await enqueue(store, *(new_job() for _ in range(16)), now=at(60))
        callers = [await claim_one(store, now=at(60)) for _ in range(16)]
        await warm(store)

        entries = await asyncio.gather(*(enter(store, caller, policy=policy, now=at(60)) for caller in callers))

        assert sum(isinstance(entry, Entry) for entry in entries) == 3
        assert await probing(store, now=at(60)) == 3
