"""Supervisors that `dutiful supervisor new` generates, run by a worker in SQL with a role of its own."""

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from databases import Postgres
from postgres_locks import blocked
from supervised import FILLED_IN, MESSAGES, Refused, Row, Session, Supervised, supervised

DATABASE = "dutiful_supervisors"
DIED = "attempt 1 may have been accepted by the provider: its worker died, and its job ended as"
KICKOFF = "select comms.kickoff_send_email(%s)"
SUPERVISOR = "comms.send_email_supervisor"
RUN = "select {s}.run_function(%s, %s)"
TASK = {"send_email_task_id": 1}


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
    """The process comms.send_email, with a before handler that was filled in."""
    world.owner.rows(MESSAGES)
    world.make()
    world.owner.rows(FILLED_IN)
    return world


def refuse(request: Row) -> None:
    raise Refused(f"{request['to_address']} is unknown")


def outcomes(came: list[Row]) -> list[Any]:
    """Of the supervisor's runs."""
    return [one.get("payload", {}).get("outcome", one["status"]) for one in came if one["kind"] == "db_function"]


# --- a process


@pytest.mark.req("S42", "S43", "S47", "S50", "S54", "S55", "S60", "S63", "S98")
def test_a_message_is_sent_once_and_the_facts_say_so(email: Supervised) -> None:
    assert email.owner.value(KICKOFF, 7) is None
    (supervisor,) = email.jobs()
    assert supervisor["payload"] == {"task_type": "db_function", "db_function": SUPERVISOR, **TASK}
    assert email.facts() == {"tasks": 1, "attempts": 0, "succeeded": 0, "failed": 0, "final": []}

    sent: list[Row] = []
    came = email.work("email", provider=sent.append)

    assert [one["status"] for one in came] == ["succeeded"] * 2
    assert came[0]["payload"] == {"outcome": "attempt_created", "attempts": 1, "failures": 0}
    assert sent == [{"to_address": "ada@example.org", "subject": "Hello", "body": "Hello 7"}]
    (job,) = email.jobs("email")
    assert job["payload"] == {
        "task_type": "email",
        "send_email_attempt_id": 1,
        "before_handler": "comms.get_send_email_payload",
        "success_handler": "comms.record_send_email_success",
        "error_handler": "comms.record_send_email_failure",
    }
    assert {one["correlation_id"] for one in email.jobs()} == {"comms.send_email/1"}

    email.time_passes()
    assert email.work("email") == [{"kind": "db_function", "status": "succeeded"}]
    email.time_passes()
    assert email.work("email") == []
    assert email.facts() == {"tasks": 1, "attempts": 1, "succeeded": 1, "failed": 0, "final": []}


@pytest.mark.req("S45", "S46", "S51", "S53", "S97", "S98")
def test_three_failed_attempts_end_the_process(email: Supervised) -> None:
    email.owner.value(KICKOFF, 7)
    runs, counts, stuck_before = [], [], []
    for _ in range(6):
        runs += outcomes(email.work("email", provider=refuse))
        stuck_before.append((email.owner.value("select comms.is_send_email_stuck(7)"), len(email.facts()["final"])))
        counts.append(
            email.owner.value(
                "select array[comms.count_send_email_attempts(1), comms.count_send_email_failed_attempts(1)]"
            )
        )
        email.time_passes()

    assert runs == ["attempt_created"] * 3 + ["max_attempts_reached"]
    assert counts == [[1, 1], [2, 2], [3, 3], [3, 3], [3, 3], [3, 3]]
    assert stuck_before == [(False, 0), (False, 0), (True, 0), (True, 1), (True, 1), (True, 1)]
    assert email.facts() == {
        "tasks": 1,
        "attempts": 3,
        "succeeded": 0,
        "failed": 3,
        "final": ["3 of 3 attempts failed, the last: ada@example.org is unknown"],
    }
    assert email.run(SUPERVISOR, TASK)["status"] == "max_attempts_reached"
    stuck = "select array[comms.is_send_email_stuck(7), comms.is_send_email_stuck(8), comms.is_send_email_stuck(null)]"
    assert email.owner.value(stuck) == [True, False, False]


