"""Hostile sessions against every function that lends its owner's rights: nothing of theirs runs with those."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from role_logins import Roles, made

# Names that the functions use, unqualified or as operators. Each notes who has called it.
SHADOWS = """
    create function evil.note(what text) returns boolean language plpgsql as
        $$ begin insert into evil.seen values (what, current_user); return true; end $$;
    create function evil.clock_timestamp() returns timestamptz language sql as
        $$ select pg_catalog.now() where evil.note('clock_timestamp') $$;
    create function evil.set_config(text, text, boolean) returns text language sql as
        $$ select pg_catalog.set_config($1, $2, $3) where evil.note('set_config') $$;
    create function evil.current_setting(text, boolean) returns text language sql as
        $$ select pg_catalog.current_setting($1, $2) where evil.note('current_setting') $$;
    create function evil.nextval(text) returns bigint language sql as $$ select 7::bigint where evil.note('nextval') $$;
    create function evil.jsonb_array_elements(jsonb, out value jsonb) returns setof jsonb language sql as
        $$ select pg_catalog.jsonb_array_elements($1) where evil.note('jsonb_array_elements') $$;
    create function evil.pg_notify(text, text) returns void language sql as
        $$ select pg_catalog.pg_notify($1, $2) where evil.note('pg_notify') $$;
    create function evil.gen_random_uuid() returns uuid language sql as
        $$ select pg_catalog.gen_random_uuid() where evil.note('gen_random_uuid') $$;
    create function evil.same(text, text) returns boolean language sql as
        $$ select pg_catalog.texteq($1, $2) and evil.note('text = text') $$;
    create operator evil.= (leftarg = text, rightarg = text, function = evil.same);
    create function evil.same(uuid, uuid) returns boolean language sql as
        $$ select pg_catalog.uuid_eq($1, $2) and evil.note('uuid = uuid') $$;
    create operator evil.= (leftarg = uuid, rightarg = uuid, function = evil.same);
    create function evil.later(timestamptz, interval) returns timestamptz language sql as
        $$ select pg_catalog.timestamptz_pl_interval($1, $2) where evil.note('timestamptz + interval') $$;
    create operator evil.+ (leftarg = timestamptz, rightarg = interval, function = evil.later);
