"""The groups that `dutiful roles` makes: what each may do, and that none may do more."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from role_logins import DATABASE, LOGINS, Roles, made

from databases import Postgres
from dutiful.core.errors import DataRefused, UsageError
from dutiful.core.job import OnConflict, Unique
from dutiful.core.review.audit import AuditEvent
from dutiful.store.deliveries import Delivered
from dutiful.stores.postgres import PostgresStore
from suite.audit import event as audit_event
from suite.builders import new_job
from tenanted import LoginRoles, dropped_after, new_schema, opened

DOOR = {
    "dequeue", "renew_job", "renew_jobs", "complete_job", "fail_job", "release_job", "run_function", "maintain_jobs",
    "report_worker",
}  # fmt: skip
RELATIONS = """
    select c.relname, c.relkind from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %s and c.relkind in ('r', 'p', 'v', 'S') order by 1
"""


@pytest.fixture(scope="module", params=["18", "18 with tenants", "16", "16 with tenants"])
def roles(request: pytest.FixtureRequest) -> Iterator[Roles]:
    version, _, tenants = str(request.param).partition(" ")
    with made(request.getfixturevalue(f"postgres{version}"), tenants=bool(tenants)) as found:
        yield found


# --- the worker in SQL


@pytest.mark.req("S79")
def test_a_worker_in_sql_has_no_right_to_any_table_view_or_sequence(roles: Roles) -> None:
    relations = roles.as_superuser(RELATIONS, roles.schema)
    assert len(relations) > 30
    for name, kind in relations:
        table = sql.Identifier(roles.schema, name).as_string(None)
        rights = (
            "USAGE, SELECT, UPDATE" if kind == "S" else "SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER"
        )
        check = "has_sequence_privilege" if kind == "S" else "has_table_privilege"
        assert roles.as_superuser(f"select {check}(%s, %s, %s)", roles.logins.name("sql_worker"), table, rights) == [
            (False,)
        ], name
        if kind != "S":
            any_column = "select has_any_column_privilege(%s, %s, 'SELECT, INSERT, UPDATE, REFERENCES')"
            assert roles.as_superuser(any_column, roles.logins.name("sql_worker"), table) == [(False,)], name
            roles.denied("sql_worker", f"select 1 from {{s}}.{name}")


@pytest.mark.req("S76", "S79")
def test_a_worker_in_sql_may_execute_its_functions_and_no_other(roles: Roles) -> None:
    assert roles.executable("sql_worker") == DOOR


@pytest.mark.req("S76")
@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_worker_in_sql_claims_renews_and_settles_jobs_of_any_tenant(roles: Roles, tenant: str | None) -> None:
    jobs = [roles.enqueue(tenant) for _ in range(4)]
    claimed = roles.run("sql_worker", "select job_id, claim_id from {s}.dequeue(array['greet'], p_limit => 4)")
    assert [job_id for job_id, _ in claimed] == jobs

    answers = [
        roles.run("sql_worker", f"select {{s}}.{call}", *claim)[0][0]
        for call, claim in zip(
            ("renew_job(%s, %s)", "complete_job(%s, %s, '1')", "fail_job(%s, %s, 'no', false)", "release_job(%s, %s)"),
            claimed,
            strict=True,
        )
    ]

    assert answers == ["held", "applied", "failed", "applied"]
    states = [roles.run("worker", "select state from {s}.jobs where id = %s", job_id)[0][0] for job_id in jobs]
    assert states == ["running", "completed", "failed", "ready"]
    assert roles.run("sql_worker", "select {s}.complete_job(%s, %s)", *claimed[0]) == [("applied",)]
    again = roles.run("sql_worker", "select job_id, claim_id from {s}.dequeue(array['greet'])")
    assert roles.run("sql_worker", "select {s}.complete_job(%s, %s)", *again[0]) == [("applied",)]


@pytest.mark.req("S76")
@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_worker_in_sql_rescues_and_promotes_jobs_of_any_tenant(roles: Roles, tenant: str | None) -> None:
    lost, due = roles.enqueue(tenant), roles.enqueue(tenant)
    claim = "select job_id from {s}.dequeue(array['greet'], p_lease => interval '1 microsecond')"
    assert roles.run("sql_worker", claim) == [(lost,)]
    s = roles.schema
    roles.as_superuser(
        f"with gone as (delete from {s}.ready where job_id = %s returning *)"
        f" insert into {s}.scheduled (run_at, job_id, kind, queue, priority, attempt, crashes, tenant)"
        " select clock_timestamp(), job_id, kind, queue, priority, attempt, crashes, tenant from gone",
        due,
    )

    assert roles.run("sql_worker", "select promoted, rescued from {s}.maintain_jobs(array['greet'])") == [(1, 1)]

    again = roles.run("sql_worker", "select job_id, claim_id from {s}.dequeue(array['greet'])")
    again += roles.run("sql_worker", "select job_id, claim_id from {s}.dequeue(array['greet'])")
    assert {job_id for job_id, _ in again} == {lost, due}
    for one in again:
        assert roles.run("sql_worker", "select {s}.complete_job(%s, %s)", *one) == [("applied",)]


@pytest.mark.parametrize(
    "call",
    [
        "dequeue(array['greet'], p_now => now())",
        "renew_job(%s, 1, p_now => now())",
        "renew_jobs(array[%s], array[1], p_now => now())",
        "complete_job(%s, 1, p_now => now())",
        "fail_job(%s, 1, 'm', p_now => now())",
        "release_job(%s, 1, p_now => now())",
        "maintain_jobs(array['greet'], p_now => now())",
    ],
)
def test_a_worker_in_sql_cannot_forge_times(roles: Roles, call: str) -> None:
    args = [UUID(int=7)] if "%s" in call else []
    assert "p_now" in roles.denied("sql_worker", f"select {{s}}.{call}", *args)


@pytest.mark.req("S11", "S79")
@pytest.mark.parametrize(
    "call",
    [
        "{s}.enqueue('greet')",
        "{s}.tenant_enqueue('acme', 'greet')",
        "{s}.insert_jobs(jsonb_build_array())",
        "{s}.insert_for('[]', null, false, true, '*')",
        "{s}.run_function('{s}.enqueue', '{}')",
    ],
)
def test_a_worker_in_sql_cannot_enqueue(roles: Roles, call: str) -> None:
    roles.denied("sql_worker", f"select {call}")


@pytest.mark.req("S11", "S78")
def test_a_handler_that_was_granted_enqueues_for_it_and_another_does_not_run(roles: Roles) -> None:
    with psycopg.connect(roles.logins.superuser_url, autocommit=True) as owner:
        owner.execute(
            """
            create schema comms;
            create function comms.supervise(p jsonb) returns jsonb language sql security definer as
                $$ select to_jsonb({s}.enqueue('welcome', p, p_queue => 'mail')) $$;
            create function comms.unlisted(p jsonb) returns jsonb language sql security definer as
                $$ select to_jsonb({s}.enqueue('unlisted', p, p_queue => 'mail')) $$;
            revoke execute on all functions in schema comms from public;
            grant usage on schema comms to {s}_sql_worker;
            grant execute on function comms.supervise(jsonb) to {s}_sql_worker;
            """.replace("{s}", roles.schema).encode()
        )
        try:
            run = "select {s}.run_function(%s, '{\"id\": 7}')"
            assert UUID(roles.run("sql_worker", run, "comms.supervise")[0][0])
            roles.denied("sql_worker", run, "comms.unlisted")
            roles.denied("sql_worker", "select comms.unlisted('{}')")
        finally:
            owner.execute("drop schema comms cascade")

    kinds = roles.run("worker", "select kind, payload from {s}.jobs where queue = 'mail'")
    assert kinds == [("welcome", {"id": 7})]


@pytest.mark.req("S79")
@pytest.mark.parametrize("role", ["sql_worker", "client", "reader", "nobody"])
def test_nobody_takes_more_than_was_given(roles: Roles, role: str) -> None:
    for attempt in (
        "create table {s}.mine (a int)",
        "create function {s}.mine() returns int language sql as 'select 1'",
        "set role {s}_owner_user",
        "set role {s}_worker",
        "alter function {s}.dequeue security invoker",
        "alter table {s}.job disable row level security",
        "select {s}.roles_on()",
        "select {s}.tenants_off()",
    ):
        with pytest.raises(psycopg.Error, match=r"permission denied|must be owner"):
            roles.run(role, attempt)


# --- the others


def test_a_login_in_no_group_may_do_nothing(roles: Roles) -> None:
    assert roles.executable("nobody") == set()
    roles.denied("nobody", "select 1 from {s}.jobs")
    roles.denied("nobody", "select * from {s}.dequeue(array['greet'])")


def test_a_reader_reads_jobs_and_changes_nothing(roles: Roles) -> None:
    job_id = roles.enqueue("acme")
    found = roles.run("reader", "select kind, state from {s}.look_up_job(%s)", job_id, tenant="acme")
    assert found == [("greet", "ready")]
    for name, kind in roles.as_superuser(RELATIONS, roles.schema):
        if kind == "v":
            roles.run("reader", f"select * from {{s}}.{name} limit 1", tenant="*")
        elif kind != "S":
            roles.denied("reader", f"delete from {{s}}.{name}")
    for secret in ("meta", "api_token", "audit_event", "tenant_role"):
        roles.denied("reader", f"select 1 from {{s}}.{secret}")
    for call in ("enqueue('greet')", "cancel(gen_random_uuid(), 'no', null)", "dequeue(array['greet'])"):
        roles.denied("reader", f"select {{s}}.{call}")
    isolates = roles.run("owner", "select {s}.tenants_enabled()") == [(True,)]
    for tenant, seen in (("acme", True), ("globex", not isolates), ("", not isolates)):
        there = roles.run("reader", "select 1 from {s}.jobs where id = %s", job_id, tenant=tenant)
        assert (there == [(1,)]) is seen
    roles.run("operator", "select {s}.cancel(%s, 'over', null)", job_id, tenant="*")


def test_an_operator_acts_and_claims_nothing(roles: Roles) -> None:
    ((job_id,),) = roles.run("operator", "select {s}.enqueue('greet', p_queue => 'other')", tenant="*")
    assert roles.run("operator", "select state from {s}.cancel(%s, 'no use', null)", job_id, tenant="*") == [
        ("cancelled",)
    ]
    roles.denied("operator", "select * from {s}.dequeue(array['greet'])")


def test_a_client_enqueues_cancels_and_reads(roles: Roles) -> None:
    async def use() -> None:
        key = Unique("k", on_conflict=OnConflict.REPLACE)
        async with opened(roles.logins.url("client"), roles.schema) as store:

            async def put(**fields: Any) -> UUID:
                job = new_job(tenant="acme", queue="client", **fields)
                return (await store.jobs.insert([job]))[0].job_id

            async def state(job_id: UUID) -> str:
                found = await store.queries.job(job_id)
                return str(found and found.state)

            replaced, ready = await put(unique=key), await put(unique=key)
            dependent = await put(depends_on=(ready,))
            assert [await state(job) for job in (replaced, ready, dependent)] == ["cancelled", "ready", "blocked"]
            assert await put(unique=Unique("k")) == ready, "what was stored for it is withdrawn"
            roles.denied("client", "select {s}.withdraw_job(%s)", ready)
            came = await store.control.cancel(ready, "no use")
            assert came and came.changed and await state(ready) == "cancelled"

            running = await put()
            ((claim_id,),) = roles.run(
                "sql_worker", "select claim_id from {s}.dequeue(array['greet'], array['client'])"
            )
            came = await store.control.cancel(running, "stop")
            assert came and came.requested
            assert roles.run("sql_worker", "select {s}.release_job(%s, %s)", running, claim_id) == [("cancelled",)]
            assert await state(running) == "cancelled"

            watcher = uuid4()
            await store.events.listen(watcher, timedelta(seconds=30))
            assert await store.events.has_listeners()
            await store.events.unlisten(watcher)
            assert not await store.events.has_listeners()
            delivered = await put()
            await store.deliveries.record([Delivered(delivered, "backend-7", 1, 0)])
            found = await store.deliveries.find(delivered)
            assert found is not None and found.backend_job_id == "backend-7"
            await store.control.cancel(delivered, "over")

    asyncio.run(use())


@pytest.mark.parametrize(
    "statement",
    [
        "delete from {s}.job",
        "update {s}.finished set state = 'completed'",
        "delete from {s}.finished",
        "insert into {s}.lease select * from {s}.lease",
        "update {s}.lease set claim_id = 1",
        "update {s}.dead_letter set job_id = job_id",
        "insert into {s}.pause select * from {s}.pause",
        "update {s}.breaker set name = name",
        "update {s}.schedule set name = name",
        "select 1 from {s}.api_token",
        "insert into {s}.api_token default values",
        "select action from {s}.audit_event",
        "delete from {s}.audit_event",
        "update {s}.meta set value = value",
        "insert into {s}.tenant_role default values",
        "select nextval('{s}.claim_seq')",
        "select {s}.dequeue(array['greet'])",
        "select {s}.roles_on()",
        "select {s}.end_waiting(gen_random_uuid(), 'completed', null, null)",
        "select * from {s}.insert_jobs('[]', now())",
        "select * from {s}.cancel(gen_random_uuid(), 'no', now())",
        "select {s}.listen(gen_random_uuid(), '1 minute', now())",
    ],
)
def test_a_client_acts_on_nothing_but_jobs_that_wait(roles: Roles, statement: str) -> None:
    with pytest.raises(psycopg.Error, match=r"permission denied|must be owner|p_now is for tests"):
        roles.run("client", statement, tenant="*")


def test_a_client_writes_no_table_but_by_functions(roles: Roles) -> None:
    """So it cannot write a row that the functions would not: a job without a place, an end that was none, a key."""
    client = roles.logins.name("client")
    for name, kind in roles.as_superuser(RELATIONS, roles.schema):
        relation = sql.Identifier(roles.schema, name).as_string(None)
        if kind == "S":
            rights = "select has_sequence_privilege(%s, %s, 'USAGE, UPDATE')"
        else:
            columns = "INSERT, UPDATE, REFERENCES" if name != "audit_event" else "UPDATE, REFERENCES"
            rights = (
                "select has_table_privilege(%s, %s, 'DELETE, TRUNCATE, TRIGGER') or "
                f"has_any_column_privilege('{client}', '{relation}', '{columns}')"
            )
        assert roles.as_superuser(rights, client, relation) == [(False,)], name


def test_a_client_records_what_it_cancels_under_its_login_and_nothing_else(roles: Roles) -> None:
    event = audit_event(action="job.cancel", principal="ada", tenant="acme", at=datetime.now(UTC))

    async def append(given: AuditEvent) -> None:
        async with opened(roles.logins.url("client"), roles.schema) as store:
            await store.audit.append([given])

    asyncio.run(append(event))

    trail = f"select principal from {roles.schema}.audit_event where id = %s"
    assert roles.as_superuser(trail, event.id) == [(f"ada ({roles.logins.name('client')})",)]
    with pytest.raises(DataRefused, match=r"may not do token\.create"):
        asyncio.run(append(audit_event(action="token.create", tenant="acme", at=datetime.now(UTC))))


@pytest.mark.parametrize("role", ["worker", "client", "sql_worker", "reader", "member"])
@pytest.mark.parametrize(
    "statement",
    [
        "insert into {s}.api_token (id, created_at, hash, name, role, created_by) "
        "values (gen_random_uuid(), now(), 'h', 'mine', 'admin', 'me')",
        "update {s}.api_token set role = 'admin'",
        "update {s}.api_token set revoked_at = null, expires_at = null",
        "delete from {s}.api_token",
    ],
)
def test_nobody_but_an_operator_makes_or_changes_api_tokens(roles: Roles, role: str, statement: str) -> None:
    roles.denied(role, statement)


def test_a_member_enqueues_and_reads_for_its_own_tenant_where_tenants_are_on(roles: Roles) -> None:
    enqueue = "select {s}.tenant_enqueue(%s, 'greet', p_queue => 'own')"
    if roles.run("owner", "select {s}.tenants_enabled()") == [(False,)]:
        roles.denied("member", enqueue, "acme")
        return
    ((job_id,),) = roles.run("member", enqueue, "acme")
    assert roles.run("member", "select id from {s}.jobs where queue = 'own'") == [(job_id,)]
    roles.denied("member", enqueue, "globex")
    assert not roles.executable("member") & DOOR


@pytest.mark.parametrize("group", ["sql_worker", "client", "reader"])
def test_a_role_that_sees_all_tenants_cannot_be_bound_to_one(roles: Roles, group: str) -> None:
    async def bind() -> None:
        async with opened(roles.logins.url("owner"), roles.schema) as store:
            await store.tenants.bind(roles.logins.name(group), "acme")

    with pytest.raises(UsageError, match="can see every tenant"):
        asyncio.run(bind())


def test_a_migration_gives_what_it_makes_to_the_groups_and_to_nobody_else(roles: Roles) -> None:
    before = {role: roles.executable(role) for role in LOGINS[1:]}
    roles.as_superuser(
        f"delete from {roles.schema}.migration where name in ('functions/jobs_enqueue', 'functions/views')"
    )
    roles.as_superuser(f"drop function {roles.schema}.enqueue")

    asyncio.run(PostgresStore(roles.logins.url("owner"), schema=roles.schema).migrate())

    assert {role: roles.executable(role) for role in LOGINS[1:]} == before
    assert "enqueue" in before["operator"] and "enqueue" not in before["sql_worker"] | before["nobody"]


def test_the_schema_goes_to_an_owner_that_cannot_log_in(postgres18: Postgres) -> None:
    """Functions with the owner's rights lend those of no login; the former owner migrates and works as before."""
    schema = new_schema()
    server, database = postgres18, f"{DATABASE}_owned"
    server.drop_database(database)
    with dropped_after(server, database, schema, ("deploy", "sql_worker")):
        logins = LoginRoles(server.create_database(database), schema)
        logins.create("deploy", rights="CREATEROLE")
        logins.create("sql_worker")
        logins.run("GRANT CREATE ON DATABASE {} TO {}", database, logins.name("deploy"))
        url, found = logins.url("deploy"), Roles(logins)
        owners = f"""
            select proowner::regrole::text from pg_proc where pronamespace = '{schema}'::regnamespace
            union select relowner::regrole::text from pg_class where relnamespace = '{schema}'::regnamespace
            union select typowner::regrole::text from pg_type where typnamespace = '{schema}'::regnamespace
            union select nspowner::regrole::text from pg_namespace where nspname = '{schema}'"""

        async def make() -> str | None:
            async with opened(url, schema) as store:
                return await store.tenants.make_roles()

        asyncio.run(PostgresStore(url, schema=schema).migrate())
        assert asyncio.run(make()) == logins.name("deploy"), "it may not let another role create schemas"
        assert found.as_superuser(owners) == [(logins.name("deploy"),)]

        logins.run("ALTER DATABASE {} OWNER TO {}", database, logins.name("deploy"))
        for _ in range(2):
            assert asyncio.run(make()) is None
            assert found.as_superuser(owners) == [(f"{schema}_owner",)]
        creates = "select has_database_privilege(%s, %s, 'create')"
        assert found.as_superuser(creates, f"{schema}_owner", database) == [(False,)], "lent for the hand-over only"

        found.as_superuser(f"delete from {schema}.migration where name like 'functions/%%'")
        found.as_superuser(f"drop function {schema}.enqueue")
        assert "functions/jobs_enqueue" in asyncio.run(PostgresStore(url, schema=schema).migrate())
        assert found.as_superuser(owners) == [(f"{schema}_owner",)]
        found.run("deploy", "select {s}.enqueue('greet')")
        logins.run("GRANT {} TO {}", f"{schema}_sql_worker", logins.name("sql_worker"))
        assert len(found.run("sql_worker", "select * from {s}.dequeue(array['greet'])")) == 1
        found.denied("sql_worker", "set role {s}_owner")


def test_tenants_off_leaves_the_rights_of_roles(postgres18: Postgres) -> None:
    with made(postgres18, tenants=True) as found:
        before = {
            role: found.executable(role) for role in ("operator", "client", "worker", "sql_worker", "reader", "nobody")
        }

        async def switch() -> None:
            async with opened(found.logins.url("owner"), found.schema) as store:
                await store.tenants.disable()

        asyncio.run(switch())

        assert {role: found.executable(role) for role in before} == before
        assert before["sql_worker"] == DOOR
