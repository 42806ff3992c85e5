"""`shares`: looked at and changed by people, on both stores; a job says which share it waits for."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from command_line import Project

from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from dutiful.store.workers import LaneRecord, WorkerRecord
from suite.builders import KIND, claim_one, enqueue, new_job


@pytest.fixture
async def project(tmp_path: Path, backend: str, store: Store, request: pytest.FixtureRequest) -> Project:
    url = store.url if backend == "sqlite" else request.getfixturevalue("pg18_url")
    return Project(tmp_path, url).write_jobs()


async def test_shares_are_listed_and_weights_changed(project: Project, store: Store) -> None:
    assert "no tenant runs a job" in project.run("shares").out
    await enqueue(store, new_job(tenant="acme"), new_job())
    await claim_one(store)

    assert project.run("shares", "set", "zeta", "3", "--reason", "they pay").out == "tenant zeta has the weight 3\n"
    assert project.run("shares", "--json").json["shares"] == [
        {"tenant": "acme", "weight": 1, "running": 1},
        {"tenant": "zeta", "weight": 3, "running": 0},
    ]
    assert "zeta" in project.run("shares").out
    assert "weight 1" in project.run("shares", "reset", "zeta").out
    events = await store.audit.search(AuditFilter(action="share.set"))
    done = {(event.target, event.reason) for event in events if event.outcome == "succeeded"}
    assert done == {("zeta", "they pay"), ("zeta", None)}


async def test_a_weight_of_none_or_of_no_tenant_is_refused(project: Project) -> None:
    for weight in ("0", "-1"):
        below = project.run("shares", "set", "acme", weight)
        assert below.code == 2 and "'WEIGHT': it should be greater than or equal to 1" in below.err
    assert project.run("shares", "set", "acme", "1001").code == 2
    refused = project.run("shares", "set", "*", "2")
    assert refused.code != 0 and "tenant" in refused.err


async def test_a_job_in_a_fair_lane_says_which_share_it_waits_for(project: Project, store: Store) -> None:
    now = datetime.now(UTC)
    jobs = [new_job(tenant="acme") for _ in range(3)]
    await enqueue(store, *jobs, new_job(tenant="zeta", priority=1), now=now)
    await store.shares.put("acme", 2)
    await claim_one(store, tenants=["acme"], now=now)
    lanes = {"general": LaneRecord(slots=2, queues=("*",), busy=2, fair=True)}
    worker = WorkerRecord(
        id=uuid4(), name="here", host="elsewhere", pid=1, started_at=now, seen_at=now, lanes=lanes, kinds=[KIND]
    )
    await store.workers.heartbeat(worker, timedelta(minutes=5))

    shown = " ".join(project.run("jobs", "show", str(jobs[2].id)).out.split())

    assert "waits for the share of its tenant 'acme', which runs 1 job with the weight 2" in shown
    assert "1 of its jobs are ahead of it" in shown and "dutiful shares set acme 3" in shown
    assert "kept for tenants" not in shown
    assert "2/2: * (fair)" in " ".join(project.run("workers").out.split())


async def test_a_job_that_may_not_have_an_idle_slot_names_the_reserve(project: Project, store: Store) -> None:
    now = datetime.now(UTC)
    jobs = [new_job(tenant="acme") for _ in range(3)]
    await enqueue(store, *jobs, now=now)
    for _ in range(2):
        await claim_one(store, now=now)
    lanes = {"general": LaneRecord(slots=3, queues=("*",), busy=2, fair=True, reserve=1)}
    worker = WorkerRecord(
        id=uuid4(), name="here", host="elsewhere", pid=1, started_at=now, seen_at=now, lanes=lanes, kinds=[KIND]
    )
    await store.workers.heartbeat(worker, timedelta(minutes=5))

    shown = " ".join(project.run("jobs", "show", str(jobs[2].id)).out.split())

    assert "the idle one is kept for tenants that run nothing there (reserve 1)" in shown
    assert "give its lane more slots, or a smaller reserve" in shown
    assert "shares set" not in shown, "there is no other tenant to have less"
    assert "2/3: * (fair, reserve 1)" in " ".join(project.run("workers").out.split())
