"""What `dutiful supervisor new` generates: rights, names, channels, and what a second run changes."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from supervised import KICKOFF, SUPERVISOR, Row, Session, Supervised, outcomes, refuse, supervised

DATABASE = "dutiful_supervisors"


@pytest.fixture(scope="module", params=["18", "16"])
def database(request: pytest.FixtureRequest) -> Iterator[Supervised]:
    with supervised(request.getfixturevalue(f"postgres{request.param}"), DATABASE) as found:
        yield found


@pytest.fixture
def world(database: Supervised) -> Supervised:
    database.reset()
    return database


@pytest.fixture
def email(world: Supervised) -> Supervised:
    return world.make_email()


# --- rights


@pytest.mark.req("S47")
def test_the_worker_runs_the_supervisor_and_handlers_and_nothing_else(email: Supervised) -> None:
    functions = email.root.rows(
        "select p.oid::regprocedure::text as name, p.prosecdef as definer, "
        "has_function_privilege(%s, p.oid, 'execute') as worker, "
        "has_function_privilege(%s, p.oid, 'execute') as nobody "
        "from pg_proc p where p.pronamespace = 'comms'::regnamespace",
        email.logins.name("sql_worker"),
        email.logins.name("nobody"),
    )
    assert len(functions) == 9
    assert {one["name"] for one in functions if one["worker"]} == {
        f"comms.{name}(jsonb)"
        for name in (
            "send_email_supervisor", "get_send_email_payload", "record_send_email_success", "record_send_email_failure"
        )
    }  # fmt: skip
    assert not any(one["nobody"] for one in functions)
    assert all(one["definer"] for one in functions if one["worker"])

    nobody = email.session("nobody")
    for table in ("task", "attempt", "attempt_succeeded", "attempt_failed", "task_failed"):
        for session in (email.worker, nobody):
            for statement in ("select 1 from {}", "insert into {} default values", "delete from {}"):
                _denied(session, statement.replace("{}", f"comms.send_email_{table}"))
    for session in (email.worker, nobody):
        for call in ("kickoff_send_email(7)", "is_send_email_stuck(7)", "count_send_email_attempts(1)"):
            _denied(session, f"select comms.{call}")
    _denied(nobody, f"select {SUPERVISOR}('{{}}')")

    name = email.logins.name("nobody")
    email.owner.rows(f"grant usage on schema comms to {name}")
    email.owner.rows(f"grant execute on function comms.kickoff_send_email(bigint, timestamptz) to {name}")
    assert nobody.value(KICKOFF, 7) is None
    nobody.connection.close()
    assert len(email.jobs()) == 1


def _denied(session: Session, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.rows(statement)


def test_a_role_without_the_right_to_enqueue_cannot_own_a_supervisor(world: Supervised) -> None:
    nobody = world.session("nobody")
    text = world.generate("own.process", channel="push")
    with pytest.raises(psycopg.errors.RaiseException, match="may not enqueue") as raised:
        nobody.rows(text)
    assert f"grant {world.schema}_client" in str(raised.value)
    nobody.connection.close()
    with pytest.raises(psycopg.errors.RaiseException, match='role "No One" of workers does not exist') as raised:
        world.owner.rows(world.generate("own.process", channel="push", worker_role='"No One"'))
    assert "--worker-role" in str(raised.value)
    with pytest.raises(psycopg.errors.RaiseException, match="no schema elsewhere") as raised:
        world.owner.rows(world.generate("own.process", channel="push").replace(world.schema, "elsewhere"))
    assert "dutiful migrate" in str(raised.value)


# --- generated again


def test_a_migration_can_be_run_again_and_leaves_facts_and_handlers_alone(email: Supervised) -> None:
    email.owner.value(KICKOFF, 7)
    email.work("email", provider=refuse)
    before = email.facts()

    email.make()
    email.make(max_attempts=1, base=timedelta(minutes=1))

    assert email.facts() == before
    email.time_passes()
    assert outcomes(email.work("email")) == ["max_attempts_reached"]
    assert email.facts()["final"] == ["1 of 1 attempts failed, the last: ada@example.org is unknown"]
    assert email.run("comms.get_send_email_payload", {"send_email_attempt_id": 1}) == {
        "status": "succeeded",
        "payload": {"to_address": "ada@example.org", "subject": "Hello", "body": "Hello 7"},
    }


def test_a_schema_that_is_missing_is_made_and_one_of_others_is_used(world: Supervised) -> None:
    world.make("fresh.ping", channel="push")
    assert world.owner.value("select fresh.kickoff_ping(1)") is None

    owner = world.logins.name("client")
    world.root.rows("create schema lent")
    world.root.rows(f"grant usage, create on schema lent to {owner} with grant option")
    world.root.rows(f"revoke create on database {DATABASE} from {owner}")
    try:
        world.make("lent.ping", channel="push")
        world.make("lent.ping", channel="push")
    finally:
        world.root.rows(f"grant create on database {DATABASE} to {owner}")
    assert world.owner.value("select lent.kickoff_ping(1)") is None
    assert outcomes(world.work()) == ["attempt_created"] * 2


# --- names


@pytest.mark.parametrize(
    ("process", "key"),
    [
        ('"Odd ""Schema"""."Select; drop table x --"', '"Order":uuid'),
        ('"{task} \'%s\'"."user"', '"it\'s {a}":text'),
        ('"select"."table"', "order:text"),
        ("values.between", '"coalesce":text'),
        ("s" * 63 + "." + "n" * 41, "k" * 62 + ":date"),
        ('"' + '""' * 63 + '"."' + '""' * 41 + '"', '"' + '""' * 62 + '":smallint'),
    ],
)
def test_any_name_works_from_the_kickoff_to_the_end(world: Supervised, process: str, key: str) -> None:
    world.make(process, channel="push", keys=[key])
    world.make(process, channel="push", keys=[key])
    name, _, kind = key.rpartition(":")
    value = {"uuid": "0193f2c8-5d0e-7c4e-9d0a-3f1b2c4d5e6f", "date": "2030-01-01", "smallint": "7"}.get(kind, "x")
    (function,) = world.root.rows(
        "select p.oid::regproc::text as name from pg_proc p join pg_namespace n on n.oid = p.pronamespace "
        "where starts_with(proname, 'kickoff_') and n.nspname not in (%s, 'public')",
        world.schema,
    )
    kick = f"select {function['name'].replace('%', '%%')}(%s)"
    assert [world.owner.value(kick, None), world.owner.value(kick, value)] == [f"{_plain(name)} is missing", None]
    came = world.work("push")
    assert [one["status"] for one in came] == ["succeeded", "succeeded"]
    assert {job["state"] for job in world.jobs("push")} == {"completed"}


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def test_several_keys_name_a_process_together(world: Supervised) -> None:
    world.owner.rows("create schema shop")
    world.owner.rows("create table shop.item (sku text primary key)")
    world.owner.rows("insert into shop.item values ('a'), ('b')")
    world.make(
        "shop.restock", channel="push", keys=["sku:text", "branch:integer"], references=["sku=shop.item(sku)"],
        final_table="restock_given_up", before="restock_order", max_attempts=1,
    )  # fmt: skip
    kick = "select shop.kickoff_restock(%s, %s)"
    assert [world.owner.value(kick, *args) for args in (("a", 1), ("a", 2), ("b", 1), ("a", 1))] == [None] * 4
    assert world.owner.value(kick, "c", 1) == "shop.item has no row whose sku is c"
    assert world.owner.value(kick, "a", None) == "branch is missing"
    assert world.root.value("select count(*) from shop.restock_task") == 3
    for _ in range(2):
        world.work("push", provider=refuse)
        world.time_passes()
    assert world.root.value("select count(*) from shop.restock_given_up") == 3
    assert world.owner.value("select shop.is_restock_stuck('a', 2)") is True


