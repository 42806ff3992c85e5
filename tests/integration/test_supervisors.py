"""Supervisors that `dutiful supervisor new` generates, run by a worker in SQL with a role of its own."""

import asyncio
import base64
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from databases import Postgres
from postgres_locks import blocked
from supervised import FILLED_IN, KICKOFF, MESSAGES, SUPERVISOR, TASK, Row, Supervised, outcomes, refuse, supervised

DATABASE = "dutiful_supervisors"
RUN = "select {s}.run_function(%s, %s)"


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


@pytest.mark.req("S39", "S41", "S80")
def test_an_outcome_is_recorded_once_however_often_its_handler_runs(email: Supervised) -> None:
    """As after the death of a worker that settles in another transaction."""
    email.owner.value(KICKOFF, 7)
    email.work_one(email.dequeue("db_function")[0])
    original = {"original_payload": {"send_email_attempt_id": 1}}
    failure = "select error_message from comms.send_email_attempt_failed"

    for message in ("busy", "gone"):
        assert email.run("comms.record_send_email_failure", {**original, "error": message}) == {"status": "succeeded"}
    assert [row["error_message"] for row in email.root.rows(failure)] == ["busy"]

    email.time_passes()
    email.work_one(email.dequeue("db_function")[0])
    original = {"original_payload": {"send_email_attempt_id": 2}}
    for _ in range(2):
        assert email.run("comms.record_send_email_success", original) == {"status": "succeeded"}
    assert email.run("comms.record_send_email_failure", {**original, "error": "twice"}) == {"status": "succeeded"}
    assert email.facts() == {"tasks": 1, "attempts": 2, "succeeded": 1, "failed": 1, "final": []}


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


@pytest.mark.req("S58")
def test_a_kickoff_answers_a_key_that_no_index_can_hold_by_a_message(world: Supervised) -> None:
    world.make("shop.restock", channel="push", keys=["sku:text", "branch:text"])
    kick = "select shop.kickoff_restock(%s, %s)"
    long = base64.b64encode(random.Random(14).randbytes(9_000)).decode()  # compressed, it would fit

    assert world.owner.value(kick, long, "north") == "sku has more than 1000 bytes"
    assert world.owner.value(kick, "é" * 500, "n" * 1001) == "branch has more than 1000 bytes"
    assert world.owner.value(kick, long[:1000], long[1000:2000]) is None
    assert world.root.value("select count(*) from shop.restock_task") == len(world.jobs()) == 1


@pytest.mark.req("S58")
async def test_a_kickoff_answers_a_row_that_is_deleted_meanwhile_by_a_message(email: Supervised) -> None:
    other = email.session("client")
    other.rows("begin")
    other.rows("delete from comms.email_message where email_message_id = 7")
    kicked = asyncio.create_task(asyncio.to_thread(email.owner.value, KICKOFF, 7))
    await blocked(email.logins.superuser_url)
    other.rows("commit")
    other.connection.close()

    assert await kicked == "a row that it names was deleted meanwhile"
    assert email.facts()["tasks"] == len(email.jobs()) == 0


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
        world.cancel(world.jobs("email")[1])
        world.time_passes()
        world.work("email")

        assert world.run(SUPERVISOR, TASK) == {"status": "succeeded"}
        assert world.facts() == {"tasks": 1, "attempts": 3, "succeeded": 1, "failed": 2, "final": []}


def test_a_member_of_a_tenant_has_no_function_run_but_those_it_may_call(postgres18: Postgres) -> None:
    """A worker in SQL has rights that a member lacks, and its functions do not learn who has named them."""
    with supervised(postgres18, f"{DATABASE}_member", tenants=True) as world:
        world.owner.rows(MESSAGES)
        world.make()
        world.owner.rows(FILLED_IN)
        name = world.logins.name("nobody")
        world.root.rows("select {s}.bind_tenant(%s, 'acme')", name)
        member = world.session("nobody")
        enqueue = "select {s}.tenant_enqueue('acme', %s, %s)"
        assert world.owner.value(KICKOFF, 7) is None
        forged = {"original_payload": {"send_email_attempt_id": 1}, "error": "forged"}
        named = dict.fromkeys(("before_handler", "success_handler", "error_handler"), "comms.record_send_email_failure")
        attempts: list[tuple[str, Any]] = [
            ("db_function", {"db_function": "comms.record_send_email_failure", **forged}),
            ("db_function", None),
            ("email", named | forged),
            *(("push", {handler: function} | forged) for handler, function in named.items()),
        ]
        for kind, payload in attempts:
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not enqueue jobs") as raised:
                member.value(enqueue, kind, Jsonb(payload))
            assert "kickoff" in str(raised.value)
        assert len(world.jobs()) == 1
        assert member.value(enqueue, "greet", Jsonb({"name": "Ada", "db_functions": 1})) is not None

        world.owner.rows(f"grant usage on schema comms to {name}")
        world.owner.rows(f"grant execute on function comms.kickoff_send_email(bigint, timestamptz) to {name}")
        assert member.value(KICKOFF, 8) is None
        member.connection.close()
        world.work("email", provider=lambda request: None)
        assert world.facts()["succeeded"] == 2
