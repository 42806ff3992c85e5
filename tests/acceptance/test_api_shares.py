"""Fair shares over HTTP."""

from collections.abc import AsyncIterator

import pytest
from api import AdminApi, admin_api

from dutiful import Dutiful


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app) as admin:
        yield admin


async def test_a_weight_is_set_and_listed(admin: AdminApi) -> None:
    assert (await admin.get("/admin/shares/")).json() == {"shares": []}
    answer = await admin.post("/admin/shares/acme%2Feurope/set/", {"weight": 5, "reason": "their contract"})
    item = {"tenant": "acme/europe", "weight": 5, "running": 0}
    assert (answer.status_code, answer.json()) == (200, item)
    assert (await admin.get("/admin/shares/")).json() == {"shares": [item]}
    assert (await admin.post("/admin/shares/acme%2Feurope/set/", {})).json()["weight"] == 1
    (event,) = [e for e in await admin.audit(action="share.set") if e.outcome == "succeeded" and e.reason]
    assert (event.target, event.before, event.after) == ("acme/europe", {"weight": 1}, {"weight": 5})


async def test_a_weight_below_one_is_refused(admin: AdminApi) -> None:
    refused = await admin.post("/admin/shares/acme/set/", {"weight": 0})
    assert refused.status_code == 422 and "weight" in refused.json()["detail"]
