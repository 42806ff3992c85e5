"""Who may call a service whose breaker is closed, open or half-open, and what comes of it."""

import asyncio
from datetime import datetime, timedelta

import msgspec
import pytest

from dutiful.core.breaker import AGAIN, Barred, Breaker, BreakerPolicy, BreakerState, Entry, Sign
from dutiful.core.errors import ClaimLost
from dutiful.core.job import Claim
from dutiful.store import Store
from dutiful.testing.store_suite.builders import (
    EXPIRED,
    T0,
    at,
    claim_one,
    complete,
    crash,
    enqueue,
    keeping,
    new_job,
    start_one,
    token,
    warm,
)

MAIL = "email-service"
POLICY = BreakerPolicy(failures=2, open_for=timedelta(seconds=60))


async def enter(
    store: Store, claimed: Claim, *, name: str = MAIL, policy: BreakerPolicy = POLICY, now: datetime = T0
) -> Entry | Barred:
    return await store.enter_breaker(name, policy, token(claimed), now=now)


async def let_in(
    store: Store, claimed: Claim, *, name: str = MAIL, policy: BreakerPolicy = POLICY, now: datetime = T0
) -> Entry:
    entry = await enter(store, claimed, name=name, policy=policy, now=now)
    assert isinstance(entry, Entry)
    return entry


async def leave(
    store: Store,
    claimed: Claim,
    entry: Entry,
    sign: Sign,
    *,
    name: str = MAIL,
    policy: BreakerPolicy = POLICY,
    now: datetime = T0,
) -> Breaker:
    return await store.leave_breaker(name, policy, token(claimed), entry, sign, now=now)


async def call(
    store: Store,
    claimed: Claim,
    sign: Sign,
    *,
    name: str = MAIL,
    policy: BreakerPolicy = POLICY,
    now: datetime = T0,
) -> Breaker:
    entry = await let_in(store, claimed, name=name, policy=policy, now=now)
    return await leave(store, claimed, entry, sign, name=name, policy=policy, now=now)


async def trip(store: Store, *, name: str = MAIL, policy: BreakerPolicy = POLICY, now: datetime = T0) -> Breaker:
    """Calls fail until the breaker is open; the job that made them is done."""
    caller = await start_one(store, kind="caller", queue="callers", now=now)
    for _ in range(policy.failures):
        breaker = await call(store, caller, Sign.BAD, name=name, policy=policy, now=now)
    assert breaker.state is BreakerState.OPEN
    await complete(store, caller, now=now)
    return breaker


async def of_name(store: Store, name: str = MAIL, *, now: datetime = T0) -> Breaker:
    (breaker,) = [record.breaker for record in await store.breakers(now=now) if record.breaker.name == name]
    return breaker


async def probing(store: Store, *, now: datetime) -> int:
    (record,) = await store.breakers(now=now)
    return record.probing


