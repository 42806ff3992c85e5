"""New jobs over HTTP: checked like those that code enqueues, and on record."""

from collections.abc import AsyncIterator

import pytest
from api import AdminApi, admin_api, public

from dutiful import Dutiful
from dutiful.core import ids


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app) as admin:
        yield admin


async def test_a_job_is_enqueued_for_the_principals_tenant_and_on_record(admin: AdminApi) -> None:
    asked = {"kind": "fetch", "payload": {"connection_id": 7}, "options": {"delay_seconds": 3600, "priority": 5}}
    answer = await admin.post("/admin/jobs/", {**asked, "reason": "asked by phone"}, "acme manager")
    assert answer.status_code == 201 and answer.json()["created"] is True
    record = await admin.app.find(ids.parse(answer.json()["job_id"]))
    assert record is not None
    assert (record.tenant, record.created_by, record.priority, record.state) == ("acme", "acme manager", 5, "scheduled")
    ended, begun = await admin.audit(action="job.enqueue")
    assert (begun.outcome, ended.outcome, ended.reason) == ("requested", "succeeded", "asked by phone")
    assert ended.after == {"job": public(record.id), "made": True}


async def test_a_second_job_of_a_key_is_refused_with_the_id_of_its_holder(admin: AdminApi) -> None:
    unique = {"key": "once", "on_conflict": "reject"}
    asked = {"kind": "greet", "payload": {"name": "Ada"}, "options": {"unique": unique, "delay_seconds": 60}}
    first = (await admin.post("/admin/jobs/", asked, "acme manager")).json()["job_id"]
    second = await admin.post("/admin/jobs/", asked, "acme manager")
    assert (second.status_code, second.json()["job_id"]) == (409, first)
    assert (await admin.post("/admin/jobs/", asked, "globex manager")).status_code == 201, "keys are each tenant's own"


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_what_cannot_be_enqueued_is_refused_with_its_field_and_one_event(admin: AdminApi) -> None:
    theirs = public(admin.waiting["globex"])
    for asked, status, field in (
        ({"kind": "nothing"}, 422, "kind"),
        ({"kind": "fetch", "payload": {}}, 422, "connection_id"),
        ({"kind": "greet", "payload": {"name": "Ada"}, "options": {"id": theirs}}, 422, "options.id"),
        ({"kind": "greet", "payload": {"name": "Ada"}, "options": {"tenant": "globex"}}, 403, None),
        ({"kind": "greet", "payload": {"name": "Ada"}, "options": {"depends_on": [theirs]}}, 404, None),
    ):
        known = {event.id for event in await admin.audit()}
        before = await admin.facts()
        answer = await admin.post("/admin/jobs/", asked, "acme manager")
        assert answer.status_code == status, answer.text
        assert field is None or [one["field"] for one in answer.json()["errors"]] == [field], answer.text
        new = [event for event in await admin.audit() if event.id not in known]
        assert [(event.action, event.outcome) for event in new] == [("job.enqueue", "refused")]
        assert await admin.facts() == before
    answer = await admin.post("/admin/jobs/", {"kind": "greet", "options": {"unique": "once"}}, "acme manager")
    assert answer.json()["detail"] == "options.unique: it should be a JSON object"
