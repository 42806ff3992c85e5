"""The API within an application: what its authentication says, where its pages are, what else lives there."""

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from api import AdminApi, admin_api, public
from fastapi import FastAPI, HTTPException, Request

from dutiful import Dutiful
from dutiful.core.errors import UsageError
from dutiful.web import Principal, Role, create_app, router
from dutiful.web.limits import address_of, bucket_of, read_networks

pytestmark = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app) as admin:
        yield admin


@asynccontextmanager
async def hosted(
    admin: AdminApi, authenticate: Callable[[Request], Any], **options: Any
) -> AsyncIterator[Callable[..., Awaitable[httpx2.Response]]]:
    host = FastAPI()
    host.include_router(router(admin.app, authenticate=authenticate, **options))
    transport = httpx2.ASGITransport(app=host, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as http:
        yield http.request


async def test_a_password_that_a_browser_sends_by_itself_gives_other_sites_no_access(admin: AdminApi) -> None:
    def basic(request: Request) -> Principal | None:
        known = request.headers.get("authorization", "").startswith("Basic ")
        return Principal(name="ada", role=Role.MANAGER) if known else None

    path = f"/api/jobs/admin/dlq/{public(admin.dead['acme'][0])}/acknowledge/"
    forged = {"authorization": "Basic YWRhOng=", "sec-fetch-site": "cross-site", "origin": "https://evil.example"}
    async with hosted(admin, basic, allowed_origins=["https://admin.example.com"]) as ask:
        assert (await ask("POST", path, headers=forged)).status_code == 403
        theirs = {**forged, "origin": "https://admin.example.com"}
        assert (await ask("POST", path, headers=theirs)).status_code == 200, "the host allows that one"
        token = {**forged, "authorization": f"Bearer {admin.tokens['manager']}"}
        assert (await ask("POST", path, headers=token)).status_code == 409, "no browser sends a token by itself"


async def test_what_the_host_says_of_its_user_is_read_once(admin: AdminApi, caplog: pytest.LogCaptureFixture) -> None:
    given: dict[str, Any] = {}
    async with hosted(admin, lambda _: Principal(**given)) as ask:
        for said in ({"role": "manager"}, {"role": "manager", "tenant": 5}):
            given = {"name": "ada", **said}
            assert (await ask("GET", "/api/jobs/admin/dlq/")).status_code == 200, said
        for field, wrong in (
            ("role", {"role": "boss"}),
            ("tenant", {"tenant": "*"}),
            ("tenant", {"tenant": ""}),
            ("name", {"name": None}),
            ("name", {"name": "x" * 201}),
            ("name", {"name": "ada\nroot"}),
        ):
            given = {"name": "ada", "role": Role.MANAGER, **wrong}
            caplog.clear()
            with caplog.at_level(logging.ERROR, "dutiful.web"):
                answer = await ask("POST", f"/api/jobs/admin/dlq/{public(admin.dead['acme'][0])}/discard/")
            assert answer.status_code == 500 and answer.headers["content-type"] == "application/problem+json"
            assert "authenticate returned a Principal" in caplog.text and field in caplog.text, wrong


async def test_a_hosts_own_refusals_are_passed_on(admin: AdminApi) -> None:
    def deny(request: Request) -> Principal | None:
        raise HTTPException(int(request.headers["refuse-with"]), "log in first", headers={"location": "/login"})

    async with hosted(admin, deny) as ask:
        for status, reported in ((302, 302), (403, 403), (499, 499), (600, 500)):
            answer = await ask("GET", "/api/jobs/admin/dlq/", headers={"refuse-with": str(status)})
            assert (answer.status_code, answer.json()["status"]) == (reported, reported)


async def test_whatever_is_below_the_prefix_is_answered_with_a_problem(admin: AdminApi) -> None:
    async with hosted(admin, lambda _: None) as ask:
        for method, path, status in (("GET", "/no/such/thing", 404), ("PUT", "/admin/dlq/bulk", 405)):
            answer = await ask(method, f"/api/jobs{path}")
            assert answer.status_code == status and answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["allow"] == "GET, POST"


async def test_health_checks_come_before_jobs_and_answer_head(admin: AdminApi) -> None:
    transport = httpx2.ASGITransport(app=create_app(admin.app, prefix=""), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://here") as http:
        for path in ("/livez", "/readyz"):
            assert (await http.get(path)).json() == {"status": "ok"}
            assert (await http.head(path)).status_code == 200
    for prefix in ("/", "jobs", "/jobs/"):
        for make in (router, create_app):
            with pytest.raises(UsageError, match="prefix"):
                make(admin.app, prefix=prefix)


async def test_two_prefixes_in_one_application_have_operations_of_their_own(
    admin: AdminApi, recwarn: pytest.WarningsRecorder
) -> None:
    host = FastAPI()
    for prefix in ("/api/jobs", "/ops"):
        host.include_router(router(admin.app, prefix=prefix))
    named = [one["operationId"] for methods in host.openapi()["paths"].values() for one in methods.values()]
    assert len(named) == len(set(named)) and {"list_dead_letters", "ops_list_dead_letters"} < set(named)
    assert not [one for one in recwarn if "operation" in str(one.message).lower()]


async def test_an_ipv4_client_is_the_same_however_its_address_is_written(admin: AdminApi) -> None:
    assert bucket_of("::ffff:1.2.3.4") == bucket_of("1.2.3.4") != bucket_of("::ffff:9.9.9.9")
    request = Request(
        {"type": "http", "client": ("::ffff:10.0.0.7", 1), "headers": [(b"x-forwarded-for", b"::ffff:1.2.3.4")]}
    )
    assert address_of(request, read_networks(["10.0.0.0/8"])) == "1.2.3.4"


async def test_the_description_is_encoded_once_because_it_needs_no_token(admin: AdminApi) -> None:
    here = create_app(admin.app)
    made: list[object] = []
    whole = here.openapi

    def counted() -> dict[str, Any]:
        made.append(None)
        return whole()

    here.openapi = counted  # type: ignore[method-assign]
    host = FastAPI()
    host.mount("/ours", here)
    for application, path, servers in ((here, "", None), (here, "", None), (host, "/ours", [{"url": "/ours"}])):
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(application), base_url="http://here") as http:
            answer = await http.get(f"{path}/api/jobs/openapi.json")
        assert answer.headers["content-type"] == "application/json"
        described = answer.json()
        assert described.pop("servers", None) == servers
        assert described == json.loads(json.dumps(whole()))
    assert len(made) == 1