@pytest.mark.req("S46", "S50")
def test_a_success_after_failures_ends_it_and_also_after_the_end(email: Supervised) -> None:
    email.owner.value(KICKOFF, 7)
    email.work("email", provider=refuse)
    email.time_passes()
    email.work("email")
    assert email.owner.value("select comms.has_send_email_succeeded_attempt(1)") is True
    assert email.run(SUPERVISOR, TASK) == {"status": "succeeded"}

    email.owner.rows("insert into comms.send_email_task_failed values (1, 'too late')")
    assert email.run(SUPERVISOR, TASK) == {"status": "succeeded"}
    assert email.owner.value("select comms.is_send_email_stuck(7)") is False


@pytest.mark.req("S52", "S97")
@pytest.mark.parametrize("base", [timedelta(seconds=10), timedelta(milliseconds=1500)])
def test_the_next_check_is_the_base_doubled_by_each_failure(email: Supervised, base: timedelta) -> None:
    email.make(base=base)
    email.owner.value(KICKOFF, 7)
    waits = []
    for outstanding in (True, False, True, False, False):
        (check,) = email.dequeue("db_function")
        with email.worker.connection.transaction():
            email.run(SUPERVISOR, check["payload"])
            now: datetime = email.worker.value("select now()")
            email.complete(check)
        (next_check,) = [job for job in email.jobs("db_function") if job["state"] == "scheduled"]
        waits.append(next_check["run_at"] - now)
        if not outstanding:
            email.work("email", provider=refuse)
        email.time_passes()

    assert waits == [base, base, base * 2, base * 2, base * 4]


@pytest.mark.req("S56")
def test_a_run_before_its_time_makes_neither_an_attempt_nor_another_check(email: Supervised) -> None:
    email.owner.value(KICKOFF, 7)
    first, *more = [email.run(SUPERVISOR, TASK)["payload"]["outcome"] for _ in range(4)]
    assert (first, set(more)) == ("attempt_created", {"attempt_outstanding"})
    # The check of the kickoff has not run yet, and is the only one.
    assert [job["kind"] for job in email.jobs()] == ["db_function", "email"]

    email.work("email", provider=refuse)
    again = [email.run(SUPERVISOR, TASK)["payload"] for _ in range(3)]
    assert [one["outcome"] for one in again] == ["attempt_created", "attempt_outstanding", "attempt_outstanding"]
    assert [job["state"] for job in email.jobs("db_function")] == ["completed", "scheduled"]
    assert len(email.jobs("email")) == 2


@pytest.mark.req("S49", "S56")
async def test_of_two_runs_at_once_one_waits_and_makes_no_attempt(email: Supervised) -> None:
    email.owner.value(KICKOFF, 7)
    other = email.session("sql_worker")
    with other.connection.transaction():
        first = other.value(RUN, SUPERVISOR, Jsonb(TASK))
        second = asyncio.create_task(asyncio.to_thread(email.run, SUPERVISOR, TASK))
        await blocked(email.logins.superuser_url)
    other.connection.close()

    assert first["payload"]["outcome"] == "attempt_created"
    assert (await second)["payload"]["outcome"] == "attempt_outstanding"
    assert email.facts()["attempts"] == len(email.jobs("email")) == 1


@pytest.mark.req("S49")
async def test_a_fact_that_is_added_during_the_wait_for_the_lock_counts(email: Supervised) -> None:
    email.owner.value(KICKOFF, 7)
    email.run(SUPERVISOR, TASK)
    other = email.session("client")
    with other.connection.transaction():
        other.rows("select 1 from comms.send_email_task for update")
        other.rows("insert into comms.send_email_attempt_succeeded values (1)")
        run = asyncio.create_task(asyncio.to_thread(email.run, SUPERVISOR, TASK))
        await blocked(email.logins.superuser_url)
    other.connection.close()

    assert await run == {"status": "succeeded"}


