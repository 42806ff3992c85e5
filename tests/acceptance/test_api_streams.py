"""Streams of the admin API: they are taken up again where they ended, and end with the right to read them."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from api import House, house_of, public

from dutiful import Dutiful
from dutiful.operator import Operator
from dutiful.web import Role, create_app
from dutiful.web.api import status
from dutiful.web.limits import Streams
from dutiful.web.problems import Problem

SQLITE = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)


@pytest.fixture
async def house(app: Dutiful) -> AsyncIterator[House]:
    async with house_of(app) as house:
        yield house


@SQLITE
async def test_a_reader_who_comes_back_with_the_last_id_misses_nothing(house: House) -> None:
    async def read(until: str, headers: dict[str, str] | None = None) -> str:
        return (await house.follow("/admin/events/", "manager", until, headers))[2]

    reading = asyncio.create_task(read("enqueued"))
    while not reading.done():
        await house.app.enqueue("greet", {"name": "Ada"}, delay="1h")
        await asyncio.wait([reading], timeout=0.2)
    said = reading.result()
    told = set(re.findall(r'"job_id":"(\w{7}(?:-\w{7}){3})"', said)) & {public(j.id) for j in await house.app.jobs()}
    assert told and "public_id" not in said, "a job has one id in this API"
    last = re.findall(r"^id: (.+)$", said, re.MULTILINE)[-1]
    missed = await house.app.enqueue("greet", {"name": "while away"}, delay="1h")
    assert public(missed.id) in await read(public(missed.id), {"last-event-id": last})


@SQLITE
async def test_a_stream_ends_when_its_token_is_revoked(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LOOK", 0.0)
    root = Operator(house.client, "root")
    token, house.tokens["leaked"] = await root.create_token("leaked", Role.MANAGER)
    reading = asyncio.create_task(house.follow("/admin/events/", "leaked", "never"))
    for said in ("before", "after"):
        job = await house.app.enqueue("greet", {"name": said}, delay="1h")
        await house.follow(f"/{public(job.id)}/events", "manager", "snapshot")
        if said == "before":
            await root.revoke_token(token.id)
    while not reading.done():
        await house.app.enqueue("greet", {"name": "secret"}, delay="1h")
        await asyncio.wait([reading], timeout=0.2)
    assert reading.result()[0] == 200, "it had begun, and it has ended by itself"


def test_streams_are_counted_by_address() -> None:
    streams = Streams(most=2)
    streams.begin("a")
    streams.begin("a")
    streams.begin("b")
    with pytest.raises(Problem) as refused:
        streams.begin("a")
    assert refused.value.status == 429
    streams.end("a")
    streams.begin("a")


@SQLITE
async def test_a_stream_that_has_ended_or_never_began_counts_no_more(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "LIFE", -1.0)
    monkeypatch.setattr(Streams.__init__, "__defaults__", (1,))
    api = create_app(house.app)
    monkeypatch.setattr(house, "api", api)
    one, theirs = public(house.waiting["acme"]), public(house.waiting["globex"])
    for _ in range(3):
        assert (await house.follow(f"/{one}/events", "acme viewer", "never"))[0] == 200
        assert (await house.follow(f"/{theirs}/events", "acme viewer", "never"))[0] == 404


@SQLITE
async def test_a_foreign_tenants_events_are_refused_like_its_lists(house: House) -> None:
    assert (await house.get("/admin/events/?tenant=globex", "acme manager")).status_code == 403
