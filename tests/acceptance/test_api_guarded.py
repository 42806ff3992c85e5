"""The admin API where Postgres itself keeps tenants apart, served by a role of the group application."""

from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
import test_api_gates as gates
from api import House, house_of, kinds

from databases import Postgres
from dutiful import Dutiful
from dutiful.operator import Operator
from dutiful.web import Role, create_app
from dutiful.web.api import status
from tenanted import World, guarded

pytestmark = pytest.mark.req("W67")


@pytest.fixture(scope="module")
def world(postgres18: Postgres) -> Iterator[World]:
    with guarded(postgres18, "dutiful_tenants_api") as found:
        yield found


@pytest.fixture
async def house(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    """Its jobs are run by a worker, and asked about at a server, each with its own role."""
    monkeypatch.setattr(status, "LIFE", -1.0)
    served = Dutiful(world.roles.url("application"), schema=world.schema)
    kinds(served)
    async with house_of(Dutiful(world.roles.url("worker"), schema=world.schema)) as house, served:
        house.api = create_app(served, trusted_proxies=["127.0.0.1"])
        transport = httpx2.ASGITransport(app=house.api, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as house.http:
            await gates.start_runs(house)
            yield house


async def test_nothing_of_another_tenant_exists_for_a_tenants_manager(house: House) -> None:
    await gates.test_nothing_of_another_tenant_exists_for_a_tenants_manager(house)


async def test_a_server_that_runs_goes_on_when_tenants_are_switched_on(world: World) -> None:
    async with (
        world.store("owner") as owner,
        Dutiful(world.roles.url("application"), schema=world.schema) as app,
    ):
        await owner.disable_tenants()
        transport = httpx2.ASGITransport(app=create_app(app), raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as http:
            _, secret = await Operator(await app.client(), "root").create_token("ada", Role.MANAGER, "acme")
            token = {"authorization": f"Bearer {secret}"}
            for switch in (owner.enable_tenants, owner.disable_tenants, owner.enable_tenants):
                await switch()
                answer = await http.get("/api/jobs/admin/queue/", headers=token)
                assert answer.status_code == 200, answer.text
                assert {job["tenant"] for job in answer.json()["jobs"]} == {"acme"}
                assert (await http.get("/readyz")).status_code == 200
