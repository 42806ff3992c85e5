"""The queue of the example accounts, as a small worker sees it that has nothing but the facade."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from accounts import Accounts, CleanAccounts, clean_accounts, installed

ENQUEUE = "select queues.enqueue('email', jsonb_build_object('n', %s::int), now() + %s)"
HOUR = timedelta(hours=1)


def _put(accounts: Accounts, n: int, delay: timedelta = timedelta(0)) -> None:
    accounts.run(ENQUEUE, n, delay)


@pytest.fixture(scope="module", params=["postgres18", "postgres16"])
def clean(request: pytest.FixtureRequest) -> Iterator[CleanAccounts]:
    with installed(request.getfixturevalue(request.param)) as found:
        yield found


@pytest.fixture
def accounts(clean: CleanAccounts) -> Iterator[Accounts]:
    with clean_accounts(clean) as found:
        yield found


@pytest.mark.req("S1", "S3", "S10")
def test_a_task_shows_what_was_asked_for_and_never_changes(accounts: Accounts) -> None:
    accounts.run("select queues.enqueue('email', '{\"n\": 1}')")
    accounts.run("select queues.enqueue('sms', '{\"n\": 2}', '2030-01-01Z')")
    first, second = accounts.run("select * from queues.task order by task_id")

    assert list(first) == ["task_id", "task_type", "payload", "enqueued_at", "scheduled_at"]
    assert (first["task_type"], first["payload"], second["task_type"]) == ("email", {"n": 1}, "sms")
    assert first["scheduled_at"] <= first["enqueued_at"] and second["scheduled_at"].year == 2030
    accounts.worker().run_all()
    assert accounts.run("select * from queues.task order by task_id") == [first, second], "also once it has run"
    with accounts.rolled_back():
        accounts.run("select queues.enqueue('email', '{\"n\": 3}')")
        assert accounts.ask("select count(*) from queues.task") == 3
    assert accounts.ask("select count(*) from queues.task") == 2, "it was enqueued in its caller's transaction"
    for change in ("update queues.task set payload = '{}'", "delete from queues.task"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=r"cannot .* view"):
            accounts.run(change)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="'fax' is not known"):
        accounts.run("select queues.enqueue('fax', '{}')")


@pytest.mark.req("S12", "S13", "S14", "S16", "S17")
def test_a_dequeue_returns_one_due_task_by_time_then_id_with_a_lease_of_five_minutes(accounts: Accounts) -> None:
    _put(accounts, 3)
    _put(accounts, 4)
    _put(accounts, 2, -HOUR)
    _put(accounts, 1, -2 * HOUR)
    _put(accounts, 9, HOUR)
    worker, other = accounts.worker(), accounts.worker()

    tasks = [task for turn in (worker, other, worker, other) if (task := turn.dequeue()) is not None]

    assert [task.payload["n"] for task in tasks] == [1, 2, 3, 4]
    assert worker.dequeue() is other.dequeue() is None, "the rest is held, or not due"
    assert set(accounts.column("select expires_at - leased_at from queues.task_lease")) == {timedelta(minutes=5)}
    assert accounts.make_checks_due() == 1
    assert (late := worker.dequeue()) is not None and late.payload["n"] == 9


@pytest.mark.req("S6", "S14")
@pytest.mark.parametrize("by", ["the same session", "another"])
def test_a_task_whose_lease_ended_has_its_place_by_time_again(accounts: Accounts, by: str) -> None:
    for n in range(4):
        _put(accounts, n, (n - 9) * HOUR)
    worker = accounts.worker()
    first, second = worker.dequeue(), worker.dequeue()
    assert first is not None and second is not None
    accounts.run("update dutiful.lease set expires_at = now() where job_id = %s", first.task_id)

    next_one = (worker if by == "the same session" else accounts.worker()).dequeue()

    assert next_one is not None and next_one.payload["n"] == 0, "before those that became due later"


@pytest.mark.req("S15")
def test_a_dequeue_skips_what_another_transaction_is_claiming(accounts: Accounts) -> None:
    _put(accounts, 1)
    _put(accounts, 2)
    worker, other = accounts.worker(), accounts.worker()
    with worker.session.transaction():
        first, second = worker.dequeue(), other.dequeue()
        assert first is not None and second is not None and other.dequeue() is None
    assert (first.payload["n"], second.payload["n"]) == (1, 2)


@pytest.mark.req("S4", "S5", "S6", "S81")
def test_an_expired_lease_makes_a_task_available_and_every_claim_stays_on_record(accounts: Accounts) -> None:
    _put(accounts, 1)
    worker, other = accounts.worker(), accounts.worker()
    first = worker.dequeue()
    assert first is not None and other.dequeue() is None
    (held,) = accounts.run("select * from queues.task_lease")
    accounts.run("update dutiful.lease set expires_at = now()")

    again = other.dequeue()

    assert again == first
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="not held by this session"):
        worker.complete(first)
    assert accounts.column("select task_id from queues.task_completed") == []
    # A late outcome, which is on record in Dutiful, is neither another claim nor an error of the task.
    late = accounts.ask("select dutiful.complete_job(%s, %s)", first.task_id, held["task_lease_id"])
    assert late == "lost" and accounts.ask("select count(*) from dutiful.attempt where outcome = 'refused'") == 1
    assert accounts.column("select error_message from queues.error") == []
    other.complete(again)
    leases = accounts.run("select * from queues.task_lease order by task_lease_id")
    assert list(leases[0]) == ["task_lease_id", "task_id", "leased_at", "expires_at"]
    assert [lease["task_id"] for lease in leases] == [first.task_id] * 2
    assert leases[0]["leased_at"] == held["leased_at"] < leases[0]["expires_at"] <= leases[1]["leased_at"]


@pytest.mark.req("S7", "S8", "S9", "S18", "S19")
def test_a_failure_is_recorded_and_a_completion_ends_the_task_once(accounts: Accounts) -> None:
    _put(accounts, 1)
    worker, other = accounts.worker(), accounts.worker()
    task = worker.dequeue()
    assert task is not None
    for message in ("the line was busy", "the line was dead"):
        worker.session.execute("select queues.fail_task(%s, %s)", [task.task_id, message])
    assert accounts.column("select task_id from queues.task_completed") == [], "an error ends nothing"

    worker.complete(task)
    ended = accounts.run("select * from queues.task_completed")
    worker.complete(task)
    other.complete(task)

    assert [row["task_id"] for row in ended] == [task.task_id]
    assert accounts.run("select * from queues.task_completed") == ended
    assert worker.dequeue() is other.dequeue() is None
    errors = "select error_message from queues.error where task_id = %s order by created_at"
    assert accounts.column(errors, task.task_id) == ["the line was busy", "the line was dead"]
    assert accounts.ask("select state from dutiful.jobs") == "completed_with_errors"
    for change in ("update queues.reported_error set error_message = ''", "delete from queues.reported_error"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
            accounts.run(change)


@pytest.mark.req("S2", "S62")
def test_a_new_channel_is_a_row_and_a_provider(accounts: Accounts) -> None:
    types = "select task_type from queues.task_type order by 1"
    assert accounts.column(types) == ["db_function", "email", "file_delete", "sms"]
    accounts.run("insert into queues.task_type (task_type) values ('push')")
    accounts.run("""
        set role accounts_owner;
        create function comms.get_push_payload(_payload jsonb) returns jsonb language sql security definer
        as $$ select '{"status": "succeeded", "payload": {"device": 7}}'::jsonb $$;
        create function comms.record_push(_payload jsonb) returns jsonb language sql security definer
        as $$ select '{"status": "succeeded"}'::jsonb $$;
        grant execute on function comms.get_push_payload(jsonb), comms.record_push(jsonb) to worker_service_user;
        reset role""")
    accounts.run("""select queues.enqueue('push', '{"task_type": "push", "before_handler": "comms.get_push_payload",
        "success_handler": "comms.record_push", "error_handler": "comms.record_push"}')""")
    pushed: list[Any] = []

    assert accounts.worker(push=pushed.append).run_all() == 1
    accounts.run("drop function comms.get_push_payload(jsonb), comms.record_push(jsonb)")
    assert pushed == [{"device": 7}] and accounts.column("select error_message from queues.error") == []