def test_a_snapshot_that_could_miss_facts_is_refused(email: Supervised) -> None:
    email.owner.value(KICKOFF, 7)
    email.worker.rows("begin isolation level repeatable read")
    with pytest.raises(psycopg.errors.RaiseException, match="read committed"):
        email.run(SUPERVISOR, TASK)
    email.worker.rows("rollback")
    assert email.facts()["attempts"] == 0


@pytest.mark.req("S48")
def test_a_task_or_attempt_that_is_not_there_is_answered_by_a_status(world: Supervised) -> None:
    world.owner.rows(MESSAGES)
    world.make()
    for task in ({}, None, [1], *({"send_email_task_id": one} for one in (None, "1; drop table", -1, 10**30, 1.5))):
        assert world.run(SUPERVISOR, task) == {"status": "missing_send_email_task_id"}
    assert world.run(SUPERVISOR, {"send_email_task_id": 4711}) == {"status": "send_email_task_not_found"}
    assert world.jobs() == []
    for handler in ("get_send_email_payload", "record_send_email_success", "record_send_email_failure"):
        for attempt in ({}, {"send_email_attempt_id": 9}, {"send_email_attempt_id": "x"}):
            payload = {**attempt, "original_payload": attempt}
            assert world.run(f"comms.{handler}", payload) == {"status": "send_email_attempt_not_found"}


@pytest.mark.req("S54")
def test_a_before_handler_that_was_not_filled_in_fails_the_attempt(world: Supervised) -> None:
    world.owner.rows(MESSAGES)
    world.make()
    world.owner.value(KICKOFF, 7)
    world.work("email", provider=lambda _: pytest.fail("the provider was asked"))
    assert world.root.value("select error_message from comms.send_email_attempt_failed") == (
        "before_handler returned not_filled_in"
    )


@pytest.mark.req("S52", "S55")
def test_an_attempt_that_takes_long_is_checked_less_and_less_often(email: Supervised) -> None:
    email.owner.value(KICKOFF, 7)
    email.work()
    for age, wait in ((4, timedelta(hours=1)), (0.5, timedelta(minutes=15)), (0, timedelta(seconds=10))):
        email.root.rows("truncate {s}.scheduled, {s}.unique_key")
        email.root.rows("update comms.send_email_attempt set created_at = now() - %s * interval '1 hour'", age)
        assert email.run(SUPERVISOR, TASK)["payload"]["outcome"] == "attempt_outstanding"
        check = email.jobs("db_function")[-1]
        assert abs(check["run_at"] - check["created_at"] - wait) < timedelta(seconds=2)


# --- attempts whose job ended, but not by its handlers


def _cancel(world: Supervised, job: Row) -> None:
    world.root.rows("select {s}.cancel(%s, 'not needed', null)", job["id"])


def _die(world: Supervised, _: Row) -> None:
    (held,) = world.dequeue("email")
    call = "select {s}.fail_job(%s, %s, 'mailbox is full', p_retry => false)"
    assert world.worker.value(call, held["job_id"], held["claim_id"]) == "failed"


def _end(result: Any, errors: Any = None) -> Any:
    def end(world: Supervised, _: Row) -> None:
        (held,) = world.dequeue("email")
        world.complete(held, result, errors)

    return end


def _vanish(world: Supervised, job: Row) -> None:
    _cancel(world, job)
    for table in ("finished where job_id", "job where id"):
        world.root.rows(f"delete from {{s}}.{table} = %s", job["id"])


