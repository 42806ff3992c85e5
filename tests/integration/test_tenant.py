"""One tenant's view of an app, on both stores: nothing of another tenant is visible there."""

from typing import Any
from uuid import UUID

import pytest
from operating import BROKEN, now
from running_workers import final, working

from dutiful import Dutiful, Retry, Rules
from dutiful.core.errors import JobNotFound, PayloadInvalid, UsageError
from dutiful.core.outcome import Failed
from dutiful.core.states import State
from dutiful.kind import Kind
from dutiful.operator import Operator
from dutiful.operator.explain import Why
from dutiful.store.dead_letters import DeadLetterFilter
from dutiful.tenant import Tenant
from suite.builders import claim, settle


@pytest.fixture
def greet(app: Dutiful) -> Kind[Any, Any]:
    @app.job
    async def greet(name: str = "Ada") -> str:
        return f"Hello {name}"

    return greet


@pytest.mark.req("W67")
async def test_a_view_has_its_own_jobs_and_no_others(app: Dutiful, greet: Kind[Any, Any]) -> None:
    acme, globex = app.tenant("acme"), app.tenant("globex")
    own = await acme.enqueue("greet", {"name": "Ann"})
    theirs = await globex.enqueue(greet, {"name": "Bob"})
    await greet.enqueue()

    assert [job.id for job in await acme.jobs()] == [own.id]
    assert await acme.find(own.public_id) is not None
    assert await acme.snapshot(own.id) is not None
    assert await acme.find(theirs.id) is None
    assert await acme.snapshot(theirs.id) is None
    for ask in (
        acme.cancel(theirs.id),
        acme.result(theirs.id),
        acme.enqueue(greet, depends_on=[theirs.id]),
        _watch(acme, theirs.id),
    ):
        with pytest.raises(JobNotFound):
            await ask
    assert await acme.cancel(own.id)
    record = await globex.find(theirs.id)
    assert record is not None
    assert (record.state, record.tenant) == (State.READY, "globex")


async def _watch(view: Tenant, job_id: UUID) -> None:
    async with view.events(job_id) as stream:
        async for _ in stream:
            return


@pytest.mark.req("W27", "W67")
async def test_a_key_of_one_tenant_is_free_for_another(app: Dutiful, greet: Kind[Any, Any]) -> None:
    first = await app.tenant("acme").enqueue(greet, unique="k")
    second = await app.tenant("globex").enqueue(greet, unique="k")
    again = await app.tenant("acme").enqueue(greet, unique="k")

    assert (first.created, second.created, again.created, again.id) == (True, True, False, first.id)


@pytest.mark.req("W67")
async def test_an_id_that_is_another_tenants_gives_no_handle(app: Dutiful, greet: Kind[Any, Any]) -> None:
    theirs = await app.tenant("globex").enqueue(greet)

    with pytest.raises(UsageError, match="take another"):
        await app.tenant("acme").enqueue(greet, id=theirs.id)


@pytest.mark.req("W67")
async def test_a_view_has_its_own_dead_letters_and_no_others(app: Dutiful, greet: Kind[Any, Any]) -> None:
    acme, globex = app.tenant("acme"), app.tenant("globex")
    own, theirs = await acme.enqueue(greet), await globex.enqueue(greet)
    store = (await app.client()).store
    for claimed in await claim(store, now=now(), kinds=["greet"]):
        await settle(store, claimed, Failed(BROKEN, final=True), now=now())

    assert [letter.id for letter in await acme.dead_letters()] == [own.id]
    assert await acme.dead_letter(own.id) is not None
    assert await acme.dead_letter(theirs.id) is None
    with pytest.raises(UsageError, match="the view of 'acme'"):
        await acme.dead_letters(DeadLetterFilter(tenant="globex"))
    with pytest.raises(UsageError, match="the view of 'acme'"):
        await acme.jobs(tenant="globex")


async def test_a_view_enqueues_for_no_other_tenant(app: Dutiful, greet: Kind[Any, Any]) -> None:
    with pytest.raises(UsageError, match="the view of 'acme'"):
        await app.tenant("acme").enqueue(greet, tenant="globex")


async def test_where_every_job_has_a_tenant_one_without_is_refused(app: Dutiful, greet: Kind[Any, Any]) -> None:
    app.configure(tenants=True)

    for ask in (greet.enqueue(), app.enqueue("greet"), greet.enqueue_many([{}])):
        with pytest.raises(PayloadInvalid, match="option tenant is missing") as refused:
            await ask
        assert refused.value.field == "tenant"
    with pytest.raises(UsageError, match="option tenant is missing"):
        app.schedule(greet, every="1h")

    assert (await app.tenant("acme").enqueue(greet)).created
    assert len(await app.jobs()) == 1


async def test_where_every_job_has_a_tenant_one_that_came_by_another_way_is_not_run(
    app: Dutiful, greet: Kind[Any, Any]
) -> None:
    job = await greet.enqueue()  # as by SQL, where the setting has no effect
    await app.close()
    app.configure(tenants=True)

    async with working(app):
        record = await final(app, job)
    assert (record.state, record.attempt) == (State.FAILED, 1)
    assert record.error is not None and "option tenant is missing" in record.error["message"]


@pytest.mark.req("W22")
async def test_a_worker_of_one_tenant_leaves_the_jobs_of_others_alone(app: Dutiful, greet: Kind[Any, Any]) -> None:
    app.configure(claim_tenants=["acme"])
    theirs = await app.tenant("globex").enqueue(greet)
    untenanted = await greet.enqueue()
    own = [await app.tenant("acme").enqueue(greet, {"name": str(n)}) for n in range(3)]

    async with working(app):
        assert [(await final(app, job)).state for job in own] == [State.COMPLETED] * 3

        why = await Operator(await app.client()).jobs.explain(theirs.id)
        assert (why.code, "not of its own, 'globex'" in why.sentence) == (Why.TENANT_UNSERVED, True)
    for job in (theirs, untenanted):
        assert (await job.record()).state is State.READY


@pytest.mark.req("W67")
async def test_a_job_of_one_tenant_makes_none_of_another_by_its_payload(app: Dutiful) -> None:
    @app.job(rules=Rules(required=["tenant_id"], tenant="tenant_id"))
    async def child() -> None: ...

    @app.job(retry=Retry(max_attempts=1))
    async def parent(tenant_id: str, meant: bool = False) -> str:
        options = {"tenant": tenant_id} if meant else {}
        return str((await app.enqueue("child", {"tenant_id": tenant_id}, **options)).id)

    flow = app.pipeline("flow", retry=Retry(max_attempts=1))

    @flow.phase
    async def only(tenant_id: str) -> None:
        await app.enqueue("child", {"tenant_id": tenant_id})

    acme = app.tenant("acme")
    async with working(app):
        for kind in (parent, flow):
            refused = await acme.enqueue(kind, {"tenant_id": "globex"})
            record = await final(app, refused)
            assert record.state is State.FAILED
            assert record.errors is not None
            assert "another tenant" in record.errors[-1]["message"]
        own = await acme.enqueue(parent, {"tenant_id": "acme"})
        meant = await acme.enqueue(parent, {"tenant_id": "globex", "meant": True})
        await own.result(10)
        await meant.result(10)

    assert len(await app.jobs(kind="child", tenant="acme")) == 1
    assert len(await app.jobs(kind="child", tenant="globex")) == 1
    with pytest.raises(UsageError, match="not what the payload says"):
        app.schedule(child, every="1h", payload={"tenant_id": "globex"}, tenant="acme")
