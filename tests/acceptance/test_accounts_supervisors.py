"""Supervisors and handlers of the example accounts, driven step by step through its queue."""

import functools
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from accounts import Accounts, CleanAccounts, clean_accounts, installed
from psycopg.types.json import Jsonb

from examples.accounts.small_worker import SmallWorker


@dataclass(frozen=True)
class Process:
    """The names of a process, which all follow its own."""

    schema: str
    name: str
    handlers: tuple[str, ...] = ()

    @property
    def supervisor(self) -> str:
        return f"{self.schema}.{self.name}_supervisor"

    @property
    def root_id(self) -> str:
        return f"{self.name}_task_id"

    def kickoff(self, accounts: Accounts, domain_id: int | None, *more: Any) -> str | None:
        asked = f"select {self.schema}.kickoff_{self.name}(%s{', %s' * len(more)})"
        answer: str | None = accounts.ask(asked, domain_id, *more)
        return answer

    def new_subject(self, accounts: Accounts) -> int:
        match self.name:
            case "send_email":
                return accounts.new_email()
            case "send_sms":
                new = "insert into comms.sms_message (to_number, body) values ('+358', 'Hi') returning sms_message_id"
                return int(accounts.ask(new))
            case "file_deletion":
                account = accounts.new_account(files=1)
                return int(accounts.ask("select file_id from files.file where account_id = %s", account))
            case _:
                return accounts.new_account()

    def facts(self, accounts: Accounts) -> tuple[int, int, int]:
        """How many attempts there are, have succeeded, have failed."""
        tables = (f"{self.schema}.{self.name}_attempt{end}" for end in ("", "_succeeded", "_failed"))
        counts = [accounts.ask(f"select count(*) from {table}") for table in tables]
        return counts[0], counts[1], counts[2]


EMAIL = Process("comms", "send_email", ("get_email_payload", "record_email_success", "record_email_failure"))
SMS = Process("comms", "send_sms", ("get_sms_payload", "record_sms_success", "record_sms_failure"))
FILE = Process(
    "files", "file_deletion",
    ("get_file_delete_payload", "record_file_delete_success", "record_file_delete_failure"),
)  # fmt: skip
ANONYMIZATION = Process("accounts", "account_anonymization")
DELETION = Process("accounts", "account_deletion")
CHANNELS = [EMAIL, SMS, FILE]
ALL = [*CHANNELS, ANONYMIZATION, DELETION]
OPEN = "select payload from queues.task where task_id not in (select task_id from queues.task_completed)"


def _named(process: Process) -> str:
    return process.name


def _run(worker: SmallWorker, name: str, payload: dict[str, Any]) -> dict[str, Any]:
    row = worker.session.execute("select internal.run_function(%s, %s) as answer", [name, Jsonb(payload)]).fetchone()
    assert row is not None
    answer: dict[str, Any] = row["answer"]
    return answer


@pytest.fixture(scope="module", params=["postgres18", "postgres16"])
def clean(request: pytest.FixtureRequest) -> Iterator[CleanAccounts]:
    with installed(request.getfixturevalue(request.param)) as found:
        yield found


@pytest.fixture
def accounts(clean: CleanAccounts) -> Iterator[Accounts]:
    with clean_accounts(clean) as found:
        yield found


@pytest.mark.req("S20", "S47", "S48", "S65")
@pytest.mark.parametrize("process", ALL, ids=_named)
def test_a_supervisor_answers_an_id_that_is_missing_or_unknown_with_a_status(
    accounts: Accounts, process: Process
) -> None:
    worker = accounts.worker()
    for wrong in ({}, {process.root_id: None}, {process.root_id: "one"}, {process.root_id: -1}):
        assert _run(worker, process.supervisor, wrong) == {"status": f"missing_{process.root_id}"}
    assert _run(worker, process.supervisor, {process.root_id: 99_999}) == {"status": f"{process.name}_task_not_found"}


