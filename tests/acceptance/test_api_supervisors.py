"""Supervised processes over HTTP."""

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from api import AdminApi, admin_api

from dutiful import Dutiful
from dutiful.stores.postgres.supervisor_migration import migration
from dutiful.stores.postgres.supervisor_plan import plan


@pytest.fixture
async def admin(app: Dutiful) -> AsyncIterator[AdminApi]:
    async with admin_api(app) as admin:
        yield admin


@pytest.fixture
def database(app_url: str) -> Iterator[psycopg.Connection]:
    """With two processes of comms.send_email; the worker of both is this role itself."""
    with psycopg.connect(app_url, autocommit=True) as connection:
        connection.execute("drop schema if exists comms cascade")
        (role,) = connection.execute("select quote_ident(current_user)").fetchone() or ("",)
        options = {"channel": "email", "keys": ["email_message_id"], "worker_role": role}
        connection.execute(migration(plan("comms.send_email", **options)).encode())
        connection.execute("select comms.kickoff_send_email(n) from generate_series(41, 42) n")
        connection.execute("""select comms.send_email_supervisor('{"send_email_task_id": 2}')""")
        yield connection
        connection.execute("drop schema comms cascade")


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_supervisors_and_processes_are_read(admin: AdminApi, database: psycopg.Connection) -> None:
    database.execute("insert into comms.send_email_attempt_failed values (1, 'token=hunter2hunter2 is wrong')")
    database.execute("insert into comms.send_email_task_failed values (1, 'no address')")

    (listed,) = (await admin.get("/admin/supervisors/")).json()["supervisors"]
    assert (listed["name"], listed["channel"], listed["max_attempts"], listed["base_seconds"]) == (
        "comms.send_email", "email", 3, 10.0,
    )  # fmt: skip
    assert (listed["running"], listed["failed"], listed["succeeded"]) == (1, 1, 0)
    path = "/admin/supervisors/comms.send_email"
    processes = (await admin.get(f"{path}/")).json()["processes"]
    assert [(one["id"], one["state"], one["keys"]) for one in processes] == [
        (2, "running", {"email_message_id": "42"}),
        (1, "failed", {"email_message_id": "41"}),
    ]
    stuck = (await admin.get(f"{path}/", params={"stuck": True, "limit": 1})).json()["processes"]
    assert [(one["id"], one["error"]) for one in stuck] == [(1, "no address")]

    found = (await admin.get(f"{path}/2/")).json()
    assert (found["state"], found["outstanding"], found["next_check"]["state"]) == ("running", None, "ready")
    assert found["why"] == "the next check makes another attempt, 1 of 3 have failed"
    assert [fact["what"] for fact in found["facts"]][:2] == ["started", "attempt 1 made"]
    assert found["attempts"][0]["job_id"] == found["facts"][1]["job_id"]
    assert "hunter2" not in str(found) and "attempt 1 failed: token=" in str(found)
    job = await admin.get(f"/admin/jobs/{found['attempts'][0]['job_id']}/")
    assert job.status_code == 200 and found["attempts"][0]["job_state"] == "ready"


@pytest.mark.parametrize("app_url", ["postgres18"], indirect=True)
async def test_what_is_missing_or_not_allowed_is_said(admin: AdminApi, database: psycopg.Connection) -> None:
    for path in ("comms.send_email/4711/", "comms.send_fax/1/", "comms.send_fax/"):
        assert (await admin.get(f"/admin/supervisors/{path}")).status_code == 404, path
    for path in (
        "comms.send_email/0/",
        "comms.send_email/x/",
        "send_email/1/",
        "a.b;drop/1/",
        "comms.send_email/?no=1",
    ):
        assert (await admin.get(f"/admin/supervisors/{path}")).status_code == 422, path
    for path in ("", "comms.send_email/", "comms.send_email/1/"):
        assert (await admin.get(f"/admin/supervisors/{path}", who="acme admin")).status_code == 403, path
        assert (await admin.get(f"/admin/supervisors/{path}", who="viewer")).status_code == 403, path
        assert (await admin.get(f"/admin/supervisors/{path}", who=None)).status_code == 401, path


@pytest.mark.parametrize("app_url", ["sqlite"], indirect=True)
async def test_a_file_has_no_supervisors(admin: AdminApi) -> None:
    answer = await admin.get("/admin/supervisors/")
    assert answer.status_code == 422 and "they are for Postgres" in answer.json()["detail"]
