"""`tenants`, and what `doctor` says of it."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from command_line import Answer, Project
from psycopg import sql

from databases import Postgres
from dutiful.stores.postgres import PostgresStore, migrations, schema_files
from tenanted import GROUPS, LoginRoles, dropped_after, new_schema

pytestmark = pytest.mark.req("W67")

DATABASE = "dutiful_tenants_cli"
LOGINS = ("owner", "operator", "worker", "reports")
Run = Callable[..., Answer]


@pytest.fixture(scope="module")
def migrated(postgres18: Postgres) -> Iterator[LoginRoles]:
    """A database whose owner is an ordinary role, and three more who may log in."""
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
def roles(migrated: LoginRoles) -> Iterator[LoginRoles]:
    """Tenants are off, and no role is bound or in a group, whatever a test has left behind."""
    yield migrated
    migrated.run("SELECT {}.tenants_off()", migrated.schema)
    migrated.run("DELETE FROM {}.tenant_role", migrated.schema)
    migrated.run("DROP OWNED BY {}", sql.SQL(", ").join(sql.Identifier(f"{migrated.schema}_{g}") for g in GROUPS))
    for group in GROUPS:
        migrated.run("DROP ROLE {}", f"{migrated.schema}_{group}")


@pytest.fixture
def run(roles: LoginRoles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command as one of the roles."""
    monkeypatch.setenv("DUTIFUL_SCHEMA", roles.schema)

    def call(role: str, *args: str) -> Answer:
        return Project(tmp_path, roles.url(role)).call(monkeypatch, capsys, *args, f"--database-url={roles.url(role)}")

    return call


def grant(roles: LoginRoles, *groups: str) -> None:
    for group in groups:
        roles.run("GRANT {} TO {}", f"{roles.schema}_{group}", roles.name(group))


def test_tenants_are_switched_on_bound_and_unbound_and_all_of_it_is_on_record(roles: LoginRoles, run: Run) -> None:
    reports = roles.name("reports")
    assert "tenants are off" in run("owner", "tenants", "status").out
    assert run("owner", "tenants", "off").code == 0
    assert "run `dutiful tenants on`" in run("owner", "tenants", "bind", reports, "acme").err

    assert run("owner", "tenants", "on", "--reason", "two firms").code == 0
    assert run("owner", "tenants", "on").code == 0
    bound = run("owner", "tenants", "bind", reports, "acme")
    again = run("owner", "tenants", "bind", reports, "acme")
    status = run("owner", "tenants", "status", "--json").json
    unbound = run("owner", "tenants", "unbind", reports)

    assert bound.out == f"role {reports} sees tenant acme\n"
    assert "already" in again.out
    assert status["enabled"]
    assert {"role": reports, "group": "member", "tenants": ["acme"]} in status["members"]
    assert unbound.out == f"role {reports} no longer sees acme\n"
    events = run("owner", "audit", "list", "--outcome", "succeeded", "--json").json["events"]
    done = ["tenants.off", "tenants.on", "tenants.on", "tenants.bind", "tenants.bind", "tenants.unbind"]
    assert [e["action"] for e in events][::-1] == done
    assert [e["tenant"] for e in events if e["action"] == "tenants.bind"] == ["acme"] * 2


def test_a_dba_can_do_it_by_a_script_where_the_owner_may_not_make_roles(roles: LoginRoles, run: Run) -> None:
    roles.run("ALTER ROLE {} NOCREATEROLE", roles.name("owner"))
    reports = roles.name("reports")
    try:
        refused = run("owner", "tenants", "on")
        script = run("owner", "tenants", "on", "--sql").out
        with psycopg.connect(roles.superuser_url, autocommit=True) as dba:
            dba.execute(script.encode())
        bound = run("owner", "tenants", "bind", reports, "acme")
    finally:
        roles.run("ALTER ROLE {} CREATEROLE", roles.name("owner"))

    assert refused.code == 2
    assert "dutiful tenants on --sql" in refused.err
    status = run("owner", "tenants", "status", "--json").json
    assert status["enabled"]
    assert bound.out == f"role {reports} sees tenant acme\n", bound.err
    assert [m["role"] for m in status["members"] if m["group"] == "member"] == [reports]
    [_, switched] = run("owner", "audit", "list", "--limit", "2", "--outcome", "succeeded", "--json").json["events"]
    assert (switched["action"], switched["origin"]) == ("tenants.on", "sql")
    grant(roles, "operator")
    assert run("operator", "jobs", "list").code == 0


def test_what_members_could_read_is_closed_when_tenants_are_off_again(roles: LoginRoles, run: Run) -> None:
    run("owner", "tenants", "on")
    run("owner", "tenants", "bind", roles.name("reports"), "acme")
    look = f"SELECT count(*) FROM {roles.schema}.jobs"
    with psycopg.connect(roles.url("reports"), autocommit=True) as member:
        assert member.execute(look.encode()).fetchone() == (0,)
        grant(roles, "operator")

        assert run("owner", "tenants", "off").code == 0

        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            member.execute(look.encode())
    assert run("operator", "jobs", "list").code == 0
    assert run("owner", "doctor", "--json").json["facts"]["tenants"] == "off"


