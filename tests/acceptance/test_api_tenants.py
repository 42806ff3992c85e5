"""The admin API where Postgres itself keeps tenants apart, served by a role of the group operator."""

from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
import test_api_admission as gates
from api import AdminApi, admin_api, kinds

from databases import Postgres
from dutiful import Dutiful
from dutiful.operator import Operator
from dutiful.web import Role, create_app
from dutiful.web.api import status
from tenanted import World, isolated

pytestmark = pytest.mark.req("W67")


@pytest.fixture(scope="module")
def world(postgres18: Postgres) -> Iterator[World]:
    with isolated(postgres18, "dutiful_tenants_api") as found:
        yield found


@pytest.fixture
async def admin(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AdminApi]:
    """Its jobs are run by a worker, and asked about at a server, each with its own role."""
    monkeypatch.setattr(status, "LIFE", -1.0)
    served = Dutiful(world.roles.url("operator"), schema=world.schema)
    kinds(served)
    async with served, admin_api(Dutiful(world.roles.url("worker"), schema=world.schema), by=served) as admin:
        admin.api = create_app(served, trusted_proxies=["127.0.0.1"])
        transport = httpx2.ASGITransport(app=admin.api, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as admin.http:
            await gates.start_runs(admin)
            yield admin


async def test_nothing_of_another_tenant_exists_for_a_tenants_manager(admin: AdminApi) -> None:
    await gates.test_nothing_of_another_tenant_exists_for_a_tenants_manager(admin)


async def test_a_server_that_runs_goes_on_when_tenants_are_switched_on(world: World) -> None:
    async with (
        world.store("owner") as owner,
        Dutiful(world.roles.url("operator"), schema=world.schema) as app,
    ):
        await owner.tenants.disable()
        transport = httpx2.ASGITransport(app=create_app(app), raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as http:
            _, secret = await Operator(await app.client(), "root").tokens.create("ada", Role.MANAGER, "acme")
            token = {"authorization": f"Bearer {secret}"}
            for switch in (owner.tenants.enable, owner.tenants.disable, owner.tenants.enable):
                await switch()
                answer = await http.get("/api/jobs/admin/queue/", headers=token)
                assert answer.status_code == 200, answer.text
                assert {job["tenant"] for job in answer.json()["jobs"]} == {"acme"}
                assert (await http.get("/readyz")).status_code == 200
