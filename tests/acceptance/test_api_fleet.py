"""What the command line can do to a fleet, over HTTP."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from api import AdminApi, admin_api, eventually, public

from dutiful import Dutiful


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app) as admin:
        yield admin


async def test_queues_kinds_and_lanes_are_paused_and_go_on(admin: AdminApi) -> None:
    async with admin.app.embedded(grace="5s"):
        (worker,) = [one for one in (await admin.get("/admin/workers/")).json()["workers"] if one["alive"]]
        assert "greet" in worker["kinds"]
        lanes = {lane["lane"]: lane for lane in (await admin.get("/admin/lanes/")).json()["lanes"]}
        assert (lanes["general"]["slots"], lanes["fast"]["queues"]) == (5, ["fast"])
    for changed in (True, False):
        answer = (await admin.post("/admin/pauses/queue/default/pause/", {"reason": "mail is down"})).json()
        assert answer == {"scope": "queue", "name": "default", "paused": True, "changed": changed}
    (paused,) = (await admin.get("/admin/pauses/")).json()["pauses"]
    assert (paused["scope"], paused["name"], paused["by"]) == ("queue", "default", "manager")
    assert (await admin.get("/admin/queues/")).json()["queues"][0]["paused"] is True
    assert (await admin.post("/admin/pauses/queue/default/resume/")).json()["changed"] is True
    assert (await admin.get("/admin/pauses/")).json() == {"pauses": []}
    assert len(await admin.audit(action="queue.pause")) == 4, "each when it was asked for and when it was done"


async def test_schedules_and_webhooks_are_disabled_enabled_and_removed_by_name(admin: AdminApi) -> None:
    async def enabled(group: str) -> Any:
        (one,) = (await admin.get(f"/admin/{group}/")).json()[group]
        return one["enabled"]

    assert (await admin.get("/admin/webhooks/")).json()["webhooks"][0]["url"] == "https://shop.example.com"
    for group, name in (("schedules", "reports%2Fnightly"), ("webhooks", "shop")):
        assert await enabled(group)
        assert (await admin.post(f"/admin/{group}/{name}/disable/", {"reason": "moving"})).status_code == 200
        assert not await enabled(group)
        assert (await admin.post(f"/admin/{group}/{name}/enable/")).json()["enabled"] is True
        assert await enabled(group)
        assert (await admin.post(f"/admin/{group}/nothing/disable/")).status_code == 404
        assert (await admin.post(f"/admin/{group}/{name}/remove/")).json()["removed"] is True
        assert (await admin.get(f"/admin/{group}/")).json()[group] == []


async def test_a_message_to_a_webhook_is_listed_and_posted_again_only_when_it_has_ended(admin: AdminApi) -> None:
    await admin.post(f"/admin/jobs/{public(admin.waiting['acme'])}/cancel/")
    (post,) = (await admin.get("/admin/webhooks/posts/?state=pending")).json()["posts"]
    assert (post["webhook"], post["event"], post["job_id"]) == ("shop", "job.cancelled", public(admin.waiting["acme"]))
    assert (await admin.post(f"/admin/webhooks/posts/{post['id']}/redeliver/")).status_code == 404
    await admin.post("/admin/webhooks/shop/disable/")  # which gives it up
    again = await admin.post(f"/admin/webhooks/posts/{post['id']}/redeliver/")
    assert (again.status_code, again.json()["id"]) == (200, post["id"])


async def test_the_trail_is_read_in_pages_and_verified(admin: AdminApi) -> None:
    for letters in admin.dead.values():
        for one in letters:
            await admin.post(f"/admin/dlq/{public(one)}/acknowledge/", {"notes": "seen"})
    seen: list[str] = []
    cursor = ""
    while True:
        page = (await admin.get(f"/admin/audit/?action=dead_letter.&limit=3{cursor}")).json()
        seen += [event["id"] for event in page["events"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert len(seen) == len(set(seen)) == 8 and seen == sorted(seen, reverse=True)

    async def sealed() -> bool:
        reported = (await admin.get("/admin/audit/verify/")).json()
        assert reported["whole"], reported
        return bool(reported["checked"] >= 8 and reported["unsealed"] == 0)

    async with admin.app.embedded(grace="5s"):
        await eventually(sealed)
    reported = (await admin.get("/admin/audit/verify/")).json()
    head = f"{reported['head_seq']}:{reported['head_hash']}"
    for expected, whole in ((head, True), (f"{reported['head_seq']}:{'0' * 64}", False), (f"9{head}", False)):
        assert (await admin.get(f"/admin/audit/verify/?expected={expected}")).json()["whole"] is whole, expected
    assert (await admin.get("/admin/audit/verify/?expected=head")).status_code == 422
