"""Streams of the admin API: they are taken up again where they ended, and end with the right to read them."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from api import AdminApi, admin_api, public

from dutiful import Dutiful
from dutiful.core.principal import Principal
from dutiful.operator import Operator
from dutiful.web import Role
from dutiful.web.api import status
from dutiful.web.limits import STREAMS, Streams
from dutiful.web.problems import Problem

SQLITE = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app) as admin:
        yield admin


@SQLITE
async def test_a_reader_who_comes_back_with_the_last_id_misses_nothing(admin: AdminApi) -> None:
    async def read(until: str, headers: dict[str, str] | None = None) -> str:
        return (await admin.follow("/admin/events/", "manager", until, headers))[2]

    reading = asyncio.create_task(read("enqueued"))
    while not reading.done():
        await admin.app.enqueue("greet", {"name": "Ada"}, delay="1h")
        await asyncio.wait([reading], timeout=0.2)
    said = reading.result()
    reported = set(re.findall(r'"job_id":"(\w{7}(?:-\w{7}){3})"', said)) & {
        public(j.id) for j in await admin.app.jobs()
    }
    assert reported and "public_id" not in said, "a job has one id in this API"
    last = re.findall(r"^id: (.+)$", said, re.MULTILINE)[-1]
    missed = await admin.app.enqueue("greet", {"name": "while away"}, delay="1h")
    assert public(missed.id) in await read(public(missed.id), {"last-event-id": last})


@SQLITE
async def test_a_stream_ends_when_its_token_is_revoked(admin: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "RECHECK", 0.0)
    root = Operator(admin.client, "root")
    token, admin.tokens["leaked"] = await root.tokens.create("leaked", Role.MANAGER)
    reading = asyncio.create_task(admin.follow("/admin/events/", "leaked", "never"))
    for said in ("before", "after"):
        job = await admin.app.enqueue("greet", {"name": said}, delay="1h")
        await admin.follow(f"/{public(job.id)}/events", "manager", "snapshot")
        if said == "before":
            await root.tokens.revoke(token.id)
    while not reading.done():
        await admin.app.enqueue("greet", {"name": "secret"}, delay="1h")
        await asyncio.wait([reading], timeout=0.2)
    assert reading.result()[0] == 200, "it had begun, and it has ended by itself"


def test_streams_are_counted_by_principal_and_tenant_and_not_by_address() -> None:
    streams, nat = Streams(of_one=2, of_tenant=3, in_all=7), "192.0.2.1"
    ada, bob = (Principal(name=name, role=Role.VIEWER, tenant="acme") for name in ("ada", "bob"))
    eve = Principal(name="ada", role=Role.VIEWER, tenant="globex")

    def refused(principal: Principal | None) -> tuple[int, str]:
        with pytest.raises(Problem) as caught:
            streams.begin(principal, nat)
        return caught.value.status, caught.value.detail

    ends = [streams.begin(ada, nat), streams.begin(ada, nat)]
    assert refused(ada) == (429, "2 streams are open in your name: close some, or follow several jobs in one")
    ends.append(streams.begin(bob, nat))
    assert refused(bob) == (429, "3 streams are open of your tenant: close some, or follow several jobs in one")
    ends += [streams.begin(eve, nat), streams.begin(eve, nat)]
    ends += [streams.begin(None, nat), streams.begin(None, nat)]
    assert refused(None)[0] == 429
    assert refused(Principal(name="root", role=Role.ADMIN))[0] == 503
    for end in ends:
        end()
    assert [streams.begin(ada, nat), streams.begin(ada, nat)]


@SQLITE
async def test_a_stream_that_has_ended_or_never_began_counts_no_more(
    admin: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "LIFE", -1.0)
    one, theirs = public(admin.waiting["acme"]), public(admin.waiting["globex"])
    for _ in range(STREAMS + 1):
        assert (await admin.follow(f"/{one}/events", "acme viewer", "never"))[0] == 200
        assert (await admin.follow(f"/{theirs}/events", "acme viewer", "never"))[0] == 404


@SQLITE
async def test_a_foreign_tenants_events_are_refused_like_its_lists(admin: AdminApi) -> None:
    assert (await admin.get("/admin/events/?tenant=globex", "acme manager")).status_code == 403