@pytest.mark.req("S19", "S25")
def test_errors_however_long_and_many_do_not_keep_a_task_from_its_end(accounts: Accounts) -> None:
    _put(accounts, 1)
    worker = accounts.worker()
    task = worker.dequeue()
    assert task is not None
    for message in ["\x01" * 300_000, *(f"error {n} {'x' * 5_000}" for n in range(100))]:
        worker.session.execute("select queues.fail_task(%s, %s)", [task.task_id, message])

    worker.complete(task)

    assert accounts.ask("select count(*) from queues.error where task_id = %s", task.task_id) == 101
    assert accounts.ask("select errors -> -1 ->> 'message' from dutiful.jobs").startswith("error 99 xxx")


@pytest.mark.req("S24", "S25", "S31", "S34")
def test_what_functions_answer_wrongly_is_an_error_of_their_task_which_ends(accounts: Accounts) -> None:
    accounts.run("""
        set role accounts_owner;
        create function comms.answer(_payload jsonb) returns jsonb language sql security definer
        as $$ select coalesce(_payload -> 'answer', _payload -> 'original_payload' -> 'answer') $$;
        grant execute on function comms.answer(jsonb) to worker_service_user;
        reset role""")
    wrong = {
        "null": "None is no envelope",
        "[1]": "is no envelope",
        '"succeeded"': "is no envelope",
        '{"status": null}': "is no envelope",
        '{"ok": true}': "is no envelope",
        '{"status": "attempt_not_found"}': "attempt_not_found",
        '{"success": false, "error": "no row"}': "no row",
        '{"success": false, "validation_failure_message": "no id"}': "no id",
        '{"success": false}': "it did not succeed",
        '{"status": "succeeded", "error": "no row"}': "no row",
    }
    handlers = '"before_handler": "comms.answer", "success_handler": "comms.answer", "error_handler": "comms.answer"'
    for answer in (*wrong, '{"success": true}'):
        accounts.run(
            "select queues.enqueue('db_function', %s)", f'{{"db_function": "comms.answer", "answer": {answer}}}'
        )
        accounts.run("select queues.enqueue('email', %s)", f'{{{handlers}, "answer": {answer}}}')

    def refuse(request: Any) -> Any:
        raise ConnectionError("a\0b")

    accounts.worker(email=refuse).run_all()

    accounts.run("drop function comms.answer(jsonb)")
    assert accounts.ask("select count(*) from queues.task_completed") == 2 * len(wrong) + 2
    errors = "select error_message from queues.error join queues.task using (task_id) where payload -> 'answer' = %s"
    for answer, message in wrong.items():
        found = accounts.column(errors, answer)
        assert len(found) == 2 and all(one.startswith("comms.answer: ") and message in one for one in found), answer
    assert accounts.column(errors, '{"success": true}') == ["email: a\N{REPLACEMENT CHARACTER}b"]