"""
# In any session: tables of these names are found before those of the path, unless pg_temp is named last.
TEMPORARY = ("job", "ready", "lease", "finished", "pause", "unique_key", "pg_proc", "pg_roles", "pg_class", "leader")
PATH = "set search_path = evil, pg_temp, pg_catalog"
# Called directly first, so that the session has plans of what the others call, made with the hostile path.
NESTED = ("seq_at(clock_timestamp())", "new_id()", "floor_id(now())", "trace_options('x')", "limit_gate('a', 'b')")
JOB = "jsonb_build_array(jsonb_build_object('id', {s}.new_id(), 'kind', 'greet', 'tenant', 'acme', 'queue', 'evil'))"
BY_CLIENT = (
    "{s}.enqueue('greet', p_tenant => 'acme', p_queue => 'evil', p_unique => 'k')",
    "{s}.enqueue('greet', p_tenant => 'acme', p_queue => 'evil', p_unique => 'k', p_on_conflict => 'replace')",
    "{s}.enqueue('greet', p_tenant => 'acme', p_queue => 'evil')",
    f"{{s}}.insert_jobs({JOB}, p_notify => true)",
    f"{{s}}.insert_for({JOB}, null, true, false, '*')",
    "{s}.cancel('00000000-0000-7000-8000-000000000000', 'no', null)",
    "{s}.record_deliveries(array['00000000-0000-7000-8000-000000000000'::pg_catalog.uuid], '{x}', '{1}', '{0}', null)",
    "{s}.listen('00000000-0000-7000-8000-000000000000', '1 minute')",
    "{s}.unlisten('00000000-0000-7000-8000-000000000000')",
    "{s}.has_live_job('x', 'greet')",
    "{s}.send_event('paid', 'order-7', '{}', 'acme')",
)
CLAIM = "'{job}', {claim}"
BY_WORKER = (
    f"{{s}}.renew_job({CLAIM})",
    "{s}.renew_jobs(array['{job}'::pg_catalog.uuid], array[{claim}]::bigint[])",
    f"{{s}}.fail_job({CLAIM}, 'no', true, '1 hour')",
    f"{{s}}.complete_job({CLAIM}, '1', '[{{\"message\": \"m\"}}]')",
    f"{{s}}.release_job({CLAIM})",
    "{s}.maintain_jobs(array['greet'])",
    "{s}.report_worker('00000000-0000-7000-8000-000000000000', 'evil', array['greet'])",
    "{s}.report_worker('00000000-0000-7000-8000-000000000000', 'evil', array['greet'], p_slots => 0)",
)
DEFINERS = "select oid::regprocedure::text, proconfig from pg_proc where pronamespace = %s::regnamespace and prosecdef"


@pytest.fixture(scope="module", params=["18 with tenants", "16"])
def roles(request: pytest.FixtureRequest) -> Iterator[Roles]:
    version, _, tenants = str(request.param).partition(" ")
    with made(request.getfixturevalue(f"postgres{version}"), tenants=bool(tenants)) as found:
        yield found


@contextmanager
def hostile(roles: Roles, role: str) -> Iterator[Any]:
    """Runs calls in one session of this login, which has shadowed what it could; each is rolled back if it fails."""
    name = roles.logins.name(role)
    roles.as_superuser(f"create schema evil authorization {name}")
    with psycopg.connect(roles.logins.url(role), autocommit=True) as session:
        try:
            session.execute(f"create table evil.seen (what text, who text); {SHADOWS}".encode())
            session.execute("grant usage on schema evil to public; grant insert on evil.seen to public")
            for table in TEMPORARY:
                session.execute(f"create temp table {table} (id pg_catalog.uuid, kind text)".encode())
            session.execute("select pg_catalog.set_config('dutiful.tenant', 'acme', false)")
            session.execute(PATH)

            def call(text: str, **values: Any) -> list[Any]:
                statement = f"select * from {text}".replace("{s}", roles.schema)
                for key, value in values.items():
                    statement = statement.replace("{" + key + "}", str(value))
                return session.execute(statement.encode()).fetchall()

            yield call
        finally:
            session.execute("reset search_path")
            session.execute("drop schema evil cascade")


def callers(roles: Roles) -> set[str]:
    return {who for (who,) in roles.as_superuser("select who from evil.seen")}


def test_the_shadows_are_found_by_a_function_that_pins_no_path(roles: Roles) -> None:
    """Otherwise the tests below would prove nothing."""
    with hostile(roles, "client") as call:
        call("{s}.new_id()")

        assert callers(roles) == {roles.logins.name("client")}


@pytest.mark.req("S77", "S78")
def test_a_clients_calls_run_nothing_of_its_own_with_the_owners_rights(roles: Roles) -> None:
    with hostile(roles, "client") as call:
        for nested in NESTED:
            call(f"{{s}}.{nested}")
        for text in BY_CLIENT:
            call(text)
        for text in BY_CLIENT[:2]:
            with pytest.raises(psycopg.errors.CheckViolation):
                call(text.replace("'greet'", "''"))

        assert callers(roles) <= {roles.logins.name("client")}
    jobs = f"select count(*) from {roles.schema}.job where queue = 'evil'"
    assert roles.as_superuser(jobs) == [(5,)]
    roles.as_superuser(f"select {roles.schema}.cancel(id, 'over', null) from {roles.schema}.job where queue = 'evil'")


@pytest.mark.req("S77", "S78")
@pytest.mark.parametrize("text", BY_WORKER)
def test_a_workers_calls_run_nothing_of_its_own_with_the_owners_rights(roles: Roles, text: str) -> None:
    job_id = roles.enqueue("acme")
    with hostile(roles, "sql_worker") as call:
        ((claimed, claim),) = call("(select job_id, claim_id from {s}.dequeue(array['greet'])) d")
        call(text, job=claimed, claim=claim)
        call("{s}.dequeue(array['greet'], p_limit => 3, p_tenants => array['globex'])")

        assert callers(roles) <= {roles.logins.name("sql_worker")}
        assert claimed == job_id
    roles.as_superuser(f"select {roles.schema}.cancel(%s, 'over', null)", job_id)
    roles.run("sql_worker", "select {s}.release_job(%s, %s)", claimed, claim)


@pytest.mark.req("S77")
def test_every_function_with_its_owners_rights_pins_its_path_and_names_temporary_objects_last(roles: Roles) -> None:
    found = roles.as_superuser(DEFINERS, roles.schema)
    assert len(found) > 15
    for name, settings in found:
        assert "search_path=pg_catalog, pg_temp" in (settings or []), name


@pytest.mark.req("S79")
def test_no_function_with_its_owners_rights_is_everyones(roles: Roles) -> None:
    everyones = "select proname from pg_proc where pronamespace = %s::regnamespace"
    allowed = everyones + " and has_function_privilege('public', oid, 'execute')"
    assert roles.as_superuser(allowed, roles.schema) == []


BAD_IDS = ("00000000-0000-4000-8000-000000000000", "00000000-0000-0000-0000-000000000007")
ONE = "jsonb_build_object('id', {s}.new_id(), 'kind', 'odd', 'tenant', 'acme')"
NULLS = ", ".join(["null"] * 8)
ARRAYS = f"'{{odd}}', '{{q}}', '{{\"{{}}\"}}', '{{1}}', '{{1}}', '{{acme}}', {NULLS}"
LONG = "repeat('x', 70000)"
# Stored in some bytes each, written out as 131,072 digits.
DIGITS = "jsonb_build_object('a', ('[' || repeat('1e131071,', 200) || '1]')::jsonb)"


@pytest.mark.parametrize(
    "call",
    [
        *(f"insert_jobs(jsonb_build_array({ONE} || jsonb_build_object('id', '{bad}')))" for bad in BAD_IDS),
        *(f"insert_one(null, null, '{bad}', 'odd', 'q', '{{}}', 1, 1, 'acme', {NULLS})" for bad in BAD_IDS),
        *(f"insert_plain(null, null, '{{{bad}}}', {ARRAYS})" for bad in BAD_IDS),
        *(f"insert_jobs(jsonb_build_array({ONE} || '{odd}'))" for odd in (
            '{"unique": {"key": "k", "scope": "window", "on_conflict": "return"}}',
            '{"unique": {"key": "k", "scope": "active", "on_conflict": "return", "window_ms": 5}}',
            '{"payload": 7}', '{"priority": -1}', '{"max_attempts": 0}',
            '{"run_at": "infinity"}', '{"queue": ""}', '{"tenant": "*"}')),
        f"insert_jobs(jsonb_build_array({ONE} || jsonb_build_object('created_by', repeat('x', 201))))",
        f"insert_jobs(jsonb_build_array({ONE} || jsonb_build_object('options', jsonb_build_object('a', {LONG}))))",
        *(f"insert_jobs(jsonb_build_array({ONE} || jsonb_build_object('{name}', {DIGITS})), p_checked => true)"
          for name in ("payload", "subject", "options")),
        "put_event({s}.new_id(), 'e', 'k', '[' || repeat('1e131071,', 200) || '1]', 'acme', 'me', '1 hour', null)",
        "put_event({s}.new_id(), 'e', 'k', 'null', 'acme', repeat('x', 201), '1 hour', null)",
        "put_event({s}.new_id(), 'e', 'k', 'null', 'acme', 'me', '9000 years', null)",
        "send_event('e', 'k', p_tenant => 'acme', p_keep => '9000 years')",
    ],
)  # fmt: skip
def test_a_client_cannot_store_a_row_that_the_library_would_not(roles: Roles, call: str) -> None:
    with pytest.raises((psycopg.errors.IntegrityError, psycopg.errors.DataError)):
        roles.run("client", f"select {{s}}.{call}", tenant="acme")

    assert roles.as_superuser(f"select 1 from {roles.schema}.job where kind = 'odd'") == []


def test_a_payload_that_comes_compressed_from_a_table_is_measured_by_its_text(roles: Roles) -> None:
    roles.as_superuser("create temp table packed (payload jsonb)")
    numbers = "'[' || repeat('1e131071,', 2500) || '1]'"
    roles.as_superuser(f"insert into packed select jsonb_build_object('a', ({numbers})::jsonb)")
    assert roles.as_superuser("select pg_column_size(payload) <= 1024 from packed") == [(True,)]

    with pytest.raises(psycopg.errors.CheckViolation, match="job_payload_size"):
        roles.as_superuser(f"select pg_column_size(payload::{roles.schema}.job_payload) from packed")
    roles.as_superuser("drop table packed")


def test_a_watcher_of_a_client_is_forgotten_after_a_day(roles: Roles) -> None:
    roles.run("client", "select {s}.listen(gen_random_uuid(), '1000 years')")

    ((lasting,),) = roles.as_superuser(f"delete from {roles.schema}.listener returning expires_at - now()")
    assert lasting <= timedelta(days=1)


@pytest.mark.parametrize("role", ["client", "reader", "member", "sql_worker", "nobody"])
def test_only_operators_and_workers_learn_the_numbers_of_locks(roles: Roles, role: str) -> None:
    roles.denied(role, "select value from {s}.lock_secret")
    if role == "client":
        assert {key for (key,) in roles.run(role, "select key from {s}.meta")} == {"schema_version", "oldest_version"}


@pytest.mark.parametrize("roles", ["18 with tenants"], indirect=True)
def test_a_login_of_two_groups_acts_for_the_tenant_that_it_names(roles: Roles) -> None:
    theirs = roles.enqueue("globex")
    roles.logins.run("GRANT {} TO {}", f"{roles.schema}_sql_worker", roles.logins.name("client"))
    try:
        cancelled = roles.run("client", "select * from {s}.cancel(%s, 'x', null)", theirs, tenant="acme")
        with pytest.raises(psycopg.Error):
            roles.run("client", "select {s}.enqueue('greet', p_tenant => 'globex')", tenant="acme")
    finally:
        roles.logins.run("REVOKE {} FROM {}", f"{roles.schema}_sql_worker", roles.logins.name("client"))
    state = roles.run("operator", "select state from {s}.jobs where id = %s", theirs, tenant="globex")
    assert state == [("ready",)], cancelled
