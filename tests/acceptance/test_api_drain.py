"""Drains, stuck jobs and their release over HTTP."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from api import AdminApi, admin_api, public

from dutiful import Dutiful, State
from suite.builders import complete, start_one


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app) as admin:
        yield admin


def hours_ago(hours: int) -> datetime:
    return datetime.now(UTC) - timedelta(hours=hours)


@pytest.mark.req("L93")
async def test_a_drain_is_begun_and_asked_after_until_it_is_safe(admin: AdminApi) -> None:
    store = admin.client.store
    claim = await start_one(store, kind="mail", queue="post", now=datetime.now(UTC))
    nothing = (await admin.get("/admin/drain/")).json()
    assert (nothing["safe"], nothing["pauses"]) == (False, []), "nothing is drained"

    begun = (await admin.post("/admin/drain/", {"kinds": ["mail"], "reason": "it moves"})).json()

    assert (begun["safe"], begun["running"]) == (False, 1)
    (pause,) = begun["pauses"]
    assert (pause["scope"], pause["name"], pause["reason"]) == ("kind", "mail", "it moves")
    (blocker,) = begun["blockers"]
    assert blocker["job_id"] == public(claim.job_id) and "dutiful jobs release" in blocker["remedy"]
    assert (await admin.get("/admin/drain/?kinds=mail")).json()["running"] == 1
    other = (await admin.get("/admin/drain/?queues=other")).json()
    assert (other["running"], other["safe"], other["not_paused"]) == (0, False, ["queue other"])
    await complete(store, claim, now=datetime.now(UTC))
    assert (await admin.get("/admin/drain/")).json()["running"] == 0
    for wrong in ({}, {"kinds": ["mali"]}, {"lanes": ["general"], "everything": True}):
        assert (await admin.post("/admin/drain/", wrong)).status_code == 422, wrong
    assert [pause.name for pause in await store.control.pauses()] == ["mail"]
    assert len(await admin.audit(action="fleet.drain")) == 5, "asked for and done, and three refusals"


@pytest.mark.req("L73", "L95")
async def test_stuck_jobs_are_listed_and_put_back_in_line(admin: AdminApi) -> None:
    store = admin.client.store
    ours = await start_one(store, kind="mail", queue="post", tenant="acme", now=hours_ago(2))
    theirs = await start_one(store, kind="mail", queue="post", tenant="globex", now=hours_ago(3))

    (listed,) = (await admin.get("/admin/jobs/stuck/", "acme manager")).json()["jobs"]
    assert (listed["job_id"], listed["job_type"], listed["status"], listed["attempts"]) == (
        public(ours.job_id),
        "mail",
        "running",
        1,
    )
    assert len((await admin.get("/admin/jobs/stuck/?older_than=150m")).json()["jobs"]) == 1
    assert (await admin.get("/admin/jobs/stuck/?older_than=soon")).status_code == 422

    for unsaid in ({}, {"kind": "mail"}):
        assert (await admin.post("/admin/jobs/release/", unsaid, "acme manager")).status_code == 422, unsaid
    released = (await admin.post("/admin/jobs/release/", {"older_than": "1h"}, "acme manager")).json()
    assert released == {"released": [{"job_id": public(ours.job_id), "status": "ready"}]}
    assert (await admin.post(f"/admin/jobs/{public(theirs.job_id)}/release/", {}, "acme manager")).status_code == 404
    assert (await admin.post(f"/admin/jobs/{public(ours.job_id)}/release/")).status_code == 409
    answer = (await admin.post(f"/admin/jobs/{public(theirs.job_id)}/release/", {"reason": "it hangs"})).json()
    assert answer["status"] == "ready"
    found = await store.queries.job(theirs.job_id)
    assert found is not None and (found.state, found.attempt) == (State.READY, 0)
