"""Circuit breakers over HTTP."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest
from api import AdminApi, admin_api

from dutiful import Dutiful


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app) as admin:
        yield admin


@pytest.mark.req("L75", "L90", "L91")
async def test_a_breaker_is_opened_listed_and_reset(admin: AdminApi) -> None:
    assert (await admin.get("/admin/breakers/")).json() == {"breakers": []}
    assert (await admin.post("/admin/breakers/maps%2Feurope/reset/")).status_code == 404

    moving = {"open_for": "10m", "reason": "moving it"}
    unknown = await admin.post("/admin/breakers/maps%2Feurope/open/", moving)
    assert unknown.status_code == 422 and "there is no breaker 'maps/europe'" in unknown.json()["detail"]
    assert (await admin.get("/admin/breakers/")).json() == {"breakers": []}
    answer = await admin.post("/admin/breakers/maps%2Feurope/open/", {**moving, "new": True})
    opened = answer.json()
    assert (answer.status_code, opened["name"], opened["state"]) == (200, "maps/europe", "open")
    (listed,) = (await admin.get("/admin/breakers/")).json()["breakers"]
    assert (listed["state"], listed["trips"], listed["failures_allowed"], listed["kinds"]) == ("open", 0, 5, [])
    lasts = datetime.fromisoformat(listed["open_until"]) - datetime.fromisoformat(listed["opened_at"])
    assert lasts == timedelta(minutes=10)

    closed = (await admin.post("/admin/breakers/maps%2Feurope/reset/", {"reason": "it is back"})).json()
    assert closed == {"name": "maps/europe", "state": "closed", "open_until": None}
    acts = await admin.audit(action="breaker.")
    assert {(event.action, event.reason) for event in acts if event.outcome == "succeeded"} == {
        ("breaker.open", "moving it"),
        ("breaker.reset", "it is back"),
    }


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_time_that_makes_no_sense_is_refused(admin: AdminApi) -> None:
    for open_for in ("soon", "0s", "9999d", ""):
        answer = await admin.post("/admin/breakers/maps/open/", {"open_for": open_for, "new": True})
        assert answer.status_code == 422, answer.text
        assert answer.json()["detail"].count("open_for") == 1 and "timedelta" not in answer.json()["detail"]
    assert (await admin.get("/admin/breakers/")).json() == {"breakers": []}
