"""Unique keys, as those who enqueue meet them."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest
from running_workers import EVERYWHERE, eventually, state, working

from dutiful import Dutiful, OnConflict, Scope, State, Unique, UniqueConflict
from dutiful.kind import Kind


def key(scope: Scope = Scope.ACTIVE, action: OnConflict = OnConflict.RETURN) -> Unique:
    return Unique("order 42", scope, action, window=timedelta(hours=1) if scope is Scope.WINDOW else None)


@pytest.fixture
def bill(app: Dutiful) -> Kind[[], str]:
    @app.job
    async def bill() -> str:
        return "billed"

    return bill


@pytest.mark.req("W26")
@pytest.mark.parametrize("scope", Scope)
async def test_a_taken_key_is_refused_if_so_asked(app: Dutiful, bill: Kind[[], str], scope: Scope) -> None:
    first = await bill.options(unique=key(scope)).enqueue()
    with pytest.raises(UniqueConflict, match="holds the unique key 'order 42'") as caught:
        await bill.options(unique=key(scope, OnConflict.REJECT)).enqueue()
    assert caught.value.existing == first.id and first.public_id in str(caught.value)
    assert ("use another key" in str(caught.value), "wait" in str(caught.value)) == (
        (True, False) if scope is Scope.FOREVER else (False, True)
    )


@pytest.mark.parametrize("scope", Scope)
async def test_the_job_that_holds_the_key_is_returned_if_so_asked(
    app: Dutiful, bill: Kind[[], str], scope: Scope
) -> None:
    first = await bill.options(unique=key(scope)).enqueue()
    second = await bill.options(unique=key(scope, OnConflict.RETURN)).enqueue()
    assert second.id == first.id and (first.created, second.created) == (True, False)


@pytest.mark.parametrize("scope", Scope)
async def test_a_waiting_holder_is_replaced_if_so_asked(app: Dutiful, bill: Kind[[], str], scope: Scope) -> None:
    first = await bill.options(unique=key(scope)).enqueue()
    second = await bill.options(unique=key(scope, OnConflict.REPLACE)).enqueue()
    assert second.id != first.id and second.created
    assert (await state(app, first), await state(app, second)) == (State.CANCELLED, State.READY)
    third = await bill.options(unique=key(scope)).enqueue()
    assert third.id == second.id


@pytest.mark.parametrize("scope", Scope)
async def test_how_long_a_key_is_held(app: Dutiful, scope: Scope) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @app.job
    async def bill() -> None:
        began.set()
        await go.wait()

    async def free() -> bool:
        """Whether another job could take the key; does not take it."""
        try:
            probe = await bill.options(unique=key(scope, OnConflict.REJECT), delay="1h").enqueue()
        except UniqueConflict:
            return False
        await probe.cancel()
        return True

    async with working(app):
        job = await bill.options(unique=key(scope)).enqueue()
        await began.wait()
        assert await free() is (scope is Scope.QUEUED)
        go.set()
        await job.result("20s")
        assert await free() is (scope in (Scope.QUEUED, Scope.ACTIVE))


async def test_a_running_holder_is_never_replaced(app: Dutiful) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @app.job
    async def bill() -> str:
        began.set()
        await go.wait()
        return "mine"

    async with working(app):
        first = await bill.options(unique=key()).enqueue()
        await began.wait()
        second = await bill.options(unique=key(action=OnConflict.REPLACE)).enqueue()
        assert second.id == first.id and not second.created
        go.set()
        assert await first.result("20s") == "mine"


@pytest.mark.req("W27")
async def test_keys_of_other_tenants_and_other_kinds_are_their_own(app: Dutiful, bill: Kind[[], str]) -> None:
    @app.job
    async def ship() -> None: ...

    refuse = key(Scope.FOREVER, OnConflict.REJECT)
    made = [
        await bill.options(unique=refuse).enqueue(),
        await bill.options(unique=refuse, tenant="acme").enqueue(),
        await bill.options(unique=refuse, tenant="umbrella").enqueue(),
        await ship.options(unique=refuse).enqueue(),
    ]
    assert all(job.created for job in made)
    with pytest.raises(UniqueConflict):
        await bill.options(unique=refuse, tenant="acme").enqueue()


async def test_a_key_across_kinds_is_one_for_all_of_them(app: Dutiful, bill: Kind[[], str]) -> None:
    @app.job
    async def ship() -> None: ...

    shared = Unique("order 42", across_kinds=True)
    first = await bill.options(unique=shared).enqueue()
    assert (await ship.options(unique=shared).enqueue()).id == first.id


@pytest.mark.req("W18")
@pytest.mark.parametrize("app_url", EVERYWHERE, indirect=True)
async def test_of_many_who_want_one_key_at_once_one_gets_it(app: Dutiful) -> None:
    ran: list[int] = []

    @app.job(unique=key(Scope.FOREVER))
    async def once(n: int) -> None:
        ran.append(n)

    async with working(app):
        jobs = await asyncio.gather(*(once.enqueue(n) for n in range(30)))
        assert len({job.id for job in jobs}) == 1 and sum(job.created for job in jobs) == 1
        await jobs[0].result("20s")
    assert len(ran) == 1


async def test_the_key_of_a_cancelled_job_is_free_again(app: Dutiful, bill: Kind[[], str]) -> None:
    first = await bill.options(unique=key()).enqueue()
    await first.cancel()
    assert (await bill.options(unique=key()).enqueue()).created


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_a_holder_that_is_promoted_at_that_moment_is_replaced_all_the_same(
    app: Dutiful, app_url: str, bill: Kind[[], str]
) -> None:
    first = await bill.options(unique=key(), delay="1h").enqueue()
    leader, other = await asyncpg.connect(app_url), await asyncpg.connect(app_url)
    try:
        async with leader.transaction():
            assert await leader.fetchval("select moved from dutiful.promote(10, '-infinity', now() + '2h')") == 1
            replacing = asyncio.create_task(bill.options(unique=key(action=OnConflict.REPLACE)).enqueue())

            async def waits() -> bool:
                return bool(await other.fetchval("select exists (select 1 from pg_locks where not granted)"))

            await eventually(waits)
        second = await replacing
    finally:
        await leader.close()
        await other.close()
    assert second.created and second.id != first.id
    assert [await state(app, job) for job in (first, second)] == [State.CANCELLED, State.READY]
