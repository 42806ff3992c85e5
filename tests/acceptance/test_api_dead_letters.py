"""The admin API as its users were promised it: dead letters and the queue, in the prescribed shapes."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest
from api import AdminApi, admin_api, eventually, final, public

from dutiful import Dutiful, ErrorClass
from dutiful.core import ids
from dutiful.core.outcome import Failed
from dutiful.core.retry.error_info import make_error
from dutiful.core.review.audit import AuditOutcome
from suite.builders import settle, start_one

ITEM = {
    "dlq_id", "tenant", "category", "job_type", "status", "idempotency_key", "correlation_id", "error_class",
    "error_message", "attempt_count", "original_created_at", "created_at",
}  # fmt: skip


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app) as admin:
        yield admin


async def items(admin: AdminApi, query: str = "", who: str = "manager") -> list[dict[str, Any]]:
    answer = await admin.get(f"/admin/dlq/?{query}", who)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["dlq_items"]
    return found


@pytest.mark.req("W40", "W41", "W42")
async def test_dead_letters_are_listed_in_the_prescribed_shape_and_one_with_its_payload(admin: AdminApi) -> None:
    page = (await admin.get("/admin/dlq/", "acme manager")).json()
    assert (page["total_count"], page["next_cursor"], len(page["dlq_items"])) == (2, None, 2)
    newest = page["dlq_items"][0]
    assert set(newest) == ITEM
    record = await admin.app.find(admin.dead["acme"][1])
    assert record is not None
    reported = {name: newest[name] for name in ITEM - {"original_created_at", "created_at"}}
    assert reported == {
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
    one = (await admin.get(f"/admin/dlq/{newest['dlq_id']}", "acme manager")).json()
    assert {name: one[name] for name in ITEM} == newest
    assert one["payload"] == {"connection_id": 457}
    assert one["errors"][0]["message"] == "connection 457 is closed" and one["tenant"] == "acme"


@pytest.mark.req("W40")
async def test_pages_have_no_gap_and_no_repeat_and_filters_hold(admin: AdminApi) -> None:
    first = (await admin.get("/admin/dlq/?limit=3")).json()
    second = (await admin.get(f"/admin/dlq/?limit=3&cursor={first['next_cursor']}")).json()
    seen = [item["dlq_id"] for page in (first, second) for item in page["dlq_items"]]
    assert second["next_cursor"] is None and first["total_count"] == second["total_count"] == 4
    assert sorted(seen) == sorted(public(one) for letters in admin.dead.values() for one in letters)

    acme = [public(one) for one in reversed(admin.dead["acme"])]
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
        assert [item["dlq_id"] for item in await items(admin, query)] == expected, query
    groups = (await admin.get("/admin/dlq/groups/")).json()["groups"]
    assert [(group["job_type"], group["count"]) for group in groups] == [("fetch", 4)]


@pytest.mark.req("W43", "W44", "W45", "W46", "W47", "W48")
async def test_reprocessing_makes_one_new_job_and_a_second_time_is_refused(admin: AdminApi) -> None:
    dead = admin.dead["acme"][0]
    path = f"/admin/dlq/{public(dead)}/reprocess/"
    answer = await admin.post(path, {"notes": "Fixed it"})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert set(body) == {"message", "dlq_id", "new_job_id", "new_idempotency_key"}
    assert (body["message"], body["dlq_id"]) == ("DLQ item reprocessed successfully", public(dead))
    assert re.fullmatch(r"acme-456_retry_\d{10}\.\d{3}", body["new_idempotency_key"])
    new = await admin.app.find(body["new_job_id"])
    assert new is not None
    assert (new.tenant, new.kind, new.retry_of, new.created_by) == ("acme", "fetch", dead, "manager")
    assert new.payload == {"connection_id": 456}

    one = (await admin.get(f"/admin/dlq/{public(dead)}/")).json()
    assert (one["status"], one["notes"], one["new_job_id"]) == ("reprocessing", "Fixed it", body["new_job_id"])
    before = await admin.facts()
    for again in (path, f"/admin/dlq/{public(dead)}/discard/"):
        assert (await admin.post(again)).status_code == 409
    assert await admin.facts() == before
    trail = [(e.outcome, e.reason, e.principal) for e in await admin.audit(action="dead_letter.reprocess")]
    assert trail[-2:] == [("succeeded", "Fixed it", "manager"), ("requested", "Fixed it", "manager")]


@pytest.mark.req("W46")
async def test_an_edited_payload_is_checked_and_the_original_is_kept(admin: AdminApi) -> None:
    path = f"/admin/dlq/{public(admin.dead['acme'][0])}"
    refused = await admin.post(f"{path}/reprocess/", {"payload": {"connection_id": "none"}})
    assert refused.status_code == 422 and "connection_id" in refused.json()["detail"], refused.text
    done = await admin.post(f"{path}/reprocess/", {"payload": {"connection_id": 9}, "notes": "moved"})
    new = await admin.app.find(done.json()["new_job_id"])
    assert new is not None and new.payload["connection_id"] == 9
    assert (await admin.get(f"{path}/")).json()["payload"]["connection_id"] == 456


@pytest.mark.req("W49", "W50", "L87")
async def test_dead_letters_are_acknowledged_discarded_resolved_and_counted(admin: AdminApi) -> None:
    first, second = (public(one) for one in admin.dead["acme"])
    seen = await admin.post(f"/admin/dlq/{first}/acknowledge/", {"notes": "looking"})
    assert seen.json() == {"message": "DLQ item acknowledged", "dlq_id": first, "status": "acknowledged"}
    gone = await admin.post(f"/admin/dlq/{first}/discard")
    assert gone.json() == {"message": "DLQ item discarded", "dlq_id": first, "status": "discarded"}
    assert (await admin.post(f"/admin/dlq/{second}/resolve/", {})).json()["status"] == "resolved"
    counts = (await admin.get("/admin/dlq/statistics/")).json()
    assert counts["total_count"] == 4 and counts["by_job_type"] == {"fetch": 4}
    assert counts["by_category"] == {"ingestion": 4} and counts["by_error_class"] == {"retryable": 4}
    open_now = {"pending_review": 2, "acknowledged": 0, "reprocessing": 0}
    assert counts["by_status"] == {**open_now, "discarded": 1, "resolved": 1}, "with those that there are none of"
    (discarded,) = await admin.audit(AuditOutcome.SUCCEEDED, action="dead_letter.discard")
    assert (discarded.principal, discarded.target, discarded.tenant) == ("manager", first, "acme")


@pytest.mark.req("L41", "L42")
async def test_a_job_that_waits_is_made_a_dead_letter(admin: AdminApi) -> None:
    waiting = public(admin.waiting["acme"])
    tried = await admin.post(f"/admin/jobs/{waiting}/fail/", {"reason": "not there yet", "retry": True})
    assert (tried.status_code, tried.json()) == (200, {"job_id": waiting, "status": "scheduled"})
    failed = await admin.post(f"/admin/jobs/{waiting}/fail/", {"reason": "wrong address"})
    assert (failed.status_code, failed.json()) == (200, {"job_id": waiting, "status": "failed"})
    one = (await admin.get(f"/admin/dlq/{waiting}/")).json()
    assert (one["status"], one["error_message"]) == ("pending_review", "failed by manager: wrong address")


async def test_a_bulk_run_is_previewed_begun_taken_to_its_end_by_a_worker_and_watched(admin: AdminApi) -> None:
    ask = {"act": "discard", "filter": {"tenant": "acme"}}
    preview = (await admin.post("/admin/dlq/bulk/preview/", ask)).json()
    assert (preview["count"], len(preview["sample"]), preview["groups"][0]["count"]) == (2, 2, 2)
    begun = await admin.post("/admin/dlq/bulk/", {**ask, "reason": "closed for good"})
    run = begun.json()
    assert (begun.status_code, run["total"], run["state"]) == (202, 2, "running")
    assert begun.headers["location"] == f"/api/jobs/admin/dlq/bulk/{run['id']}/"
    assert (await admin.post("/admin/dlq/bulk/", {"act": "discard"})).status_code == 422, "all of them is to be said"

    async def done() -> bool:
        reported = (await admin.get(f"/admin/dlq/bulk/{run['id']}/")).json()
        return (reported["state"], reported["done"]) == ("done", 2)

    async with admin.app.embedded(grace="5s"):
        await eventually(done)
    assert (await admin.post(f"/admin/dlq/bulk/{run['id']}/stop/")).status_code == 409
    assert [one["id"] for one in (await admin.get("/admin/dlq/bulk/")).json()["runs"]] == [run["id"]]
    assert {item["status"] for item in await items(admin, "tenant=globex")} == {"pending_review"}


@pytest.mark.req("W51", "W52")
async def test_the_queue_is_listed_by_filters_and_counted(admin: AdminApi) -> None:
    acme = [admin.waiting["acme"], admin.done["acme"], *reversed(admin.dead["acme"])]
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
            page = (await admin.get(f"/admin/queue/?{query}{cursor}")).json()
            found += [job["job_id"] for job in page["jobs"]]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert found == [public(one) for one in expected], query
    store = admin.client.store
    waits = await start_one(store, queue="apart", tenant="globex", now=datetime.now(UTC))
    await settle(store, waits, Failed(make_error("Down", "no answer", ErrorClass.TRANSIENT)), now=datetime.now(UTC))
    for query in ("error_class=transient", "error_class=transient&status=scheduled&status=failed"):
        (item,) = (await admin.get(f"/admin/queue/?{query}")).json()["jobs"]
        assert (item["job_id"], item["status"]) == (public(waits.job_id), "scheduled")
        assert (item["error_class"], item["error_message"]) == ("transient", "no answer")
    for wrong in ('{"order":"\\u0000"}', "[]"):
        assert (await admin.get(f"/admin/queue/?subject={quote(wrong)}")).status_code == 422, wrong
    counts = (await admin.get("/admin/queue/statistics/?tenant=acme")).json()
    assert (counts["live"]["scheduled"], counts["finished"]["failed"], counts["finished"]["completed"]) == (1, 2, 1)
    assert [(one["queue"], one["scheduled"]) for one in counts["queues"]] == [("default", 1)]


async def test_a_job_is_shown_cancelled_and_retried(admin: AdminApi) -> None:
    waiting, done = public(admin.waiting["acme"]), public(admin.done["acme"])
    page = (await admin.get(f"/admin/jobs/{waiting}/")).json()
    assert (page["status"], page["payload"], page["why"]["code"]) == ("scheduled", {"name": "acme-later"}, "not_due")
    cancelled = (await admin.post(f"/admin/jobs/{waiting}/cancel/", {"reason": "no need"})).json()
    assert cancelled == {"job_id": waiting, "status": "cancelled", "changed": True, "requested": False}
    again = (await admin.post(f"/admin/jobs/{done}/retry/")).json()
    assert again["made"] and again["job_id"] != done
    async with admin.app.embedded(grace="5s"):
        assert (await final(admin.app, ids.parse(again["job_id"]))).result == "Hello acme-secret"