# --- other channels


@pytest.mark.req("S63")
def test_the_payload_of_a_deletion_names_the_file_too(world: Supervised) -> None:
    world.make("files.file_deletion", channel="file_delete", keys=["file_id:bigint"], before="get_file_delete_payload")
    world.owner.value("select files.kickoff_file_deletion(987)")
    world.work()
    (job,) = world.jobs("file_delete")
    assert job["payload"] == {
        "task_type": "file_delete",
        "file_deletion_task_id": 1,
        "file_id": 987,
        "file_deletion_attempt_id": 1,
        "before_handler": "files.get_file_delete_payload",
        "success_handler": "files.record_file_deletion_success",
        "error_handler": "files.record_file_deletion_failure",
    }


@pytest.mark.req("S61")
def test_work_in_sql_is_committed_with_its_success_and_taken_back_with_its_failure(world: Supervised) -> None:
    world.owner.rows("create schema accounts")
    world.owner.rows("create table accounts.note (account_id bigint)")
    world.make("accounts.summary", channel="db_function", keys=["account_id:bigint"], work="accounts.rebuild")
    world.owner.value("select accounts.kickoff_summary(5)")

    def run() -> Row:
        return world.work()[-1]

    assert run() == {"kind": "db_function", "status": "attempt_failed", "payload": {"error_message": "not filled in"}}
    world.owner.rows(
        "create or replace function accounts.rebuild(_account_id bigint) returns void language plpgsql as "
        "$$ begin insert into accounts.note values (_account_id); perform 1 / (_account_id - 5); end $$"
    )
    world.time_passes()
    assert run()["payload"] == {"error_message": "division by zero"}
    assert world.root.value("select count(*) from accounts.note") == 0
    world.owner.rows("insert into accounts.note values (0)")
    world.owner.rows(
        "create or replace function accounts.rebuild(_account_id bigint) returns void language sql as "
        "$$ update accounts.note set account_id = account_id + _account_id $$"
    )
    world.time_passes()
    assert run()["status"] == "succeeded"
    payload = {"accounts": 1, "summary_attempt_id": 3}
    assert world.run("accounts.run_summary_attempt", payload) == {"status": "succeeded"}
    assert world.run("accounts.run_summary_attempt", {"summary_attempt_id": 1})["status"] == "attempt_failed"
    assert world.run("accounts.run_summary_attempt", {})["status"] == "summary_attempt_not_found"
    assert world.root.value("select account_id from accounts.note") == 5
    assert world.facts("accounts.summary") == {"tasks": 1, "attempts": 3, "succeeded": 1, "failed": 2, "final": []}
    _denied(world.worker, "select accounts.rebuild(5)")