@pytest.mark.parametrize(
    ("role", "tenant", "reported"),
    [
        ("nobody", "acme", "there is no role"),
        ("worker", "acme", "can see every tenant"),
        ("reports", "*", "not a name"),
    ],
)
def test_a_binding_that_would_mean_nothing_or_everything_is_refused(
    roles: LoginRoles, run: Run, role: str, tenant: str, reported: str
) -> None:
    run("owner", "tenants", "on")
    grant(roles, "worker")

    answer = run("owner", "tenants", "bind", roles.name(role), tenant)

    assert (answer.code, answer.out) == (2, "")
    assert reported in answer.err


@pytest.mark.parametrize("more", [(), ("--processes=2",)])
def test_a_worker_that_logs_in_as_an_operator_does_not_start(
    roles: LoginRoles, run: Run, tmp_path: Path, more: tuple[str, ...]
) -> None:
    run("owner", "tenants", "on")
    grant(roles, "operator")

    project = Project(tmp_path, roles.url("operator")).write_jobs()
    answer = project.run("worker", *more, DUTIFUL_SCHEMA=roles.schema)

    assert answer.code == 2
    assert f"grant {roles.schema}_worker to {roles.name('operator')}" in answer.err


def test_doctor_is_content_with_ordinary_roles(roles: LoginRoles, run: Run) -> None:
    run("owner", "tenants", "on")
    run("owner", "tenants", "bind", roles.name("reports"), "acme")
    grant(roles, "operator", "worker")

    for role in ("owner", "operator", "worker"):
        report = run(role, "doctor", "--json").json
        assert report["healthy"], report["findings"]
        assert report["facts"]["tenants"] == "on"


GAPS = (
    ("ALTER TABLE {schema}.job NO FORCE ROW LEVEL SECURITY", "the table job is not isolated"),
    ("ALTER TABLE {schema}.phase DISABLE ROW LEVEL SECURITY", "the table phase is not isolated"),
    ("DROP POLICY member ON {schema}.dead_letter", "the table dead_letter is not isolated"),
    ("CREATE POLICY more ON {schema}.lease USING (true)", "the table lease is not isolated"),
    ("ALTER VIEW {schema}.jobs RESET (security_invoker)", "the view jobs shows all tenants"),
)


def test_doctor_sees_where_protection_is_missing_and_switching_on_again_fixes_it(roles: LoginRoles, run: Run) -> None:
    run("owner", "tenants", "on")
    grant(roles, "operator")
    for change, reported in GAPS:
        roles.run(change.replace("{schema}", roles.schema))

        [(what, remedy)] = problems(run("operator", "doctor", "--json"))
        run("owner", "tenants", "on")

        assert reported in what
        assert "run `dutiful tenants on` again" in remedy
    assert problems(run("operator", "doctor", "--json")) == []


@pytest.mark.parametrize(
    ("change", "undo", "reported", "remedy"),
    [
        (
            "GRANT {schema}_worker TO {schema}_reports_user",
            "REVOKE {schema}_worker FROM {schema}_reports_user",
            "is bound to tenants, but it can see all",
            "`dutiful tenants unbind",
        ),
        (
            "ALTER ROLE {schema}_operator_user BYPASSRLS",
            "ALTER ROLE {schema}_operator_user NOBYPASSRLS",
            "row-level security does not apply",
            "connect as a login role",
        ),
        (
            "ALTER ROLE {schema}_owner_user BYPASSRLS",
            "ALTER ROLE {schema}_owner_user NOBYPASSRLS",
            "whose functions row-level security does not bind",
            "as a superuser",
        ),
        (
            "CREATE FUNCTION {schema}.extra() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'select 1'",
            "DROP FUNCTION {schema}.extra()",
            "looks names up where its caller says",
            "set search_path",
        ),
    ],
)
def test_doctor_names_what_bypasses_the_isolation(
    roles: LoginRoles, run: Run, change: str, undo: str, reported: str, remedy: str
) -> None:
    run("owner", "tenants", "on")
    run("owner", "tenants", "bind", roles.name("reports"), "acme")
    grant(roles, "operator")
    roles.run(change.replace("{schema}", roles.schema))
    try:
        answer = run("operator", "doctor", "--json")
    finally:
        roles.run(undo.replace("{schema}", roles.schema))

    assert answer.code == 1
    [(what, how)] = problems(answer)
    assert reported in what
    assert remedy in how


def problems(answer: Answer) -> list[tuple[str, str]]:
    findings = json.loads(answer.out)["findings"]
    return [(found["what"], found["remedy"]) for found in findings if found["level"] == "problem"]


def test_a_table_that_a_migration_brings_is_isolated_by_it(
    roles: LoginRoles, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("owner", "tenants", "on")
    grant(roles, "operator")
    more = schema_files.SchemaFile("9999_more", "create table {schema}.more (tenant text);")
    known = schema_files.migrations()
    monkeypatch.setattr(migrations, "migrations", lambda: [*known, more])

    assert "applied 9999_more" in run("owner", "migrate").out

    assert problems(run("operator", "doctor", "--json")) == []
    assert "more" in run("owner", "tenants", "status", "--json").json["isolated"]
    roles.run("DROP TABLE {}.more", roles.schema)


def test_a_file_cannot_keep_tenants_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/jobs.db").write_jobs()
    project.call(monkeypatch, capsys, "migrate")

    for args in (["on"], ["on", "--sql"], ["status"], ["bind", "ada", "acme"]):
        answer = project.call(monkeypatch, capsys, "tenants", *args)
        assert answer.code == 2
        assert "only Postgres separates tenants" in answer.err
