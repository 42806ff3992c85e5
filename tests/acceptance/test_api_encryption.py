"""Encryption over HTTP: keys are counted and rotated, and a sealed job is opened for those who may, on record."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from api import AdminApi, admin_api, public
from uuid_utils.compat import uuid7

from dutiful import Dutiful, KeyRing
from dutiful.core.errors import DataRefused
from dutiful.operator import encryption as operations
from dutiful.web.api import encryption as served

OLD, NEW = {"old": b"o" * 32}, {"new": b"n" * 32}


@pytest.fixture
async def admin(app_url: str) -> AsyncIterator[AdminApi]:
    async with admin_api(Dutiful(app_url, encryption=KeyRing(OLD))) as admin:
        yield admin


def give_keys(admin: AdminApi, *rings: dict[str, bytes]) -> None:
    """Gives the server other keys, or none."""
    keys = {name: key for ring in rings for name, key in ring.items()}
    admin.app._own_ring = KeyRing(keys) if keys else None


async def counted(admin: AdminApi, who: str = "manager") -> dict[str, int]:
    """How many values each key has, added up over all answers."""
    found: dict[str, int] = {}
    cursor: str | None = None
    while True:
        answer = await admin.get("/admin/encryption/", who, params={} if cursor is None else {"cursor": cursor})
        assert answer.status_code == 200, answer.text
        for use in answer.json()["keys"]:
            found[use["key"]] = found.get(use["key"], 0) + use["values"]
        if (cursor := answer.json()["next_cursor"]) is None:
            return found


async def rotated(admin: AdminApi) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    while not answers or answers[-1]["next_cursor"] is not None:
        asked = {"reason": "yearly"} | ({"cursor": answers[-1]["next_cursor"]} if answers else {})
        answer = await admin.post("/admin/encryption/rotate/", asked, "admin")
        assert answer.status_code == 200, answer.text
        answers.append(answer.json())
    return answers


async def test_keys_are_counted_and_rotated_in_parts(admin: AdminApi, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await counted(admin)
    assert set(before) == {"old"} and before["old"] >= 8
    monkeypatch.setattr(operations, "PAGE", 3)
    monkeypatch.setattr(served, "WITHIN", timedelta(0))
    assert await counted(admin) == before, "in many answers"

    give_keys(admin, NEW, OLD)
    answers = await rotated(admin)

    assert len(answers) > 20 and {answer["key"] for answer in answers} == {"new"}
    assert sum(answer["rows"] for answer in answers) >= 8
    assert not any(answer["unreadable"] or answer["written_meanwhile"] for answer in answers)
    assert await counted(admin) == {"new": before["old"]}
    events = await admin.audit(action="encryption.rotate")
    assert {(e.principal, e.role, e.origin, e.target, e.reason) for e in events} == {
        ("admin", "admin", "api", "new", "yearly")
    }


async def test_values_whose_key_this_server_lacks_are_named(admin: AdminApi) -> None:
    give_keys(admin, NEW)
    (answer,) = await rotated(admin)
    assert answer["rows"] == 0 and answer["unreadable"] == await counted(admin)
    refused = await admin.post(f"/admin/jobs/{public(admin.done['acme'])}/open/")
    assert refused.status_code == 409
    assert "sealed with the key 'old', which is not in the ring here (new)" in refused.json()["detail"]


async def test_only_admins_of_all_tenants_rotate_and_managers_of_all_count(admin: AdminApi) -> None:
    for who, status in (("manager", 403), ("acme admin", 403), ("viewer", 403), (None, 401)):
        assert (await admin.post("/admin/encryption/rotate/", {}, who)).status_code == status, who
    for who, status in (("acme manager", 403), ("staff", 403), ("manager", 200), (None, 401)):
        assert (await admin.get("/admin/encryption/", who)).status_code == status, who
    refused = await admin.audit(action="encryption.rotate")
    assert {(event.principal, event.outcome) for event in refused} == {
        (who, "refused") for who in ("manager", "acme admin", "viewer")
    }


async def test_a_sealed_job_is_opened_for_those_who_may_and_on_record(admin: AdminApi) -> None:
    path = f"/admin/jobs/{public(admin.done['acme'])}/"
    assert "acme-secret" not in (await admin.get(path)).text

    opened = await admin.post(f"{path}open/", {"reason": "asked by the customer"}, "acme manager")

    assert opened.status_code == 200 and opened.headers["cache-control"] == "no-store"
    assert opened.json()["payload"] == {"name": "acme-secret"}
    assert opened.json()["result"] == "Hello acme-secret"
    dead = await admin.post(f"/admin/jobs/{public(admin.dead['acme'][0])}/open/", who="admin")
    assert dead.json()["errors"][0]["message"] == "connection 456 is closed"
    events = await admin.audit(action="job.open", principal="acme manager")
    assert [(e.outcome, e.target, e.reason) for e in events] == [
        (outcome, public(admin.done["acme"]), "asked by the customer") for outcome in ("succeeded", "requested")
    ]
    assert "acme-secret" not in str(await admin.audit())


async def test_nobody_else_opens_it(admin: AdminApi) -> None:
    job = public(admin.done["acme"])
    for who, status in (("globex manager", 404), ("staff", 403), ("viewer", 403), ("acme viewer", 403), (None, 401)):
        answer = await admin.post(f"/admin/jobs/{job}/open/", who=who)
        assert answer.status_code == status and "acme-secret" not in answer.text, who
    assert (await admin.post(f"/admin/jobs/{public(uuid7())}/open/")).status_code == 404
    assert {event.outcome.value for event in await admin.audit(action="job.open")} == {"refused"}


async def test_a_server_without_keys_says_what_it_needs(admin: AdminApi) -> None:
    give_keys(admin)
    assert set(await counted(admin)) == {"old"}
    for path in (f"/admin/jobs/{public(admin.done['acme'])}/open/", "/admin/encryption/rotate/"):
        answer = await admin.post(path, {}, "admin")
        assert answer.status_code == 409
        assert "this process has no key: set encryption_keys" in answer.json()["detail"]
    for action in ("job.open", "encryption.rotate"):
        assert [event.outcome.value for event in await admin.audit(action=action)] == ["refused"]


async def test_a_cursor_of_another_list_and_a_login_that_may_not_are_refused(
    admin: AdminApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "WITHIN", timedelta(0))
    other = (await admin.get("/admin/encryption/")).json()["next_cursor"]
    for cursor in (other, "nonsense", other[:-1]):
        refused = await admin.post("/admin/encryption/rotate/", {"cursor": cursor}, "admin")
        assert refused.status_code == 422 and refused.json()["errors"][0]["field"] == "cursor"
        assert "give next_cursor of the previous page" in refused.json()["detail"]

    async def may_not(*_: Any) -> int:
        raise DataRefused("the database does not let this role do that")

    give_keys(admin, NEW, OLD)
    monkeypatch.setattr(served, "WITHIN", timedelta(seconds=10))
    monkeypatch.setattr(admin.client.store.encryption, "replace", may_not)
    refused = await admin.post("/admin/encryption/rotate/", {}, "admin")
    assert refused.status_code == 403 and "whose login owns the tables" in refused.json()["detail"]
