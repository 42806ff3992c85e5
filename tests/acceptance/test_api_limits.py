"""Limits over HTTP."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from api import AdminApi, admin_api

from dutiful import Dutiful
from dutiful.core.limits import KindLimit, Limit


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app) as admin:
        yield admin


async def test_a_limit_is_listed_and_set(admin: AdminApi) -> None:
    assert (await admin.get("/admin/limits/")).json() == {"limits": []}
    limit = Limit("calls/europe", 100, per=timedelta(minutes=1), burst=10)
    await admin.client.store.limits.put({"call": [KindLimit(limit)]})

    (listed,) = (await admin.get("/admin/limits/")).json()["limits"]
    assert listed == {
        "name": "calls/europe", "most": 100, "declared": 100, "per_seconds": 60.0, "burst": 10, "window": "sliding",
        "kinds": ["call"], "used": 0, "waiting": 0, "feedback": False, "keys": [],
    }  # fmt: skip

    answer = await admin.post("/admin/limits/calls%2Feurope/set/", {"most": 5, "reason": "they asked for it"})
    assert (answer.status_code, answer.json()["most"], answer.json()["declared"]) == (200, 5, 100)
    assert (await admin.post("/admin/limits/calls%2Feurope/set/", {})).json()["most"] == 100
    (event,) = [e for e in await admin.audit(action="limit.set") if e.outcome == "succeeded" and e.reason]
    assert (event.target, event.before, event.after) == (
        "calls/europe",
        {"most": 100, "declared": 100},
        {"most": 5, "declared": 100},
    )


async def test_an_unknown_limit_and_a_number_below_none_are_refused(admin: AdminApi) -> None:
    assert (await admin.post("/admin/limits/calls/set/", {"most": 1})).status_code == 404
    refused = await admin.post("/admin/limits/calls/set/", {"most": -1})
    assert refused.status_code == 422 and "most" in refused.json()["detail"]
