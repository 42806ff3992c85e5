"""The admin API as its users were promised it: dead letters and the queue, in the prescribed shapes."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from api import House, eventually, final, house_of, public

from dutiful import Dutiful, ErrorClass
from dutiful.core import ids
from dutiful.core.audit import AuditOutcome
from dutiful.core.error_info import made
from dutiful.core.outcome import Failed
from dutiful.testing.store_suite.builders import settle, start_one

ITEM = {
    "dlq_id", "tenant", "category", "job_type", "status", "idempotency_key", "correlation_id", "error_class",
    "error_message", "attempt_count", "original_created_at", "created_at",
}  # fmt: skip


@pytest.fixture
async def house(app: Dutiful) -> AsyncIterator[House]:
    async with house_of(app) as house:
        yield house


async def items(house: House, query: str = "", who: str = "manager") -> list[dict[str, Any]]:
    answer = await house.get(f"/admin/dlq/?{query}", who)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["dlq_items"]
    return found


@pytest.mark.req("W40", "W41", "W42")
async def test_dead_letters_are_listed_in_the_prescribed_shape_and_one_with_its_payload(house: House) -> None:
    page = (await house.get("/admin/dlq/", "acme manager")).json()
    assert (page["total_count"], page["next_cursor"], len(page["dlq_items"])) == (2, None, 2)
    newest = page["dlq_items"][0]
    assert set(newest) == ITEM
    record = await house.app.find(house.dead["acme"][1])
    assert record is not None
    told = {name: newest[name] for name in ITEM - {"original_created_at", "created_at"}}
    assert told == {
        "dlq_id": public(record.id),
        "tenant": "acme",
        "category": "ingestion",
        "job_type": "fetch",
        "status": "pending_review",
        "idempotency_key": "acme-457",
        "correlation_id": "of-acme",
        "error_class": "retryable",
        "error_message": "connection 457 is closed",
        "attempt_count": 1,
    }
    one = (await house.get(f"/admin/dlq/{newest['dlq_id']}", "acme manager")).json()
    assert {name: one[name] for name in ITEM} == newest
    assert one["payload"] == {"connection_id": 457}
    assert one["errors"][0]["message"] == "connection 457 is closed" and one["tenant"] == "acme"


@pytest.mark.req("W40")
async def test_pages_have_no_gap_and_no_repeat_and_filters_hold(house: House) -> None:
    first = (await house.get("/admin/dlq/?limit=3")).json()
    second = (await house.get(f"/admin/dlq/?limit=3&cursor={first['next_cursor']}")).json()
    seen = [item["dlq_id"] for page in (first, second) for item in page["dlq_items"]]
    assert second["next_cursor"] is None and first["total_count"] == second["total_count"] == 4
    assert sorted(seen) == sorted(public(one) for letters in house.dead.values() for one in letters)

    acme = [public(one) for one in reversed(house.dead["acme"])]
    for query, expected in (
        ("tenant=acme", acme),
        ("correlation_id=of-acme", acme),
        ("category=ingestion&tenant=acme", acme),
        ("job_type=fetch&tenant=acme", acme),
        ("status=discarded", []),
        ("status=pending_review&status=discarded&tenant=acme", acme),
        ("error_class=transient", []),
        ("text=CONNECTION%20457&tenant=acme", acme[:1]),
        ("until=2020-01-01T00:00:00Z", []),
    ):
        assert [item["dlq_id"] for item in await items(house, query)] == expected, query
    groups = (await house.get("/admin/dlq/groups/")).json()["groups"]
    assert [(group["job_type"], group["count"]) for group in groups] == [("fetch", 4)]


@pytest.mark.req("W43", "W44", "W45", "W46", "W47", "W48")
async def test_reprocessing_makes_one_new_job_and_a_second_time_is_refused(house: House) -> None:
    dead = house.dead["acme"][0]
    path = f"/admin/dlq/{public(dead)}/reprocess/"
    answer = await house.post(path, {"notes": "Fixed it"})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert set(body) == {"message", "dlq_id", "new_job_id", "new_idempotency_key"}
    assert (body["message"], body["dlq_id"]) == ("DLQ item reprocessed successfully", public(dead))
    assert re.fullmatch(r"acme-456_retry_\d{10}\.\d{3}", body["new_idempotency_key"])
    new = await house.app.find(body["new_job_id"])
    assert new is not None
    assert (new.tenant, new.kind, new.retry_of, new.created_by) == ("acme", "fetch", dead, "manager")
    assert new.payload == {"connection_id": 456}

    one = (await house.get(f"/admin/dlq/{public(dead)}/")).json()
    assert (one["status"], one["notes"], one["new_job_id"]) == ("reprocessing", "Fixed it", body["new_job_id"])
    before = await house.facts()
    for again in (path, f"/admin/dlq/{public(dead)}/discard/"):
        assert (await house.post(again)).status_code == 409
    assert await house.facts() == before
    trail = [(e.outcome, e.reason, e.principal) for e in await house.audit(action="dead_letter.reprocess")]
    assert trail[-2:] == [("succeeded", "Fixed it", "manager"), ("requested", "Fixed it", "manager")]


@pytest.mark.req("W46")
async def test_an_edited_payload_is_checked_and_the_original_is_kept(house: House) -> None:
    path = f"/admin/dlq/{public(house.dead['acme'][0])}"
    refused = await house.post(f"{path}/reprocess/", {"payload": {"connection_id": "none"}})
    assert refused.status_code == 422 and "connection_id" in refused.json()["detail"], refused.text
    done = await house.post(f"{path}/reprocess/", {"payload": {"connection_id": 9}, "notes": "moved"})
    new = await house.app.find(done.json()["new_job_id"])
    assert new is not None and new.payload["connection_id"] == 9
    assert (await house.get(f"{path}/")).json()["payload"]["connection_id"] == 456


@pytest.mark.req("W49", "W50", "L87")
async def test_dead_letters_are_acknowledged_discarded_resolved_and_counted(house: House) -> None:
    first, second = (public(one) for one in house.dead["acme"])
    seen = await house.post(f"/admin/dlq/{first}/acknowledge/", {"notes": "looking"})
    assert seen.json() == {"message": "DLQ item acknowledged", "dlq_id": first, "status": "acknowledged"}
    gone = await house.post(f"/admin/dlq/{first}/discard")
    assert gone.json() == {"message": "DLQ item discarded", "dlq_id": first, "status": "discarded"}
    assert (await house.post(f"/admin/dlq/{second}/resolve/", {})).json()["status"] == "resolved"
    counts = (await house.get("/admin/dlq/statistics/")).json()
    assert counts["total_count"] == 4 and counts["by_job_type"] == {"fetch": 4}
    assert counts["by_category"] == {"ingestion": 4} and counts["by_error_class"] == {"retryable": 4}
    open_now = {"pending_review": 2, "acknowledged": 0, "reprocessing": 0}
    assert counts["by_status"] == {**open_now, "discarded": 1, "resolved": 1}, "with those that there are none of"
    (discarded,) = await house.audit(AuditOutcome.SUCCEEDED, action="dead_letter.discard")
    assert (discarded.principal, discarded.target, discarded.tenant) == ("manager", first, "acme")


@pytest.mark.req("L41", "L42")
async def test_a_job_that_waits_is_made_a_dead_letter(house: House) -> None:
    waiting = public(house.waiting["acme"])
    failed = await house.post(f"/admin/jobs/{waiting}/fail/", {"reason": "wrong address"})
    assert (failed.status_code, failed.json()) == (200, {"job_id": waiting, "status": "failed"})
    one = (await house.get(f"/admin/dlq/{waiting}/")).json()
    assert (one["status"], one["error_message"]) == ("pending_review", "failed by manager: wrong address")


async def test_a_bulk_run_is_previewed_begun_taken_to_its_end_by_a_worker_and_watched(house: House) -> None:
    ask = {"act": "discard", "filter": {"tenant": "acme"}}
    preview = (await house.post("/admin/dlq/bulk/preview/", ask)).json()
    assert (preview["count"], len(preview["sample"]), preview["groups"][0]["count"]) == (2, 2, 2)
    begun = await house.post("/admin/dlq/bulk/", {**ask, "reason": "closed for good"})
    run = begun.json()
    assert (begun.status_code, run["total"], run["state"]) == (202, 2, "running")
    assert begun.headers["location"] == f"/api/jobs/admin/dlq/bulk/{run['id']}/"
    assert (await house.post("/admin/dlq/bulk/", {"act": "discard"})).status_code == 422, "all of them is to be said"

    async def done() -> bool:
        told = (await house.get(f"/admin/dlq/bulk/{run['id']}/")).json()
        return (told["state"], told["done"]) == ("done", 2)

    async with house.app.embedded(grace="5s"):
        await eventually(done)
    assert (await house.post(f"/admin/dlq/bulk/{run['id']}/stop/")).status_code == 409
    assert [one["id"] for one in (await house.get("/admin/dlq/bulk/")).json()["runs"]] == [run["id"]]
    assert {item["status"] for item in await items(house, "tenant=globex")} == {"pending_review"}


@pytest.mark.req("W51", "W52")
async def test_the_queue_is_listed_by_filters_and_counted(house: House) -> None:
    acme = [house.waiting["acme"], house.done["acme"], *reversed(house.dead["acme"])]
    for query, expected in (
        ("tenant=acme", acme),
        ("correlation_id=of-acme", acme),
        ("tenant=acme&status=scheduled", acme[:1]),
        ("tenant=acme&category=ingestion", acme[2:]),
        ("tenant=acme&job_type=greet", acme[:2]),
        ("tenant=acme&job_type=greet&job_type=fetch", acme),
        ("tenant=acme&status=scheduled&status=failed&limit=1", [acme[0], *acme[2:]]),
        ("tenant=acme&status=completed&status=scheduled&status=failed&limit=2", acme),
        ("tenant=acme&error_class=retryable", acme[2:]),
        ("tenant=acme&queue=default&limit=200", acme),
        ("text=acme-later", acme[:1]),
        ("until=2020-01-01T00:00:00Z", []),
    ):
        found: list[str] = []
        cursor = ""
        while True:
            page = (await house.get(f"/admin/queue/?{query}{cursor}")).json()
            found += [job["job_id"] for job in page["jobs"]]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert found == [public(one) for one in expected], query
    store = house.client.store
    waits = await start_one(store, queue="apart", tenant="globex", now=datetime.now(UTC))
    await settle(store, waits, Failed(made("Down", "nobody answers", ErrorClass.TRANSIENT)), now=datetime.now(UTC))
    for query in ("error_class=transient", "error_class=transient&status=scheduled&status=failed"):
        (item,) = (await house.get(f"/admin/queue/?{query}")).json()["jobs"]
        assert (item["job_id"], item["status"]) == (public(waits.job_id), "scheduled")
        assert (item["error_class"], item["error_message"]) == ("transient", "nobody answers")
    for wrong in ('{"order":"\\u0000"}', "[]"):
        assert (await house.get(f"/admin/queue/?subject={quote(wrong)}")).status_code == 422, wrong
    counts = (await house.get("/admin/queue/statistics/?tenant=acme")).json()
    assert (counts["live"]["scheduled"], counts["finished"]["failed"], counts["finished"]["completed"]) == (1, 2, 1)
    assert [(one["queue"], one["scheduled"]) for one in counts["queues"]] == [("default", 1)]


async def test_a_job_is_shown_cancelled_and_retried(house: House) -> None:
    waiting, done = public(house.waiting["acme"]), public(house.done["acme"])
    page = (await house.get(f"/admin/jobs/{waiting}/")).json()
    assert (page["status"], page["payload"], page["why"]["code"]) == ("scheduled", {"name": "acme-later"}, "not_due")
    cancelled = (await house.post(f"/admin/jobs/{waiting}/cancel/", {"reason": "no need"})).json()
    assert cancelled == {"job_id": waiting, "status": "cancelled", "changed": True, "requested": False}
    again = (await house.post(f"/admin/jobs/{done}/retry/")).json()
    assert again["made"] and again["job_id"] != done
    async with house.app.embedded(grace="5s"):
        assert (await final(house.app, ids.parse(again["job_id"]))).result == "Hello acme-secret"