@pytest.mark.req("S43", "S64", "S69")
@pytest.mark.parametrize("process", [*CHANNELS, ANONYMIZATION], ids=_named)
def test_a_process_has_a_task_attempts_and_outcomes_by_attempt(accounts: Accounts, process: Process) -> None:
    shape = """
        select a.attname as name, a.attnotnull as needed, pg_get_expr(d.adbin, d.adrelid) as default,
               exists (select 1 from pg_index i where i.indrelid = a.attrelid and i.indisprimary
                       and i.indkey::text = a.attnum::text) as key
        from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where a.attrelid = %s::regclass and a.attnum > 0"""
    attempt_id = f"{process.name}_attempt_id"
    for end, key, also in (
        ("task", process.root_id, None),
        ("attempt", attempt_id, process.root_id),
        ("attempt_succeeded", attempt_id, None),
        ("attempt_failed", attempt_id, "error_message"),
    ):
        columns = {row["name"]: row for row in accounts.run(shape, f"{process.schema}.{process.name}_{end}")}
        assert [name for name, row in columns.items() if row["key"]] == [key]
        assert columns["created_at"]["default"] == "now()" and columns[key]["needed"]
        assert end.startswith("attempt_") or columns[key]["default"].startswith("nextval")
        assert also is None or columns[also]["needed"]


@pytest.mark.req("S44", "S57", "S58", "S59", "S60", "S63", "S98")
@pytest.mark.parametrize("process", ALL, ids=_named)
def test_a_kickoff_makes_one_root_and_one_supervisor_task_and_answers_bad_input_with_a_message(
    accounts: Accounts, process: Process
) -> None:
    root = f"select {process.root_id} from {process.schema}.{process.name}_task"
    assert re.search("is required|is missing", str(process.kickoff(accounts, None)))
    assert re.search(r"there is no .* 99999|no row whose .* 99999", str(process.kickoff(accounts, 99_999)))
    for time in ("infinity", "-infinity", "0001-01-01 BC", "200000-01-01"):
        assert "time" in str(process.kickoff(accounts, process.new_subject(accounts), time))
    assert accounts.column(root) == accounts.column(OPEN) == []
    subject = process.new_subject(accounts)

    assert process.kickoff(accounts, subject, "2030-01-01Z") is None
    assert process.kickoff(accounts, subject) is None

    arguments = "select pg_get_function_arguments(%s::regproc)"
    assert accounts.ask(arguments, f"{process.schema}.kickoff_{process.name}").endswith(
        " bigint, _scheduled_at timestamp with time zone DEFAULT now(), OUT validation_failure_message text"
    )
    payload = {"task_type": "db_function", "db_function": process.supervisor, process.root_id: accounts.ask(root)}
    assert accounts.column(OPEN) == [payload]
    assert accounts.ask("select scheduled_at from queues.task").year == 2030


@pytest.mark.req("S53", "S54", "S55", "S63", "S64", "S66", "S67", "S69", "S70", "S96")
@pytest.mark.parametrize("process", CHANNELS, ids=_named)
def test_a_check_makes_an_attempt_its_task_and_the_next_check(accounts: Accounts, process: Process) -> None:
    worker = accounts.worker()
    subject = process.new_subject(accounts)
    process.kickoff(accounts, subject)
    (check,) = accounts.column(OPEN)
    root = check[process.root_id]

    task = worker.dequeue()
    assert task is not None
    worker.run(task)

    attempt = accounts.ask(f"select {process.name}_attempt_id from {process.schema}.{process.name}_attempt")
    channel = {"send_email": "email", "send_sms": "sms", "file_deletion": "file_delete"}[process.name]
    before, success, error = (f"{process.schema}.{name}" for name in process.handlers)
    wanted: dict[str, Any] = {
        "task_type": channel, f"{process.name}_attempt_id": attempt,
        "before_handler": before, "success_handler": success, "error_handler": error,
    }  # fmt: skip
    if process is FILE:
        wanted |= {"file_deletion_task_id": root, "file_id": subject}
    assert sorted(accounts.column(OPEN), key=len) == sorted([check, wanted], key=len)
    assert process.facts(accounts) == (1, 0, 0)


@pytest.mark.req("S45", "S46", "S51", "S52", "S68", "S97")
@pytest.mark.parametrize("process", CHANNELS, ids=_named)
def test_checks_back_off_by_failures_and_end_after_three(accounts: Accounts, process: Process) -> None:
    accounts.broken |= {"email", "sms", "file_delete"}
    subject = process.new_subject(accounts)
    process.kickoff(accounts, subject)
    worker, delays = accounts.worker(), []
    root = accounts.ask(f"select {process.root_id} from {process.schema}.{process.name}_task")
    ask = f"select {process.schema}.{{}}(%s)"
    newest = "select max(scheduled_at) from queues.task where task_type = 'db_function'"

    for failures in range(3):
        assert accounts.ask(ask.format(f"count_{process.name}_failed_attempts"), root) == failures
        assert accounts.ask(ask.format(f"count_{process.name}_attempts"), root) == failures
        before = accounts.ask("select clock_timestamp()")
        accounts.make_checks_due()
        worker.run(_next(worker))
        after = accounts.ask("select clock_timestamp()")
        delays += [s for s in (10, 20, 40) if before <= accounts.ask(newest) - timedelta(seconds=s) <= after]
        assert worker.run_all() == 1, "the attempt, which fails"
    answer = _run(worker, process.supervisor, {process.root_id: root})

    assert delays == [10, 20, 40] and answer["status"] == "max_attempts_reached"
    assert accounts.ask(ask.format(f"is_{process.name}_stuck"), subject) is True
    assert accounts.ask(ask.format(f"has_{process.name}_succeeded_attempt"), root) is False
    accounts.run_to_the_end(worker)
    assert process.facts(accounts) == (3, 0, 3)
    assert accounts.column(OPEN) == [], "no check follows"
    if process is not FILE:
        message = accounts.ask(f"select error_message from comms.{process.name}_task_failed")
        assert re.fullmatch("3 of 3 attempts failed, the last: .*: the provider is down", message)