def _lose(world: Supervised, *, cancel: bool = False) -> None:
    """A worker dies while it runs the job, perhaps after it has sent it."""
    (held,) = world.dequeue("email")
    if cancel:
        _cancel(world, {"id": held["job_id"]})
    world.root.rows("update {s}.lease set expires_at = now() - interval '1 second'")
    assert world.root.value("select {s}.rescue_expired(array['email'], 10, null)") == 1


def _lose_thrice(world: Supervised, _: Row) -> None:
    for _crash in range(3):
        _lose(world)


def _lose_when_cancelled(world: Supervised, _: Row) -> None:
    _lose(world, cancel=True)


def _lose_then_cancel(world: Supervised, job: Row) -> None:
    _lose(world)
    _cancel(world, job)


@pytest.mark.req("S53")
@pytest.mark.parametrize(
    ("end", "message"),
    [
        (_cancel, "its job ended as cancelled: not needed"),
        (_die, "its job ended as failed: mailbox is full"),
        (_end({"status": "failed", "accepted": False}), "its job ended as completed"),
        (
            _end({"status": "failed", "accepted": False}, [{"type": "E", "message": "the error handler raised"}]),
            "its job ended as completed_with_errors: the error handler raised",
        ),
    ],
)
def test_an_attempt_whose_job_ended_without_a_fact_has_failed(email: Supervised, end: Any, message: str) -> None:
    email.owner.value(KICKOFF, 7)
    email.run(SUPERVISOR, TASK)
    end(email, email.jobs("email")[0])

    assert email.run(SUPERVISOR, TASK)["payload"] == {"outcome": "attempt_created", "attempts": 2, "failures": 1}
    assert email.root.value("select error_message from comms.send_email_attempt_failed") == message


@pytest.mark.req("S53")
@pytest.mark.parametrize(
    ("end", "message"),
    [
        (_end({"status": "succeeded", "accepted": True}), "attempt 1 was accepted by the provider, but not recorded"),
        (
            _end({"accepted": True}, [{"type": "E", "message": "the success handler raised"}]),
            "attempt 1 was accepted by the provider, but not recorded",
        ),
        (_end(None), "attempt 1 was accepted by the provider, but not recorded"),
        (_vanish, "attempt 1 was not recorded, and its job is gone: it may have been accepted by the provider"),
        (_lose_thrice, f"{DIED} failed"),
        (_lose_when_cancelled, f"{DIED} cancelled"),
        (_lose_then_cancel, f"{DIED} cancelled"),
    ],
)
def test_what_a_provider_may_have_accepted_is_never_repeated(email: Supervised, end: Any, message: str) -> None:
    email.owner.value(KICKOFF, 7)
    email.work()
    end(email, email.jobs("email")[0])
    email.time_passes()

    assert outcomes(email.work("email")) == ["attempt_not_recorded"]
    assert email.run(SUPERVISOR, TASK) == {"status": "attempt_not_recorded", "payload": {"error_message": message}}
    assert email.facts() == {"tasks": 1, "attempts": 1, "succeeded": 0, "failed": 0, "final": [message]}
    assert email.owner.value("select comms.is_send_email_stuck(7)") is True
    email.time_passes()
    assert email.work("email") == []


@pytest.mark.parametrize(
    ("channel", "own_function"),
    [
        ("email", """get_ping_payload(_payload jsonb) returns jsonb language sql as
                     $$ select '{"status": "succeeded", "payload": {}}'::jsonb $$"""),
        ("db_function", "ping(_ping_id bigint) returns void language sql as ''"),
    ],
)  # fmt: skip
def test_a_success_that_is_recorded_during_the_run_is_not_overlooked(
    world: Supervised, channel: str, own_function: str
) -> None:
    world.make("comms.ping", channel=channel)
    world.owner.rows(f"create or replace function comms.{own_function}")
    world.owner.value("select comms.kickoff_ping(1)")
    world.work("email")
    assert world.facts("comms.ping")["succeeded"] == 1
    # As it looks to a run that asked just before the success was committed.
    world.owner.rows(
        "create or replace function comms.has_ping_succeeded_attempt(_task_id bigint) returns boolean language sql as "
        "'select false'"
    )
    answer = world.run("comms.ping_supervisor", {"ping_task_id": 1})
    assert answer["payload"]["outcome"] == "attempt_outstanding"
    assert world.facts("comms.ping") == {"tasks": 1, "attempts": 1, "succeeded": 1, "failed": 0, "final": []}


