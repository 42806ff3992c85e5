"""Supervised processes whose jobs ended, but not by their handlers: what is repeated, and what never is."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from postgres_locks import blocked
from supervised import KICKOFF, SUPERVISOR, TASK, Row, Supervised, outcomes, supervised

DATABASE = "dutiful_supervisors"
DIED = "attempt 1 may have been accepted by the provider: its worker died, and its job ended as"


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


# --- attempts whose job ended, but not by its handlers


def _die(world: Supervised, _: Row) -> None:
    (held,) = world.dequeue("email")
    call = "select {s}.fail_job(%s, %s, 'mailbox is full', p_retry => false)"
    assert world.worker.value(call, held["job_id"], held["claim_id"]) == "failed"


def _end(result: Any, errors: Any = None) -> Any:
    def end(world: Supervised, _: Row) -> None:
        (held,) = world.dequeue("email")
        world.complete(held, result, errors)

    return end


def _lose(world: Supervised, *, cancel: bool = False) -> None:
    """A worker dies while it runs the job, perhaps after it has sent it."""
    (held,) = world.dequeue("email")
    if cancel:
        world.cancel({"id": held["job_id"]})
    world.root.rows("update {s}.lease set expires_at = now() - interval '1 second'")
    assert world.root.value("select {s}.rescue_expired(array['email'], 10, null)") == 1


def _lose_thrice(world: Supervised, _: Row) -> None:
    for _crash in range(3):
        _lose(world)


def _lose_when_cancelled(world: Supervised, _: Row) -> None:
    _lose(world, cancel=True)


def _lose_then_cancel(world: Supervised, job: Row) -> None:
    _lose(world)
    world.cancel(job)


@pytest.mark.req("S53")
@pytest.mark.parametrize(
    ("end", "message"),
    [
        (Supervised.cancel, "its job ended as cancelled: not needed"),
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
        (
            Supervised.forget,
            "attempt 1 was not recorded, and its job is gone: it may have been accepted by the provider",
        ),
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


# --- checks that end, but not by their supervisor's word

STUCK = "select comms.is_send_email_stuck(7)"


def test_a_check_that_fails_by_a_passing_error_is_made_again(email: Supervised) -> None:
    email.owner.rows(KICKOFF, 7)
    email.owner.rows("alter table comms.send_email_attempt add constraint full_disk check (false)")

    (failed,) = email.work("email")

    assert failed["status"] == "check_failed" and "full_disk" in failed["payload"]["error_message"]
    assert email.facts()["attempts"] == 0 and email.owner.value(STUCK) is False
    email.owner.rows("alter table comms.send_email_attempt drop constraint full_disk")
    email.time_passes()
    sent: list[Row] = []
    email.work("email", provider=sent.append)
    assert len(sent) == 1 and email.facts()["succeeded"] == 1


def test_a_task_that_a_person_has_locked_does_not_end_its_checks(email: Supervised) -> None:
    email.owner.rows(KICKOFF, 7)
    settings = "select proconfig as n from pg_proc where oid = 'comms.send_email_supervisor'::regproc"
    assert "lock_timeout=30s" in email.owner.value(settings)
    email.owner.rows("alter function comms.send_email_supervisor set lock_timeout = '10ms'")
    with email.root.connection.transaction():
        email.root.rows("select 1 from comms.send_email_task for update")
        (failed,) = email.work("email")
    assert "lock timeout" in failed["payload"]["error_message"]
    email.time_passes()
    assert outcomes(email.work("email", provider=lambda request: None)) == ["attempt_created"]


@pytest.mark.req("S55")
async def test_a_check_whose_query_is_cancelled_is_made_again(email: Supervised) -> None:
    """By a person, or because a worker with short leases lets no function wait as long as for the lock."""
    email.owner.rows(KICKOFF, 7)
    with email.root.connection.transaction():
        email.root.rows("select 1 from comms.send_email_task for update")
        working = asyncio.create_task(asyncio.to_thread(email.work, "email"))
        await blocked(email.logins.superuser_url)
        email.root.rows("select pg_cancel_backend(%s)", email.worker.connection.info.backend_pid)
        (failed,) = await working
    assert failed["status"] == "check_failed" and "user request" in failed["payload"]["error_message"]
    email.time_passes()
    assert outcomes(email.work("email", provider=lambda request: None)) == ["attempt_created"]


@pytest.mark.req("S46", "S59")
def test_a_process_whose_check_was_cancelled_is_stuck_until_it_is_kicked_off_again(email: Supervised) -> None:
    email.owner.rows(KICKOFF, 7)
    assert email.owner.value(STUCK) is False
    email.cancel(email.jobs()[0])
    assert email.owner.value(STUCK) is True

    for _ in range(2):
        assert email.owner.value(KICKOFF, 7) is None

    assert email.owner.value(STUCK) is False
    assert [job["state"] for job in email.jobs()].count("ready") == 1
    assert outcomes(email.work("email", provider=lambda request: None)) == ["attempt_created"]
    email.time_passes()
    email.work("email")
    assert email.owner.value(KICKOFF, 7) is None  # it has succeeded
    assert email.work("email") == [] and email.facts()["attempts"] == 1
