"""What worker_service_user may do in the example accounts, and each thing that it may not."""

from collections.abc import Iterator

import psycopg
import pytest
from accounts import Accounts, CleanAccounts, clean_accounts, installed
from psycopg import sql

SCHEMAS = {"queues", "internal", "accounts", "files", "learning", "comms"}
QUEUE = {
    "queues.dequeue_next_available_task()",
    "queues.complete_task(uuid)",
    "queues.fail_task(uuid,text)",
    "internal.run_function(text,jsonb)",
}
BUSINESS = {
    f"{name}(jsonb)"
    for name in (
        "comms.send_email_supervisor", "comms.get_email_payload", "comms.record_email_success",
        "comms.record_email_failure", "comms.send_sms_supervisor", "comms.get_sms_payload", "comms.record_sms_success",
        "comms.record_sms_failure", "files.file_deletion_supervisor", "files.get_file_delete_payload",
        "files.record_file_delete_success", "files.record_file_delete_failure", "accounts.account_deletion_supervisor",
        "accounts.account_anonymization_supervisor", "accounts.run_account_anonymization",
    )
}  # fmt: skip
FUNCTIONS = """
    select p.oid, p.oid::regprocedure::text as signature, p.prosecdef, p.proconfig, p.provolatile, p.prorettype,
           p.proowner::regrole::text as owner, p.proacl::text as acl,
           has_function_privilege('worker_service_user', p.oid, 'execute') as granted
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where n.nspname in ('queues', 'internal', 'accounts', 'files', 'learning', 'comms', 'api')
"""


@pytest.fixture(scope="module", params=["postgres18", "postgres16"])
def clean(request: pytest.FixtureRequest) -> Iterator[CleanAccounts]:
    with installed(request.getfixturevalue(request.param)) as found:
        yield found


@pytest.fixture
def accounts(clean: CleanAccounts) -> Iterator[Accounts]:
    with clean_accounts(clean) as found:
        yield found


@pytest.mark.req("S75")
def test_the_worker_has_usage_on_its_schemas_and_one_group(accounts: Accounts) -> None:
    schemas = (
        "select nspname from pg_namespace where nspname !~ '^(pg_|information)' and has_schema_privilege(%s, oid, %s)"
    )
    assert set(accounts.column(schemas, "worker_service_user", "usage")) == SCHEMAS | {"dutiful", "public"}
    assert accounts.column(schemas, "worker_service_user", "create") == []

    groups = "select m.roleid::regrole::text from pg_auth_members m where m.member = %s::regrole order by 1"
    assert accounts.column(groups, "worker_service_user") == ["dutiful_sql_worker"]
    roles = accounts.run("""
        select rolname, rolcanlogin,
               rolsuper or rolcreaterole or rolcreatedb or rolbypassrls or rolreplication as more
        from pg_roles where rolname in ('accounts_owner', 'worker_service_user') order by 1""")
    assert [tuple(role.values()) for role in roles] == [
        ("accounts_owner", False, False),
        ("worker_service_user", True, False),
    ]


@pytest.mark.req("S76", "S77", "S78")
def test_the_worker_may_execute_the_listed_functions_and_no_other(accounts: Accounts) -> None:
    functions = {row["signature"]: row for row in accounts.run(FUNCTIONS)}

    assert {name for name, row in functions.items() if row["granted"]} == QUEUE | BUSINESS
    assert {row["owner"] for row in functions.values()} == {"accounts_owner"}
    for name in BUSINESS:
        acl = functions[name]["acl"].strip("{}").split(",")
        assert functions[name]["prosecdef"] and functions[name]["proconfig"], name
        assert sorted(acl) == ["accounts_owner=X/accounts_owner", "worker_service_user=X/accounts_owner"]
    assert not functions["internal.run_function(text,jsonb)"]["prosecdef"]


@pytest.mark.req("S11", "S78", "S79")
def test_each_other_function_is_denied_by_hand_and_by_the_runner(accounts: Accounts) -> None:
    worker = accounts.worker()
    calls = accounts.run(f"""
        select f.signature, format('select %%s(%%s)', f.oid::regproc, (
            select string_agg('null::' || t::regtype, ', ') from pg_proc p, unnest(p.proargtypes) t
            where p.oid = f.oid)) as call
        from ({FUNCTIONS}) f where not f.granted and f.prorettype <> 'trigger'::regtype""")
    denied = {row["signature"] for row in calls}

    assert {
        "queues.enqueue(text,jsonb,timestamp with time zone,text,uuid)", "queues.held_claim(uuid)",
        "comms.kickoff_send_email(bigint,timestamp with time zone)", "accounts.anonymize_account(bigint)",
        "files.mark_file_deleted(bigint)", "api.request_account_deletion(bigint)",
        "files.is_file_deletion_stuck(bigint)",
    } <= denied and len(denied) > 30  # fmt: skip
    for row in calls:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied"):
            worker.session.execute(row["call"])
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied"):
        worker.session.execute("select dutiful.enqueue('email')")

    accounts.run("""
        set role accounts_owner;
        create function comms.forgotten(_payload jsonb) returns jsonb language sql security definer
        as $$ select '{"status": "succeeded"}'::jsonb $$;
        reset role""")
    for name in (
        "comms.forgotten",
        "accounts.anonymize_account",
        "comms.nowhere",
        "pg_catalog.to_json",
        "x'; drop",
        None,
    ):
        problem, _ = worker.run_function(name, {})
        assert problem is not None and "may not run the function" in problem, "what was not granted is denied"
    accounts.run("drop function comms.forgotten(jsonb)")


@pytest.mark.req("S79")
def test_each_table_view_and_sequence_is_denied(accounts: Accounts) -> None:
    worker = accounts.worker()
    relations = accounts.run("""
        select n.nspname, c.relname, c.relkind from pg_class c join pg_namespace n on n.oid = c.relnamespace
        where n.nspname in ('queues', 'internal', 'accounts', 'files', 'learning', 'comms', 'dutiful')
          and c.relkind in ('r', 'p', 'v', 'S')""")
    assert len(relations) > 80
    for relation in relations:
        name = sql.Identifier(relation["nspname"], relation["relname"])
        tries = [sql.SQL("select 1 from {}").format(name)]
        if relation["relkind"] == "S":
            tries.append(sql.SQL("select nextval({})").format(sql.Literal(name.as_string(None))))
        elif relation["relkind"] != "v":  # a view of several tables takes no writes from anyone
            tries.append(sql.SQL("insert into {} default values").format(name))
            tries.append(sql.SQL("delete from {}").format(name))
        for statement in tries:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.session.execute(statement)
    columns = (
        "select count(*) from information_schema.role_column_grants where grantee ~ 'worker_service|sql_worker|PUBLIC'"
    )
    assert accounts.ask(f"{columns} and table_schema !~ '^(pg_|information)'") == 0, "to change a column, too"