# --- the kickoff


@pytest.mark.req("S57", "S58")
def test_a_kickoff_answers_bad_input_by_a_message(email: Supervised) -> None:
    def kick(*args: Any) -> Any:
        return email.owner.value(f"select comms.kickoff_send_email({', '.join(['%s'] * len(args))})", *args)

    assert kick(None) == "email_message_id is missing"
    assert kick(4711) == "comms.email_message has no row whose email_message_id is 4711"
    for moment in ("infinity", "-infinity", "10000-01-01 00:00Z", "4713-01-01 BC"):
        assert kick(7, moment) == "_scheduled_at is not a time of the years 1 to 9999"
    assert email.facts()["tasks"] == len(email.jobs()) == 0

    later = email.now() + timedelta(days=3)
    assert [kick(1, None), kick(2, later), kick(3, later - timedelta(days=999))] == [None] * 3
    assert [(job["state"], job["run_at"]) for job in email.jobs()] == [
        ("ready", None),
        ("scheduled", later),
        ("ready", later - timedelta(days=999)),
    ]


@pytest.mark.req("S44", "S59")
@pytest.mark.parametrize("ending", ["commit", "rollback"])
async def test_of_two_kickoffs_at_once_one_makes_the_task(email: Supervised, ending: str) -> None:
    other = email.session("client")
    other.rows("begin")
    assert other.value(KICKOFF, 7) is None
    second = asyncio.create_task(asyncio.to_thread(email.owner.value, KICKOFF, 7))
    await blocked(email.logins.superuser_url)
    other.rows(ending)
    other.connection.close()

    assert await second is None
    assert email.facts()["tasks"] == len(email.jobs()) == 1
    assert email.owner.value(KICKOFF, 7) is None
    email.work("email")
    assert email.owner.value(KICKOFF, 7) is None
    assert email.facts()["tasks"] == 1 and len(email.jobs("db_function")) == 2


def test_it_works_where_tenants_are_separated(postgres18: Postgres) -> None:
    with supervised(postgres18, f"{DATABASE}_tenants", tenants=True) as world:
        world.owner.rows(MESSAGES)
        world.make()
        world.owner.rows(FILLED_IN)
        with world.owner.connection.transaction():
            world.owner.rows("select set_config('dutiful.tenant', 'acme', true)")
            assert world.owner.value(KICKOFF, 7) is None
            assert world.owner.value("select current_setting('dutiful.tenant')") == "acme"
        world.work("email", provider=refuse)
        world.time_passes()
        world.work()
        _cancel(world, world.jobs("email")[1])
        world.time_passes()
        world.work("email")

        assert world.run(SUPERVISOR, TASK) == {"status": "succeeded"}
        assert world.facts() == {"tasks": 1, "attempts": 3, "succeeded": 1, "failed": 2, "final": []}


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
    _vanish(world, next(job for job in world.jobs() if "summary_attempt_id" in job["payload"]))
    world.time_passes()
    assert world.work_one(world.dequeue("db_function")[0])["payload"]["outcome"] == "attempt_created"
    assert world.root.value("select error_message from accounts.summary_attempt_failed") == "its job is gone"


# --- the guide


def test_the_guide_quotes_what_is_generated_and_runs(world: Supervised) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "supervisors.md").read_text()
    blocks = re.findall(r"(<!-- not run[^\n]*\n)?```sql\n(.*?)```", page, re.DOTALL)
    table, handler, start, *quoted = [text for not_run, text in blocks if not not_run]
    assert len(quoted) == 3

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
