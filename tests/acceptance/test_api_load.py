"""The API under load: what one request, one client or one tenant can cost the others."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest
from annotated_types import MaxLen
from api import AdminApi, admin_api, eventually, public
from pydantic import BaseModel

from dutiful import Dutiful
from dutiful.web import shapes
from dutiful.web.limits import BURST, STREAMS
from dutiful.web.shapes import Ask

SQLITE = pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
MANY = 30_000


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app) as admin:
        yield admin


@SQLITE
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/admin/jobs/", {"kind": "greet", "payload": {"name": "Ada"}, **{f"f{n:05}": 1 for n in range(MANY)}}),
        ("/admin/dlq/bulk/preview/", {"act": "discard", "filter": {f"f{n:05}": 1 for n in range(MANY)}}),
        ("/admin/drain/", {"lanes": [1] * MANY}),
        ("/admin/drain/", {"lanes": 1, "x" * MANY: 1}),
        ("/admin/jobs/", {"kind": "fetch", "payload": {f"password{n}": "x" for n in range(400)}}),
        ("/admin/jobs/", {"kind": "fetch", "payload": {"connection_id": 1, **{f"f{n:03}": 1 for n in range(900)}}}),
    ],
)
async def test_a_body_full_of_errors_costs_no_more_than_one_with_a_few(
    admin: AdminApi, path: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    rephrase = shapes._problem

    def counted(*given: Any) -> Any:
        nonlocal made
        made += 1
        return rephrase(*given)

    monkeypatch.setattr(shapes, "_problem", counted)

    answer = await admin.post(path, body, "admin")

    assert answer.status_code == 422
    assert made <= 60, "an error costs time even if it is not shown"
    assert 1 <= len(answer.json()["errors"]) <= 21
    assert len(answer.content) < 10_000


@SQLITE
async def test_errors_beyond_the_first_twenty_are_counted(admin: AdminApi) -> None:
    answer = (await admin.post("/admin/jobs/", {"kind": "greet", **{f"f{n}": 1 for n in range(100)}})).json()

    assert [one["field"] for one in answer["errors"]] == [*(f"f{n}" for n in range(20)), "body"]
    assert answer["errors"][-1]["problem"] == "and 80 more fields that are unknown"
    assert answer["detail"].endswith("body: and 80 more fields that are unknown")


@SQLITE
async def test_a_tenant_behind_a_shared_address_does_not_lock_out_another(admin: AdminApi) -> None:
    """All requests of this test come from one address."""
    for _ in range(3 * BURST):
        assert (await admin.get("/admin/queue/", "wrong")).status_code in (401, 429)
    assert (await admin.get("/admin/queue/", "wrong")).status_code == 429
    theirs, ours = public(admin.waiting["acme"]), public(admin.waiting["globex"])
    held = [asyncio.create_task(admin.follow(f"/{theirs}/events", "acme viewer", "cancelled")) for _ in range(STREAMS)]
    watcher = admin.client.watcher
    await eventually(lambda: _is(len(watcher.streams) == STREAMS))

    assert (await admin.follow(f"/{theirs}/events", "acme viewer", "snapshot"))[0] == 429
    assert (await admin.get("/admin/queue/", "globex manager")).status_code == 200
    assert (await admin.follow(f"/{ours}/events", "globex viewer", "snapshot"))[0] == 200

    await admin.app.cancel(admin.waiting["acme"])
    assert {answer[0] for answer in await asyncio.gather(*held)} == {200}


async def _is(found: bool) -> bool:
    return found


def test_every_list_that_a_request_may_have_is_bounded() -> None:
    """A list has an error for each of its items, so one without a bound may have any number."""
    unbounded = [
        f"{ask.__name__}.{name}"
        for ask in _asks(Ask)
        for name, field in ask.model_fields.items()
        if "list[" in str(field.annotation) and not any(isinstance(one, MaxLen) for one in _marks(field))
    ]
    assert unbounded == []


def _asks(root: type[BaseModel]) -> list[type[BaseModel]]:
    return [one for below in root.__subclasses__() for one in (below, *_asks(below))]


def _marks(field: Any) -> list[Any]:
    return [*field.metadata, *(mark for one in get_args(field.annotation) for mark in getattr(one, "__metadata__", ()))]
