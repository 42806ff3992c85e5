"""How one gets in: tokens, the host's own authentication, and what happens to those who guess."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from api import AdminApi, admin_api, eventually, public
from fastapi import FastAPI, Request

from dutiful import Dutiful
from dutiful.operator.dead_letters import DeadLetters
from dutiful.web import Principal, Role, router
from dutiful.web.limits import Failures, bucket_of

SQLITE = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app, trusted_proxies=["127.0.0.0/8"]) as admin:
        yield admin


@SQLITE
async def test_guessing_is_slowed_down_by_address_and_a_valid_token_still_opens(admin: AdminApi) -> None:
    async def guess(by: str) -> httpx2.Response:
        return await admin.get("/admin/dlq/", "guess", headers={"x-forwarded-for": by})

    for _ in range(20):
        assert (await guess("10.1.1.1")).status_code == 401
    limited = await guess("10.1.1.1")
    assert limited.status_code == 429 and 0 < int(limited.headers["retry-after"]) < 10
    assert (await guess("10.1.1.2")).status_code == 401, "another address"
    assert (await guess("10.1.1.1, 10.1.1.3")).status_code == 401, "what a client writes itself is not believed"
    assert (await guess("10.1.1.3, 10.1.1.1")).status_code == 429
    assert (await admin.get("/admin/dlq/", headers={"x-forwarded-for": "10.1.1.1"})).status_code == 200
    assert await admin.audit(principal="guess") == []


def test_failures_leak_with_time_and_are_forgotten_beyond_a_number() -> None:
    now = [0.0]
    failures = Failures(burst=3, per_second=0.5, most=2, clock=lambda: now[0])
    for _ in range(3):
        assert failures.wait("a") == 0
        failures.add("a")
    assert failures.wait("a") == 2
    now[0] = 2.0
    assert failures.wait("a") == 0
    failures.add("b")
    failures.add("c")
    assert len(failures) == 2 and failures.wait("a") == 0
    assert bucket_of("2001:db8::1") == bucket_of("2001:db8::2") != bucket_of("2001:db8:0:1::1")


@SQLITE
async def test_a_token_is_made_used_listed_and_revoked_and_its_secret_is_shown_once(admin: AdminApi) -> None:
    made = await admin.post("/admin/tokens/", {"name": "script", "role": "manager", "tenant": "acme"}, "admin")
    token = made.json()
    assert made.status_code == 201 and token["token"].startswith("dtf_")
    assert (await admin.get("/admin/dlq/", token["token"])).json()["total_count"] == 2

    async def seen() -> Any:
        listed = (await admin.get("/admin/tokens/", "admin")).json()["tokens"]
        return next(one["last_used_at"] for one in listed if one["id"] == token["id"])

    await eventually(seen)
    assert token["token"] not in (await admin.get("/admin/tokens/", "admin")).text
    assert token["token"] not in str(await admin.audit(action="token."))
    path = f"/admin/tokens/{token['id']}/revoke/"
    assert (await admin.post(path, {"reason": "lost"}, "admin")).json() == {"id": token["id"], "changed": True}
    assert (await admin.post(path, {}, "admin")).json()["changed"] is False
    assert (await admin.get("/admin/dlq/", token["token"])).status_code == 401


@SQLITE
async def test_what_is_done_with_a_token_is_on_record_with_its_name_role_and_address(admin: AdminApi) -> None:
    path = f"/admin/dlq/{public(admin.dead['acme'][0])}/acknowledge/"
    assert (await admin.post(path, who="acme manager", headers={"x-forwarded-for": "10.9.9.9"})).status_code == 200
    event = (await admin.audit(action="dead_letter.acknowledge"))[0]
    assert (event.principal, event.role, event.tenant) == ("acme manager", Role.MANAGER, "acme")
    assert (event.origin, event.address) == ("api", "10.9.9.9")


@SQLITE
async def test_answers_are_not_cached_and_their_types_are_not_guessed(admin: AdminApi) -> None:
    for path, who in (("/admin/dlq/", "manager"), ("/admin/dlq/", None), ("/admin/nothing/", None)):
        headers = (await admin.get(path, who)).headers
        assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
        assert "access-control-allow-origin" not in headers


@SQLITE
async def test_a_hosts_own_users_come_in_by_its_authentication_and_only_from_its_own_pages(admin: AdminApi) -> None:
    async def authenticate(request: Request) -> Principal | None:
        name = request.cookies.get("user")
        return Principal(name=name, role=Role.MANAGER, tenant="acme") if name else None

    host = FastAPI()
    host.include_router(router(admin.app, prefix="/shop/jobs", authenticate=authenticate))
    transport = httpx2.ASGITransport(app=host, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop", cookies={"user": "ada"}) as http:
        assert (await http.get("/shop/jobs/admin/dlq/")).json()["total_count"] == 2
        path = f"/shop/jobs/admin/dlq/{public(admin.dead['acme'][0])}/acknowledge/"
        for theirs in ({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "http://evil"}):
            assert (await http.post(path, headers=theirs)).status_code == 403
        own = await http.post(path, headers={"sec-fetch-site": "same-origin", "origin": "http://shop"})
        assert own.status_code == 200
        assert (await admin.audit(action="dead_letter.acknowledge"))[0].principal == "ada"
        http.cookies.clear()
        assert (await http.get("/shop/jobs/admin/dlq")).status_code == 401
        bearer = {"authorization": f"Bearer {admin.tokens['globex manager']}"}
        assert (await http.get("/shop/jobs/admin/dlq/", headers=bearer)).json()["total_count"] == 2


@SQLITE
async def test_an_unavailable_database_is_reported_as_such(admin: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    from dutiful.core.errors import StoreUnavailable

    async def away(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("connection to 10.0.0.5:5432 refused")

    assert (await admin.http.get("/livez")).json() == (await admin.http.get("/readyz")).json() == {"status": "ok"}
    monkeypatch.setattr(admin.client.store.control, "pauses", away)
    monkeypatch.setattr(admin.client.store.dead_letters, "search", away)
    for answer in (await admin.http.get("/readyz"), await admin.get("/admin/dlq/")):
        assert answer.status_code == 503 and answer.headers["retry-after"] == "2"
        assert "10.0.0.5" not in answer.text
    assert (await admin.http.get("/livez")).status_code == 200


@SQLITE
async def test_a_body_that_is_too_large_is_refused_before_it_is_read(admin: AdminApi) -> None:
    pulled = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal pulled
        while True:
            pulled += 1
            yield b" " * 65_536

    path = f"/admin/dlq/{public(admin.dead['acme'][0])}/discard/"
    headers = {"content-type": "application/json"}
    assert (await admin.post(path, content=endless(), headers=headers)).status_code == 413
    assert 1 < pulled < 12, "it stopped at the limit"
    pulled = 0
    large = headers | {"content-length": "1000000000000"}
    assert (await admin.post(path, content=endless(), headers=large)).status_code == 413
    assert pulled == 0, "the content length was enough"


@SQLITE
async def test_an_unexpected_error_is_reported_without_its_details(
    admin: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(DeadLetters, "search", broken)
    answer = await admin.get("/admin/dlq/")
    assert answer.status_code == 500 and "hunter2" not in answer.text


@SQLITE
async def test_a_secret_where_an_id_belongs_revokes_its_token_and_is_kept_nowhere(
    admin: AdminApi, caplog: pytest.LogCaptureFixture
) -> None:
    made = (await admin.post("/admin/tokens/", {"name": "script", "role": "viewer"}, "admin")).json()
    secret = made["token"]
    with caplog.at_level("INFO", "dutiful"):
        revoked = await admin.post(f"/admin/tokens/{secret}/revoke/", {"reason": f"{secret} is out"}, "admin")
        others = [
            await admin.post(f"/admin/tokens/{secret}x/revoke/", {}, "admin"),
            await admin.post(f"/admin/tokens/x{secret}/revoke/", {}, "admin"),
            await admin.post(f"/admin/jobs/{secret}/cancel/", {}),
            await admin.post(f"/admin/webhooks/{secret}/enable/", {}),
            await admin.post("/admin/tokens/", {"name": secret, "role": "viewer"}, "admin"),
            await admin.post(f"/admin/dlq/{public(admin.dead['acme'][0])}/acknowledge/", {"notes": f"with {secret}"}),
        ]
    assert revoked.json() == {"id": made["id"], "changed": True}
    assert [answer.status_code for answer in others] == [404, 422, 422, 404, 422, 200]
    assert secret not in others[1].text, "a malformed id is not repeated"
    assert secret not in str(await admin.audit()) and secret not in caplog.text
    assert secret not in (await admin.get("/admin/dlq/")).text


@SQLITE
async def test_a_user_cannot_forge_a_log_line_or_take_a_name_that_reads_as_another(
    admin: AdminApi, caplog: pytest.LogCaptureFixture
) -> None:
    forged = "x)\n2030-01-01 INFO dutiful.operator root: token.create evil"
    with caplog.at_level("INFO", "dutiful.operator"):
        await admin.post(f"/admin/jobs/{public(admin.waiting['acme'])}/cancel/", {"reason": forged})
    assert [len(record.getMessage().splitlines()) for record in caplog.records] == [1]
    for name in ("a\nb", "admin\u202eada", "a\tb"):
        refused = await admin.post("/admin/tokens/", {"name": name, "role": "viewer"}, "admin")
        assert refused.status_code == 422 and refused.json()["errors"][0]["field"] == "name"


@SQLITE
async def test_an_answer_or_a_body_that_takes_too_long_is_given_up(
    admin: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forever(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await forever()

    monkeypatch.setattr("dutiful.web.limits.BODY_TIME", 0.05)
    path, headers = f"/admin/dlq/{public(admin.dead['acme'][0])}/discard/", {"content-type": "application/json"}
    assert (await admin.post(path, content=slow(), headers=headers)).status_code == 408
    monkeypatch.setattr("dutiful.web.admission.DEADLINE", 0.05)
    monkeypatch.setattr(DeadLetters, "search", forever)
    assert (await admin.get("/admin/dlq/")).status_code == 503
