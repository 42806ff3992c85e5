"""`roles`: groups of database roles, by the owner or by a DBA's script."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from command_line import Answer, Project

from databases import Postgres
from dutiful.stores.postgres import PostgresStore
from tenanted import GROUPS, MORE_GROUPS, LoginRoles, dropped_after, new_schema

DATABASE = "dutiful_roles_cli"
LOGINS = ("owner", "sql_worker")
Run = Callable[..., Answer]


@pytest.fixture
def logins(postgres18: Postgres) -> Iterator[LoginRoles]:
    """A migrated database whose owner is an ordinary role, and one more that may log in."""
    schema = new_schema()
    postgres18.drop_database(DATABASE)
    with dropped_after(postgres18, DATABASE, schema, LOGINS):
        found = LoginRoles(postgres18.create_database(DATABASE), schema)
        for role in LOGINS:
            found.create(role, rights="CREATEROLE" if role == "owner" else "")
        found.run("GRANT CREATE ON DATABASE {} TO {}", DATABASE, found.name("owner"))
        asyncio.run(PostgresStore(found.url("owner"), schema=schema).migrate())
        yield found


@pytest.fixture
def run(logins: LoginRoles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("DUTIFUL_SCHEMA", logins.schema)

    def call(role: str, *args: str) -> Answer:
        url = logins.url(role)
        return Project(tmp_path, url).call(monkeypatch, capsys, *args, f"--database-url={url}")

    return call


def dequeue(logins: LoginRoles) -> int:
    logins.run("GRANT {} TO {}", f"{logins.schema}_sql_worker", logins.name("sql_worker"))
    with psycopg.connect(logins.url("sql_worker"), autocommit=True) as worker:
        return worker.execute(f"select from {logins.schema}.dequeue(array['greet'])".encode()).rowcount


def groups(logins: LoginRoles) -> set[str]:
    rows = logins.run(
        f"SELECT rolname FROM pg_roles WHERE starts_with(rolname, '{logins.schema}_') AND NOT rolcanlogin"
    )
    return {name for (name,) in rows}


def test_the_owner_makes_the_groups_and_it_is_on_record(logins: LoginRoles, run: Run) -> None:
    for _ in range(2):
        made = run("owner", "roles", "--reason", "least privilege")
        assert (made.code, made.out) == (0, "the groups have their rights: grant them to your login roles\n")
        assert f"still belongs to {logins.name('owner')}" in made.err
    logins.run("SELECT {}.enqueue('greet')", logins.schema)

    assert groups(logins) == {f"{logins.schema}_{group}" for group in (*GROUPS, *MORE_GROUPS)}
    assert dequeue(logins) == 1
    status = run("owner", "tenants", "status", "--json").json
    assert not status["enabled"]
    assert [m["group"] for m in status["members"] if m["role"] == logins.name("sql_worker")] == ["sql_worker"]
    events = run("owner", "audit", "list", "--outcome", "succeeded", "--json").json["events"]
    assert [e["reason"] for e in events if e["action"] == "roles.on"] == ["least privilege"] * 2


def test_a_dba_makes_them_by_a_script_where_the_owner_may_not(logins: LoginRoles, run: Run) -> None:
    logins.run("ALTER ROLE {} NOCREATEROLE", logins.name("owner"))
    refused = run("owner", "roles")
    assert refused.code == 2 and "dutiful roles --sql" in refused.err and groups(logins) == set()

    with psycopg.connect(logins.superuser_url, autocommit=True) as dba:
        for command in (["roles", "--sql"], ["tenants", "on", "--sql"]):
            dba.execute(run("owner", *command).out.encode())
            assert dequeue(logins) == 0

    again = run("owner", "roles")
    assert again.code == 0 and "still belongs" not in again.err, "the script has given the schema to its owner"
    assert run("owner", "doctor").code == 0


def test_a_file_has_no_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    project = Project(tmp_path, url)
    assert project.call(monkeypatch, capsys, "migrate", f"--database-url={url}").code == 0

    for option in ([], ["--sql"]):
        refused = project.call(monkeypatch, capsys, "roles", *option, f"--database-url={url}")
        assert refused.code == 2 and "only Postgres" in refused.err
