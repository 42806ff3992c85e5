"""`limits`: looked at and changed by people, on both stores; a job says which limit it waits for."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import Project

from dutiful.core.limits import KindLimit, Limit
from dutiful.store import Store
from dutiful.store.audit import AuditFilter
from suite.builders import KIND, enqueue, state
from suite.limits import keyed

CALLS = "calls"


@pytest.fixture
async def project(tmp_path: Path, backend: str, store: Store, request: pytest.FixtureRequest) -> Project:
    url = store.url if backend == "sqlite" else request.getfixturevalue("pg18_url")
    await store.limits.put({KIND: [KindLimit(Limit(CALLS, 1))]})
    return Project(tmp_path, url).write_jobs()


async def test_limits_are_listed_and_changed_while_they_are_in_use(project: Project, store: Store) -> None:
    jobs = [keyed("acme") for _ in range(3)]
    await enqueue(store, *jobs, now=datetime.now(UTC))
    await store.limits.admit(100)

    (found,) = project.run("limits", "--json").json["limits"]
    assert (found["name"], found["most"], found["used"], found["waiting"]) == (CALLS, 1, 1, 2)
    assert found["keys"] == [{"key": "acme", "used": 1, "waiting": 2, "held_until": None}]
    assert "acme 2" in project.run("limits").out

    changed = project.run("limits", "set", CALLS, "2", "--reason", "they may")
    assert "limit calls is 2 at once (declared: 1) for each key" in changed.out
    assert [await state(store, job.id) for job in jobs] == ["ready", "ready", "blocked"]
    assert "limit calls is 1 at once for each key" in project.run("limits", "reset", CALLS).out
    events = await store.audit.search(AuditFilter(action="limit.set"))
    assert {(event.target, event.reason) for event in events if event.outcome == "succeeded"} == {
        (CALLS, "they may"),
        (CALLS, None),
    }


async def test_an_unknown_limit_and_a_number_below_none_are_refused(project: Project) -> None:
    unknown = project.run("limits", "set", "call", "2")
    assert unknown.code == 1 and "there is no limit 'call'; there are: calls" in unknown.err
    below = project.run("limits", "set", CALLS, "-1", "--reason", "none")
    assert below.code == 2 and "'MOST': it should be greater than or equal to 0" in below.err


async def test_a_key_that_a_service_has_asked_to_wait_for_is_listed_and_let_go(project: Project, store: Store) -> None:
    await store.limits.put({KIND: [KindLimit(Limit(CALLS, 5, per=timedelta(minutes=1), feedback=True))]})
    jobs = [keyed("acme") for _ in range(2)]
    await enqueue(store, *jobs, now=datetime.now(UTC))
    await store.limits.hold({jobs[0].id: timedelta(hours=1)})
    await store.limits.admit(100)

    assert "acme 2 (held until " in project.run("limits").out
    shown = " ".join(project.run("jobs", "show", str(jobs[1].id)).out.split())
    assert "the service behind the limit 'calls' with its key 'acme' has asked to wait until" in shown
    assert "`dutiful limits reset calls`, if it need not" in shown
    project.run("limits", "reset", CALLS)
    assert [await state(store, job.id) for job in jobs] == ["ready", "ready"]


async def test_a_job_says_which_limit_it_waits_for(project: Project, store: Store) -> None:
    jobs = [keyed("acme") for _ in range(2)]
    await enqueue(store, *jobs, now=datetime.now(UTC))
    await store.limits.admit(100)

    shown = " ".join(project.run("jobs", "show", str(jobs[1].id)).out.split())

    assert "waits for the limit 'calls': 1 at once with its key 'acme'; 1 wait for it" in shown
    assert "dutiful limits set calls 2" in shown