@pytest.mark.req("S49", "S56")
@pytest.mark.parametrize("process", [*CHANNELS, ANONYMIZATION], ids=_named)
def test_early_and_double_checks_make_no_extra_attempt(accounts: Accounts, process: Process) -> None:
    process.kickoff(accounts, process.new_subject(accounts))
    (check,) = accounts.column(OPEN)
    worker, other = accounts.worker(), accounts.worker()
    answers: list[dict[str, Any]] = []
    with worker.session.transaction():
        _run(worker, process.supervisor, check)
        second = threading.Thread(target=lambda: answers.append(_run(other, process.supervisor, check)))
        second.start()
        accounts.wait_for_a_lock()
    second.join(10)
    for _ in range(3):
        answers.append(_run(worker, process.supervisor, check))

    assert [answer["status"] for answer in answers] == ["succeeded"] * 4
    assert process.facts(accounts) == (1, 0, 0)
    assert len(accounts.column(OPEN)) == 2, "the attempt's task, and one check"


@pytest.mark.req("S35", "S36", "S37", "S38", "S39", "S40", "S41", "S50", "S71", "S73", "S74")
@pytest.mark.parametrize("process", CHANNELS, ids=_named)
def test_handlers_answer_with_envelopes_and_write_each_fact_once(accounts: Accounts, process: Process) -> None:
    worker = accounts.worker()
    subject = process.new_subject(accounts)
    process.kickoff(accounts, subject)
    task = worker.dequeue()
    assert task is not None
    worker.run(task)
    (payload,) = [one for one in accounts.column(OPEN) if "before_handler" in one]
    before, success, error = (f"{process.schema}.{name}" for name in process.handlers)
    id_name = "file_id" if process is FILE else "attempt_id"

    request = _run(worker, before, payload)["payload"]
    (where,) = accounts.run("select bucket, object_key from files.file") if process is FILE else [{}]
    assert (
        request
        == {
            "send_email": {"to_address": "ada@example.org", "subject": "Hello", "body": "Hello!"},
            "send_sms": {"to_number": "+358", "body": "Hi"},
            "file_deletion": where,
        }[process.name]
    )
    assert _run(worker, before, {}) == {"status": f"missing_{id_name}"}
    unknown = {"file_id": 99_999} if process is FILE else {f"{process.name}_attempt_id": 99_999}
    assert _run(worker, before, unknown)["status"].endswith("_not_found")
    for handler in (success, error):
        assert _run(worker, handler, {"original_payload": {}})["status"].endswith(("attempt_id", "attempt_not_found"))
        asked = {"original_payload": {f"{process.name}_attempt_id": 99_999}, "error": "no"}
        assert _run(worker, handler, asked)["status"].endswith("attempt_not_found")

    for message in ("the first", "the second"):
        assert _run(worker, error, {"original_payload": payload, "error": message}) == {"status": "succeeded"}
    assert accounts.column(f"select error_message from {process.schema}.{process.name}_attempt_failed") == ["the first"]
    for _ in range(2):
        assert _run(worker, success, {"original_payload": payload, "worker_payload": {}}) == {"status": "succeeded"}
    assert process.facts(accounts) == (1, 1, 1)
    if process is FILE:
        metadata = accounts.ask("select metadata from files.file_metadata where file_id = %s", subject)
        assert metadata == {"type": "audio/ogg", "deleted": True}
    assert _run(worker, process.supervisor, task.payload) == {"status": "succeeded"}