class BreakerSuite:
    async def test_a_breaker_that_nobody_has_heard_of_lets_calls_pass_and_is_not_written(self, store: Store) -> None:
        caller = await start_one(store)

        after = await call(store, caller, Sign.GOOD)

        assert after == Breaker(name=MAIL, policy=POLICY)
        assert await store.breakers(now=T0) == []

    async def test_failures_in_a_row_open_it(self, store: Store) -> None:
        caller, policy = await start_one(store), BreakerPolicy()
        for n in range(1, 5):
            breaker = await call(store, caller, Sign.BAD, policy=policy, now=at(n))
            assert (breaker.state, breaker.failures, breaker.last_failure_at) == (BreakerState.CLOSED, n, at(n))

        breaker = await call(store, caller, Sign.BAD, policy=policy, now=at(5))

        assert (breaker.state, breaker.failures, breaker.trips) == (BreakerState.OPEN, 5, 1)
        assert (breaker.opened_at, breaker.open_until) == (at(5), at(65))
        assert await of_name(store) == breaker

    async def test_a_success_in_between_forgets_the_failures(self, store: Store) -> None:
        caller = await start_one(store)
        await call(store, caller, Sign.BAD)
        assert (await call(store, caller, Sign.GOOD)).failures == 0

        assert (await call(store, caller, Sign.BAD)).state is BreakerState.CLOSED
        assert (await call(store, caller, Sign.BAD)).state is BreakerState.OPEN

    @pytest.mark.parametrize("sign", [Sign.NEUTRAL, Sign.UNCLEAR])
    async def test_what_says_nothing_of_the_service_counts_for_nothing(self, store: Store, sign: Sign) -> None:
        caller = await start_one(store)
        await call(store, caller, Sign.BAD)

        assert (await call(store, caller, sign)).failures == 1

    async def test_an_open_one_lets_nobody_in_until_its_time(self, store: Store) -> None:
        await trip(store)
        one, other = await start_one(store), await start_one(store, now=at(59))

        assert await enter(store, one, now=at(1)) == Barred(at(60), timedelta(seconds=59))
        assert await enter(store, other, now=at(59)) == Barred(at(60), timedelta(seconds=1))
        entry = await let_in(store, other, now=at(60))
        assert entry == Entry((await of_name(store)).round, probe=True)

    async def test_breakers_of_other_names_stay_closed(self, store: Store) -> None:
        await trip(store)

        assert await enter(store, await start_one(store), name="maps") == Entry(0)

    async def test_a_half_open_one_lets_as_many_in_as_may_probe(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=2)
        await trip(store, policy=policy)
        callers = [await start_one(store, now=at(60)) for _ in range(3)]

        entries = [await enter(store, caller, policy=policy, now=at(60)) for caller in callers]

        assert [getattr(entry, "probe", None) for entry in entries] == [True, True, None]
        assert entries[2] == Barred(at(60) + AGAIN, AGAIN)
        assert (await of_name(store)).half_opened_at == at(60)
        assert await probing(store, now=at(60)) == 2

    async def test_it_closes_when_all_its_probes_were_good(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=2)
        await trip(store, policy=policy)
        caller = await start_one(store, now=at(60))

        half = await call(store, caller, Sign.GOOD, policy=policy, now=at(60))
        closed = await call(store, caller, Sign.GOOD, policy=policy, now=at(61))

        assert (half.state, half.successes) == (BreakerState.HALF_OPEN, 1)
        assert (closed.state, closed.failures, closed.open_until) == (BreakerState.CLOSED, 0, None)
        assert await enter(store, caller, policy=policy, now=at(61)) == Entry(closed.round)

    async def test_no_more_probe_than_are_still_needed(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=2)
        await trip(store, policy=policy)
        callers = [await start_one(store, now=at(60)) for _ in range(3)]
        await call(store, callers[0], Sign.GOOD, policy=policy, now=at(60))

        assert isinstance(await enter(store, callers[1], policy=policy, now=at(60)), Entry)
        assert isinstance(await enter(store, callers[2], policy=policy, now=at(60)), Barred)

    async def test_one_bad_probe_opens_it_again(self, store: Store) -> None:
        await trip(store)
        caller = await start_one(store, now=at(70))

        breaker = await call(store, caller, Sign.BAD, now=at(70))

        assert (breaker.state, breaker.trips, breaker.open_until) == (BreakerState.OPEN, 2, at(130))
        assert await enter(store, caller, now=at(71)) == Barred(at(130), timedelta(seconds=59))

    async def test_a_probe_that_is_unclear_gives_its_place_to_another(self, store: Store) -> None:
        await trip(store)
        one, other = await start_one(store, now=at(60)), await start_one(store, now=at(60))
        entry = await let_in(store, one, now=at(60))
        assert isinstance(await enter(store, other, now=at(60)), Barred)

        after = await leave(store, one, entry, Sign.UNCLEAR, now=at(61))

        assert after.state is BreakerState.HALF_OPEN
        assert isinstance(await enter(store, other, now=at(61)), Entry)

    async def test_probes_that_end_for_reasons_of_their_own_close_it_when_as_many_as_failures_open_it(
        self, store: Store
    ) -> None:
        await trip(store)
        callers = [await start_one(store, now=at(60)) for _ in range(3)]

        first = await call(store, callers[0], Sign.NEUTRAL, now=at(60))
        await call(store, callers[1], Sign.UNCLEAR, now=at(61))
        assert (first.state, first.neutral) == (BreakerState.HALF_OPEN, 1)
        assert await of_name(store) == first
        shut = await call(store, callers[2], Sign.NEUTRAL, now=at(62))

        assert (shut.state, shut.neutral, shut.failures) == (BreakerState.CLOSED, 0, 0)
        assert await of_name(store) == shut
        assert await enter(store, callers[0], now=at(62)) == Entry(shut.round)

    async def test_a_probe_that_ends_for_a_reason_of_its_own_gives_its_place_to_another(self, store: Store) -> None:
        await trip(store)
        one, other = await start_one(store, now=at(60)), await start_one(store, now=at(60))
        await call(store, one, Sign.NEUTRAL, now=at(60))

        assert (await call(store, other, Sign.BAD, now=at(60))).state is BreakerState.OPEN
        entry = await let_in(store, await start_one(store, now=at(120)), now=at(120))
        assert (entry.probe, (await of_name(store)).neutral) == (True, 0)

    async def test_a_claim_has_one_place_however_often_it_asks(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=2)
        await trip(store, policy=policy)
        one, other = await start_one(store, now=at(60)), await start_one(store, now=at(60))

        assert await enter(store, one, policy=policy, now=at(60)) == await enter(store, one, policy=policy, now=at(60))
        assert await probing(store, now=at(60)) == 1
        assert isinstance(await enter(store, other, policy=policy, now=at(60)), Entry)

    async def test_the_second_word_of_one_probe_counts_nothing(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=3)
        await trip(store, policy=policy)
        caller = await start_one(store, now=at(60))
        entry = await let_in(store, caller, policy=policy, now=at(60))

        first = await leave(store, caller, entry, Sign.GOOD, policy=policy, now=at(60))

        for sign in Sign:
            assert await leave(store, caller, entry, sign, policy=policy, now=at(61)) == first

    async def test_what_comes_of_an_earlier_round_changes_nothing(self, store: Store) -> None:
        late = await start_one(store)
        entry = await let_in(store, late)
        await trip(store)

        opened = await of_name(store)
        for sign in Sign:
            assert await leave(store, late, entry, sign, now=at(1)) == opened

    async def test_a_late_probe_does_not_open_what_people_have_reset(self, store: Store) -> None:
        await trip(store)
        caller = await start_one(store, now=at(60))
        entry = await let_in(store, caller, now=at(60))
        reset = await store.reset_breaker(MAIL, now=at(61))

        assert await leave(store, caller, entry, Sign.BAD, now=at(62)) == reset

    async def test_a_probe_whose_lease_is_over_loses_its_place_and_its_word(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=2)
        await trip(store, policy=policy)
        dead, alive = await start_one(store, now=at(60)), await start_one(store, now=at(60))
        entry = await let_in(store, dead, policy=policy, now=at(60))
        await let_in(store, alive, policy=policy, now=at(60))
        later = at(60 + EXPIRED)
        async with keeping(store) as keeper:
            await keeper.renew(alive, now=later)
            another = await start_one(store, now=later)

            assert await probing(store, now=later) == 1
            assert isinstance(await enter(store, another, policy=policy, now=later), Entry)
            await keeper.renew(dead, now=later)  # too late: its place is taken

        assert await probing(store, now=later) == 2
        assert (await leave(store, dead, entry, Sign.BAD, policy=policy, now=later)).state is BreakerState.HALF_OPEN
        assert await store.check_places() == []

    async def test_a_job_that_is_run_again_may_probe_again(self, store: Store) -> None:
        await trip(store)
        dead = await start_one(store, now=at(60))
        await let_in(store, dead, now=at(60))
        later = await crash(store, now=at(60))
        await store.promote(10, now=(again_at := later + timedelta(minutes=1)))

        again = await claim_one(store, now=again_at, limit=0, suspects=1)

        assert again.job_id == dead.job_id
        assert (await call(store, again, Sign.GOOD, now=again_at)).state is BreakerState.CLOSED

    async def test_a_claim_that_is_lost_cannot_probe(self, store: Store) -> None:
        await trip(store)
        caller = await start_one(store)

        with pytest.raises(ClaimLost, match=MAIL):
            await enter(store, caller, now=at(60))

        assert (await of_name(store)).state is BreakerState.OPEN
        with pytest.raises(ClaimLost):
            await enter(store, msgspec.structs.replace(caller, claim_id=caller.claim_id + 1), now=at(60))

    async def test_people_force_it_open_whatever_its_state(self, store: Store) -> None:
        caller = await start_one(store)

        forced = await store.force_breaker(MAIL, None, now=at(1))
        assert (forced.state, forced.opened_at, forced.open_until) == (BreakerState.OPEN, at(1), at(61))
        assert await enter(store, caller, now=at(2)) == Barred(at(61), timedelta(seconds=59))

        longer = await store.force_breaker(MAIL, timedelta(hours=1), now=at(2))
        assert (longer.opened_at, longer.open_until, longer.trips) == (at(2), at(3602), 0)
        assert await of_name(store) == longer

    async def test_forced_it_stays_open_as_long_as_its_policy_says(self, store: Store) -> None:
        await store.put_breaker_kinds({}, {MAIL: BreakerPolicy(open_for=timedelta(seconds=7))}, now=T0)

        assert (await store.force_breaker(MAIL, None, now=T0)).open_until == at(7)

    async def test_people_reset_it(self, store: Store) -> None:
        await trip(store)

        reset = await store.reset_breaker(MAIL, now=at(1))

        assert reset == await of_name(store)
        assert reset is not None
        assert (reset.state, reset.failures, reset.trips) == (BreakerState.CLOSED, 0, 1)
        assert await enter(store, await start_one(store), now=at(1)) == Entry(reset.round)

    async def test_there_is_nothing_to_reset_of_an_unknown_name(self, store: Store) -> None:
        assert await store.reset_breaker("nobody's", now=T0) is None
        assert await store.breakers(now=T0) == []

    async def test_breakers_are_listed_by_name_with_the_policy_of_who_spoke_last(self, store: Store) -> None:
        other = BreakerPolicy(failures=9, open_for=timedelta(days=3), probes=4)
        caller = await start_one(store)
        await call(store, caller, Sign.BAD, name="b")
        await call(store, caller, Sign.BAD, name="a")
        await call(store, caller, Sign.BAD, name="b", policy=other)

        found = [record.breaker for record in await store.breakers(now=T0)]

        assert [(breaker.name, breaker.policy, breaker.failures) for breaker in found] == [
            ("a", POLICY, 1),
            ("b", other, 2),
        ]

    async def test_a_kind_tells_which_breaker_it_declares(self, store: Store) -> None:
        await store.put_breaker_kinds({"mail": MAIL, "post": "letters"}, now=T0)
        assert [await store.breaker_of_kind(kind) for kind in ("mail", "post", "gone")] == [MAIL, "letters", None]
        assert await store.breaker_kinds() == {"mail": MAIL, "post": "letters"}

        await store.put_breaker_kinds({"mail": None, "post": MAIL}, now=T0)
        assert [await store.breaker_of_kind(kind) for kind in ("mail", "post")] == [None, MAIL]
        assert await store.breaker_kinds() == {"post": MAIL}

    async def test_all_of_it_outlives_the_process(self, store: Store) -> None:
        opened = await trip(store)
        await store.put_breaker_kinds({"mail": MAIL}, now=T0)
        before = await store.breakers(now=T0)

        await store.close()
        await store.open()

        assert await of_name(store) == opened
        assert await store.breakers(now=T0) == before

    async def test_failures_at_the_same_time_are_all_counted(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1000)
        await enqueue(store, *(new_job() for _ in range(12)))
        callers = [await claim_one(store) for _ in range(12)]
        await warm(store)

        await asyncio.gather(*(call(store, caller, Sign.BAD, policy=policy) for caller in callers))

        assert (await of_name(store)).failures == 12

    async def test_of_many_that_ask_at_the_same_time_only_probes_are_let_in(self, store: Store) -> None:
        policy = BreakerPolicy(failures=1, probes=3)
        await trip(store, policy=policy)
        await enqueue(store, *(new_job() for _ in range(16)), now=at(60))
        callers = [await claim_one(store, now=at(60)) for _ in range(16)]
        await warm(store)

        entries = await asyncio.gather(*(enter(store, caller, policy=policy, now=at(60)) for caller in callers))

        assert sum(isinstance(entry, Entry) for entry in entries) == 3
        assert await probing(store, now=at(60)) == 3
