"""Circuit breakers over HTTP."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import pytest
from api import House, house_of

from dutiful import Dutiful


@pytest.fixture
async def house(app: Dutiful) -> AsyncIterator[House]:
    async with house_of(app) as house:
        yield house


@pytest.mark.req("L75", "L90", "L91")
async def test_a_breaker_is_opened_listed_and_reset(house: House) -> None:
    assert (await house.get("/admin/breakers/")).json() == {"breakers": []}
    assert (await house.post("/admin/breakers/maps%2Feurope/reset/")).status_code == 404

    moving = {"open_for": "10m", "reason": "moving it"}
    unknown = await house.post("/admin/breakers/maps%2Feurope/open/", moving)
    assert unknown.status_code == 422 and "there is no breaker 'maps/europe'" in unknown.json()["detail"]
    assert (await house.get("/admin/breakers/")).json() == {"breakers": []}
    answer = await house.post("/admin/breakers/maps%2Feurope/open/", {**moving, "new": True})
    opened = answer.json()
    assert (answer.status_code, opened["name"], opened["state"]) == (200, "maps/europe", "open")
    (listed,) = (await house.get("/admin/breakers/")).json()["breakers"]
    assert (listed["state"], listed["trips"], listed["failures_allowed"], listed["kinds"]) == ("open", 0, 5, [])
    lasts = datetime.fromisoformat(listed["open_until"]) - datetime.fromisoformat(listed["opened_at"])
    assert lasts == timedelta(minutes=10)

    closed = (await house.post("/admin/breakers/maps%2Feurope/reset/", {"reason": "it is back"})).json()
    assert closed == {"name": "maps/europe", "state": "closed", "open_until": None}
    acts = await house.audit(action="breaker.")
    assert {(event.action, event.reason) for event in acts if event.outcome == "succeeded"} == {
        ("breaker.open", "moving it"),
        ("breaker.reset", "it is back"),
    }


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_time_that_makes_no_sense_is_refused(house: House) -> None:
    for open_for in ("soon", "0s", "9999d", ""):
        answer = await house.post("/admin/breakers/maps/open/", {"open_for": open_for, "new": True})
        assert answer.status_code == 422, answer.text
        assert answer.json()["detail"].count("open_for") == 1 and "timedelta" not in answer.json()["detail"]
    assert (await house.get("/admin/breakers/")).json() == {"breakers": []}