@pytest.mark.req("S42")
def test_facts_are_append_only(accounts: Accounts, request: pytest.FixtureRequest) -> None:
    refuse = "before update or delete on {} for each row execute function internal.refuse_change()"
    for end in ("task", "attempt", "attempt_succeeded", "attempt_failed", "task_failed"):
        # What is generated has none, because nothing but its functions can write; here they show that those only add.
        table = f"comms.send_sms_{end}"
        accounts.run(f"create trigger append_only {refuse.format(table)}")
        request.addfinalizer(functools.partial(_drop_trigger, accounts.database.url, table))
    accounts.broken.add("sms")
    SMS.kickoff(accounts, SMS.new_subject(accounts))
    accounts.run_to_the_end(accounts.worker())
    accounts.broken.clear()
    account = accounts.new_account()
    accounts.run("insert into accounts.account_flag values (%s, 'legal_hold')", account)
    for process in (EMAIL, SMS, FILE, DELETION, ANONYMIZATION):
        process.kickoff(accounts, account if process is ANONYMIZATION else process.new_subject(accounts))
    accounts.run_to_the_end(accounts.worker())
    tables = accounts.column("""
        select c.oid::regclass::text from pg_class c
        where c.relkind = 'r' and c.relnamespace::regnamespace::text in ('comms', 'files', 'accounts')
          and c.relname ~ '_(task|attempt)(_|$)'""")

    assert len(tables) == 4 + 5 + 5 + 4 + 3
    for table in tables:
        assert table.endswith("_failed") or accounts.ask(f"select count(*) from {table}") > 0, table
        trigger = "select count(*) from pg_trigger where tgrelid = %s::regclass and tgname = 'append_only'"
        assert accounts.ask(trigger, table) == 1, table
        if accounts.ask(f"select count(*) from {table}"):
            for change in (f"update {table} set created_at = now()", f"delete from {table}"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
                    accounts.run(change)


def _drop_trigger(url: str, table: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"drop trigger append_only on {table}".encode())


# --- crashes between two steps


@pytest.mark.req("S80")
def test_a_mail_whose_success_is_on_record_is_not_sent_again(accounts: Accounts) -> None:
    EMAIL.kickoff(accounts, EMAIL.new_subject(accounts))
    worker, other = accounts.worker(), accounts.worker()
    worker.run(_next(worker))
    task = _next(worker)
    worker.complete = lambda task: None  # type: ignore[method-assign]
    worker.run(task)
    worker.close()
    accounts.run("update dutiful.lease set expires_at = now()")

    accounts.run_to_the_end(other)

    assert len(accounts.sent) == 1 and EMAIL.facts(accounts) == (1, 1, 0)
    assert accounts.column("select error_message from queues.error") == ["comms.get_email_payload: already_sent"]
    claims = "select count(*) from queues.task_lease where task_id = %s"
    assert accounts.ask(claims, task.task_id) == 2


@pytest.mark.parametrize("accepted", [False, True])
def test_an_attempt_whose_task_ended_without_a_fact_is_closed(accounts: Accounts, accepted: bool) -> None:
    EMAIL.kickoff(accounts, EMAIL.new_subject(accounts))
    worker = accounts.worker()
    worker.run(_next(worker))
    task = _next(worker)
    claim = accounts.ask("select task_lease_id from queues.task_lease where task_id = %s", task.task_id)
    errors = Jsonb([{"type": "E", "message": "the success handler failed"}])
    result = Jsonb({"accepted": accepted})
    accounts.run("select dutiful.complete_job(%s, %s, %s, %s)", task.task_id, claim, result, errors)

    accounts.run_to_the_end(worker)

    failed = accounts.column("select error_message from comms.send_email_task_failed")
    assert accounts.column("select error_message from comms.send_email_attempt_failed") == [
        "the success handler failed"
    ]
    if accepted:
        assert failed == ["perhaps accepted by the provider, but not recorded: the success handler failed"]
        assert accounts.sent == [] and EMAIL.facts(accounts) == (1, 0, 1), "it is not sent twice"
    else:
        assert failed == [] and len(accounts.sent) == 1 and EMAIL.facts(accounts) == (2, 1, 1)


@pytest.mark.req("S80")
def test_a_mail_that_was_sent_is_not_sent_again_though_its_success_handler_fails(accounts: Accounts) -> None:
    """A worker that says nothing about its provider, as a small one: the mail may have been sent."""
    EMAIL.kickoff(accounts, EMAIL.new_subject(accounts))
    worker = accounts.worker()
    accounts.run("revoke execute on function comms.record_email_success(jsonb) from worker_service_user")
    try:
        accounts.run_to_the_end(worker)
    finally:
        accounts.run("grant execute on function comms.record_email_success(jsonb) to worker_service_user")

    assert len(accounts.sent) == 1 and EMAIL.facts(accounts) == (1, 0, 1)
    (failed,) = accounts.column("select error_message from comms.send_email_task_failed")
    assert "comms.record_email_success: " in failed


def _next(worker: SmallWorker) -> Any:
    task = worker.dequeue()
    assert task is not None
    return task


# --- the tree


@pytest.mark.req(
    "S61", "S82", "S83", "S84", "S85", "S86", "S87", "S88", "S89", "S90", "S91", "S92", "S93", "S94", "S95"
)
@pytest.mark.parametrize("path", ["happy", "file stuck", "anonymisation stuck"])
def test_the_tree_of_an_account_deletion_runs_through_the_facade(accounts: Accounts, path: str) -> None:
    account, other = accounts.new_account(), accounts.new_account()
    if path == "file stuck":
        accounts.broken.add("file_delete")
    if path == "anonymisation stuck":
        accounts.run("insert into accounts.account_flag values (%s, 'legal_hold')", account)

    for _ in range(2):
        assert accounts.ask("select api.request_account_deletion(%s)", account) is None
    assert "there is no account 99999" in accounts.ask("select api.request_account_deletion(99_999)")
    accounts.run_to_the_end(accounts.worker())

    def count(relation: str) -> int:
        return int(accounts.ask(f"select count(*) from {relation}"))

    flags = accounts.column("select flag from accounts.account_flag where account_id = %s order by 1", account)
    ends = (count("accounts.account_deletion_task_succeeded"), count("accounts.account_deletion_task_failed"))
    files = accounts.column("select file_id from files.file where account_id = %s order by 1", account)
    assert count("accounts.account_deletion_task") == 1 and accounts.column(OPEN) == []
    assert accounts.ask("select count(*) from learning.profile_cue_recording") == 4
    assert accounts.ask("select email_address from accounts.account where account_id = %s", other) is not None
    match path:
        case "happy":
            assert flags == ["anonymized", "deleted"] and ends == (1, 0)
            assert count("files.file_deletion_task_succeeded") == count("files.file_deletion_task") == 2
            deleted = "select file_id from files.file_metadata where metadata @> '{\"deleted\": true}' order by 1"
            assert accounts.column(deleted) == files
            assert [request["object_key"] for _, request in accounts.sent] == [
                f"account-{account}/take {n}.ogg" for n in range(2)
            ]
            assert accounts.ask("select email_address from accounts.account where account_id = %s", account) is None
        case "file stuck":
            assert flags == ["deleted"] and ends == (0, 1)
            assert count("files.file_deletion_task_failed") == 6
            assert [accounts.ask("select files.is_file_deletion_stuck(%s)", file) for file in files] == [True, True]
            message = accounts.ask("select error_message from accounts.account_deletion_task_failed")
            assert message == f"file {files[0]} was not deleted after 3 attempts: file_delete: the provider is down"
            assert count("accounts.account_anonymization_task") == 0
        case _:
            assert flags == ["deleted", "legal_hold"] and ends == (0, 1)
            assert count("accounts.account_anonymization_task_failed") == 3
            assert accounts.ask("select accounts.is_account_anonymization_stuck(%s)", account) is True
            message = accounts.ask("select error_message from accounts.account_deletion_task_failed")
            assert message == f"the account was not anonymised after 3 attempts: account {account} is under legal hold"


@pytest.mark.req("S85", "S86")
def test_a_file_that_arrives_after_its_account_was_deleted_is_deleted_too(accounts: Accounts) -> None:
    account = accounts.new_account()
    intent = accounts.ask(
        "insert into files.upload_intent (account_id, bucket, object_key) values (%s, 'recordings', 'late.ogg')"
        " returning upload_intent_id",
        account,
    )
    assert accounts.ask("select api.request_account_deletion(%s)", account) is None
    accounts.run_to_the_end(accounts.worker())
    assert accounts.ask("select count(*) from accounts.account_deletion_task_succeeded") == 1

    file = accounts.ask("select files.finish_upload(%s, '{}')", intent)
    assert accounts.ask("select files.finish_upload(%s, '{}')", intent) == file
    accounts.run_to_the_end(accounts.worker())

    assert [request["object_key"] for _, request in accounts.sent][2:] == ["late.ogg"]
    assert accounts.ask("select metadata from files.file_metadata where file_id = %s", file) == {"deleted": True}
    assert accounts.ask("select count(*) from files.file_deletion_task_succeeded") == 3
