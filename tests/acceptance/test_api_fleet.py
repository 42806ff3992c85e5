"""What the command line can do to a fleet, over HTTP."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from api import House, eventually, house_of, public

from dutiful import Dutiful


@pytest.fixture
async def house(app: Dutiful) -> AsyncIterator[House]:
    async with house_of(app) as house:
        yield house


async def test_queues_kinds_and_lanes_are_paused_and_go_on(house: House) -> None:
    async with house.app.embedded(grace="5s"):
        (worker,) = [one for one in (await house.get("/admin/workers/")).json()["workers"] if one["alive"]]
        assert "greet" in worker["kinds"]
        lanes = {lane["lane"]: lane for lane in (await house.get("/admin/lanes/")).json()["lanes"]}
        assert (lanes["general"]["slots"], lanes["fast"]["queues"]) == (5, ["fast"])
    for changed in (True, False):
        answer = (await house.post("/admin/pauses/queue/default/pause/", {"reason": "mail is down"})).json()
        assert answer == {"scope": "queue", "name": "default", "paused": True, "changed": changed}
    (paused,) = (await house.get("/admin/pauses/")).json()["pauses"]
    assert (paused["scope"], paused["name"], paused["by"]) == ("queue", "default", "manager")
    assert (await house.get("/admin/queues/")).json()["queues"][0]["paused"] is True
    assert (await house.post("/admin/pauses/queue/default/resume/")).json()["changed"] is True
    assert (await house.get("/admin/pauses/")).json() == {"pauses": []}
    assert len(await house.audit(action="queue.pause")) == 4, "each when it was asked for and when it was done"


async def test_schedules_and_webhooks_are_disabled_enabled_and_removed_by_name(house: House) -> None:
    async def enabled(group: str) -> Any:
        (one,) = (await house.get(f"/admin/{group}/")).json()[group]
        return one["enabled"]

    assert (await house.get("/admin/webhooks/")).json()["webhooks"][0]["url"] == "https://shop.example.com"
    for group, name in (("schedules", "reports%2Fnightly"), ("webhooks", "shop")):
        assert await enabled(group)
        assert (await house.post(f"/admin/{group}/{name}/disable/", {"reason": "moving"})).status_code == 200
        assert not await enabled(group)
        assert (await house.post(f"/admin/{group}/{name}/enable/")).json()["enabled"] is True
        assert await enabled(group)
        assert (await house.post(f"/admin/{group}/nothing/disable/")).status_code == 404
        assert (await house.post(f"/admin/{group}/{name}/remove/")).json()["removed"] is True
        assert (await house.get(f"/admin/{group}/")).json()[group] == []


async def test_a_message_to_a_webhook_is_listed_and_posted_again_only_when_it_has_ended(house: House) -> None:
    await house.post(f"/admin/jobs/{public(house.waiting['acme'])}/cancel/")
    (post,) = (await house.get("/admin/webhooks/posts/?state=pending")).json()["posts"]
    assert (post["webhook"], post["event"], post["job_id"]) == ("shop", "job.cancelled", public(house.waiting["acme"]))
    assert (await house.post(f"/admin/webhooks/posts/{post['id']}/redeliver/")).status_code == 404
    await house.post("/admin/webhooks/shop/disable/")  # which gives it up
    again = await house.post(f"/admin/webhooks/posts/{post['id']}/redeliver/")
    assert (again.status_code, again.json()["id"]) == (200, post["id"])


async def test_the_trail_is_read_in_pages_and_verified(house: House) -> None:
    for letters in house.dead.values():
        for one in letters:
            await house.post(f"/admin/dlq/{public(one)}/acknowledge/", {"notes": "seen"})
    seen: list[str] = []
    cursor = ""
    while True:
        page = (await house.get(f"/admin/audit/?action=dead_letter.&limit=3{cursor}")).json()
        seen += [event["id"] for event in page["events"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert len(seen) == len(set(seen)) == 8 and seen == sorted(seen, reverse=True)

    async def sealed() -> bool:
        told = (await house.get("/admin/audit/verify/")).json()
        assert told["whole"], told
        return bool(told["checked"] >= 8 and told["unsealed"] == 0)

    async with house.app.embedded(grace="5s"):
        await eventually(sealed)
    told = (await house.get("/admin/audit/verify/")).json()
    head = f"{told['head_seq']}:{told['head_hash']}"
    for expected, whole in ((head, True), (f"{told['head_seq']}:{'0' * 64}", False), (f"9{head}", False)):
        assert (await house.get(f"/admin/audit/verify/?expected={expected}")).json()["whole"] is whole, expected
    assert (await house.get("/admin/audit/verify/?expected=head")).status_code == 422
