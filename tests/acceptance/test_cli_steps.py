"""`send-event`, and the steps that `jobs show` and the API show, on both stores."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from api import AdminApi, admin_api
from command_line import Project

from dutiful import Dutiful
from dutiful.core import ids
from dutiful.store import Store
from suite.builders import start_one, state
from suite.steps import begin_to_wait, call


@pytest.fixture
async def project(tmp_path: Path, backend: str, store: Store, request: pytest.FixtureRequest) -> Project:
    url = store.url if backend == "sqlite" else request.getfixturevalue("pg18_url")
    return Project(tmp_path, url).write_jobs()


async def test_an_event_is_sent_and_wakes_the_job_that_waits(project: Project, store: Store) -> None:
    claimed = await begin_to_wait(store, timeout=None)
    public = ids.public(claimed.job_id)
    shown = project.run("jobs", "show", public).out
    assert "waits in its step 'paid' for the event 'paid' with the key '7', for good" in shown
    assert "dutiful send-event paid 7" in shown and "Steps" in shown

    assert "is sent" in project.run("send-event", "paid", "7", "--data", '{"amount": 5}', "--reason", "by hand").out

    assert await state(store, claimed.job_id) == "ready"
    (found,) = project.run("jobs", "show", public, "--json").json["steps"]
    assert (found["state"], found["result"]) == ("done", {"amount": 5})
    assert set(project.run("send-event", "paid", "8", "--json").json) == {"id"}
    audited = project.run("audit", "list", "--action", "event.send").out
    assert "paid:7" in audited and "by hand" in audited


async def test_an_event_of_a_tenant_wakes_its_jobs_only(project: Project, store: Store) -> None:
    acme, globex = [await begin_to_wait(store, tenant=name, timeout=None) for name in ("acme", "globex")]

    project.run("send-event", "paid", "7", "--tenant", "acme")

    assert [await state(store, one.job_id) for one in (acme, globex)] == ["ready", "blocked"]


async def test_bad_input_is_refused(project: Project) -> None:
    assert "--data is not JSON" in project.run("send-event", "paid", "7", "--data", "yes").err
    assert "--keep" in project.run("send-event", "paid", "7", "--keep", "long").err
    assert "key -7 is sent" in project.run("send-event", "paid", "-7").out
    assert "key" in project.run("send-event", "paid", "").err


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app) as admin:
        yield admin


async def test_the_api_sends_events_and_shows_steps(admin: AdminApi) -> None:
    store = admin.client.store
    claimed = await begin_to_wait(store, timeout=None)
    running = await start_one(store)
    await store.steps.put([call(running)])

    answer = await admin.post("/admin/events/send/", {"name": "paid", "key": "7", "data": 5, "reason": "by hand"})

    assert answer.status_code == 201 and set(answer.json()) == {"event_id"}
    assert await state(store, claimed.job_id) == "ready"
    job = (await admin.get(f"/admin/jobs/{ids.public(running.job_id)}/")).json()
    assert [(one["name"], one["state"], one["result"]) for one in job["steps"]] == [("charge", "done", {"id": 7})]
    assert (await admin.post("/admin/events/send/", {"name": "paid"})).status_code == 422
    everyone = await admin.post("/admin/events/send/", {"name": "paid", "key": "7", "tenant": "*"})
    assert everyone.status_code == 422 and "tenant '*' is not a name" in everyone.json()["detail"]
    assert (await admin.post("/admin/events/send/", {"name": "paid", "key": "7", "keep": "long"})).status_code == 422