@pytest.mark.req("S61")
def test_work_in_sql_whose_job_vanished_is_tried_again(world: Supervised) -> None:
    world.make("accounts.summary", channel="db_function", keys=["account_id:bigint"])
    world.owner.value("select accounts.kickoff_summary(5)")
    (check,) = world.dequeue("db_function")
    world.work_one(check)
    world.forget(next(job for job in world.jobs() if "summary_attempt_id" in job["payload"]))
    world.time_passes()
    assert world.work_one(world.dequeue("db_function")[0])["payload"]["outcome"] == "attempt_created"
    assert world.root.value("select error_message from accounts.summary_attempt_failed") == "its job is gone"


# --- the guide


def test_the_guide_quotes_what_is_generated_and_runs(world: Supervised) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "supervisors.md").read_text()
    blocks = re.findall(r"(<!-- not run[^\n]*\n)?```sql\n(.*?)```", page, re.DOTALL)
    table, handler, start, *quoted = [text for not_run, text in blocks if not not_run]
    assert len(quoted) == 4

    world.owner.rows(table)
    text = world.generate()
    for block in quoted:
        assert block in text.replace(world.schema, "dutiful")
    world.owner.rows(text)
    world.owner.rows(handler)
    world.owner.rows(start)
    sent: list[Row] = []
    world.work("email", provider=sent.append)
    assert sent == [{"to_address": "ada@example.org", "subject": "Welcome", "body": "Hello Ada"}]
    (payload,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert world.jobs("db_function")[0]["payload"] == json.loads(payload)
