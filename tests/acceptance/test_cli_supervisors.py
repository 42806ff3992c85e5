"""`supervisor`: writes the SQL of processes, lists and explains them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Answer, Project

from databases import Postgres
from supervised import FILLED_IN, MESSAGES, Refused, Row, Supervised, supervised

DATABASE = "dutiful_supervisors_cli"
KICKOFF = "select comms.kickoff_send_email(%s)"
NEW = (
    "supervisor",
    "new",
    "comms.send_email",
    "--channel",
    "email",
    "--references",
    "comms.email_message(email_message_id)",
)
Run = Callable[..., Answer]


@pytest.fixture(scope="module")
def database(postgres18: Postgres) -> Iterator[Supervised]:
    with supervised(postgres18, DATABASE) as found:
        yield found


@pytest.fixture
def world(database: Supervised) -> Supervised:
    database.reset()
    database.owner.rows(MESSAGES)
    return database


@pytest.fixture
def run(world: Supervised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("DUTIFUL_SCHEMA", world.schema)

    def call(*args: str, role: str = "client") -> Answer:
        url = world.logins.url(role)
        return Project(tmp_path, url).call(monkeypatch, capsys, *args, f"--database-url={url}")

    return call


@pytest.fixture
def email(world: Supervised, run: Run) -> Supervised:
    """The process as the command writes it."""
    with world.owner.connection.transaction():
        world.owner.rows(run(*NEW).out)
    world.owner.rows(FILLED_IN)
    return world


def refuse(_: Row) -> None:
    raise Refused("password=hunter2 is wrong")


def test_what_it_writes_to_a_file_runs_and_is_not_overwritten(world: Supervised, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "send email.sql"
    wrote = run(*NEW, "-o", str(file))
    assert (wrote.code, wrote.out) == (0, "")
    assert wrote.err == f"wrote {file}: run it in one transaction, as in psql -1 -f '{file}'\n"
    assert file.read_text() == run(*NEW).out

    file.write_text("mine")
    refused = run(*NEW, "-o", str(file))
    assert refused.code == 2 and "--force" in refused.err and file.read_text() == "mine"
    assert run(*NEW, "-o", str(file), "--max-attempts", "5", "--force").code == 0
    world.owner.rows(file.read_text())
    assert [one["max_attempts"] for one in run("supervisor", "list", "--json").json["supervisors"]] == [5]

    assert run(*NEW, "-o", str(tmp_path / "none" / "x.sql")).code == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("comms.x'; drop table job; --", "--channel", "email"), "is not a name of SQL"),
        (('x"; drop table', "--channel", "email"), "is not a name of SQL"),
        (("comms." + "n" * 42, "--channel", "email"), "which leaves 41 for the name"),
        (("comms.x", "--channel", "email", "--base", "soon"), "--base"),
        (("comms.x", "--channel", "email", "--worker-role", "public"), "--worker-role"),
    ],
)
def test_a_wrong_word_is_one_line_and_writes_nothing(run: Run, args: tuple[str, ...], message: str) -> None:
    answer = run("supervisor", "new", *args)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert message in answer.err


def test_it_needs_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    project = Project(tmp_path, url)
    assert project.call(monkeypatch, capsys, *NEW, f"--database-url={url}").out.startswith("-- comms.send_email:")
    assert not (tmp_path / "jobs.db").exists()

    assert project.call(monkeypatch, capsys, "migrate", f"--database-url={url}").code == 0
    for args in (("list",), ("list", "comms.send_email"), ("show", "comms.send_email", "1")):
        refused = project.call(monkeypatch, capsys, "supervisor", *args, f"--database-url={url}")
        assert refused.code == 2 and "they are for Postgres" in refused.err


def test_supervisors_and_their_processes_are_listed(email: Supervised, run: Run) -> None:
    email.make("comms.send_sms", channel="sms")
    for message in (1, 2, 3, 4):
        email.owner.value(KICKOFF, message)
    email.owner.rows("insert into comms.send_email_task_failed values (1, 'no address')")
    # The last attempt has failed, and the check that records the end has not run yet.
    email.owner.rows("insert into comms.send_email_attempt select n, 4, gen_random_uuid() from generate_series(1, 3) n")
    email.owner.rows("insert into comms.send_email_attempt_failed select n, 'busy' from generate_series(1, 3) n")
    email.owner.rows("insert into comms.send_email_attempt values (9, 2, gen_random_uuid())")
    email.owner.rows("insert into comms.send_email_attempt_succeeded values (9)")
    email.root.rows("select {s}.cancel(%s, 'by mistake', null)", email.jobs()[2]["id"])

    listed = run("supervisor", "list", "--json").json["supervisors"]
    assert listed == [
        {
            "name": "comms.send_email",
            "channel": "email",
            "max_attempts": 3,
            "keys": ["email_message_id"],
            "running": 1,
            "succeeded": 1,
            "failed": 2,
            "counted_all": True,
            "base_seconds": 10.0,
        },
        {**listed[0], "name": "comms.send_sms", "channel": "sms", "keys": ["send_sms_id"], "running": 0, "succeeded": 0,
         "failed": 0},
    ]  # fmt: skip
    assert run("supervisor", "list").out.splitlines()[1].split() == [
        "comms.send_email", "email", "3", "10s", "email_message_id", "1", "2", "1",
    ]  # fmt: skip
    processes = run("supervisor", "list", "comms.send_email", "--json").json["processes"]
    assert [(one["task_id"], one["state"], one["stuck"], one["keys"]) for one in processes] == [
        (4, "failed", True, {"email_message_id": "4"}),
        (3, "stalled", True, {"email_message_id": "3"}),
        (2, "succeeded", False, {"email_message_id": "2"}),
        (1, "failed", True, {"email_message_id": "1"}),
    ]
    stuck = run("supervisor", "list", "comms.send_email", "--stuck").out
    assert [line.split()[:2] for line in stuck.splitlines()[1:]] == [["4", "failed"], ["3", "stalled"], ["1", "failed"]]
    assert "no address" in stuck
    unknown = run("supervisor", "list", "comms.send_fax")
    assert unknown.code == 1 and "there are the supervisors: comms.send_email, comms.send_sms" in unknown.err
    assert run("supervisor", "list", "--stuck").code == 2


def test_a_stuck_process_is_listed_however_many_have_succeeded_since(
    email: Supervised, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dutiful.stores.postgres.supervisors._LOOKED_AT", 2)
    for message in (1, 2, 3, 4):
        email.owner.value(KICKOFF, message)
    email.owner.rows("insert into comms.send_email_task_failed values (1, 'no address')")
    succeed = """
        with made as (
            insert into comms.send_email_attempt (send_email_task_id, job_id) values (%s, gen_random_uuid()) returning *
        )
        insert into comms.send_email_attempt_succeeded (send_email_attempt_id)
        select send_email_attempt_id from made"""
    stuck = ("supervisor", "list", "comms.send_email", "--stuck")
    for task in (2, 3):
        cut = run(*stuck)
        assert "no such processes" in cut.out + cut.err and "only the newest" in cut.err
        assert run(*stuck, "--json").json == {"processes": [], "searched_all": False}
        email.owner.rows(succeed, task)
        if task == 2:
            email.owner.value(KICKOFF, 5)

    email.owner.rows(succeed, 4)
    found = run(*stuck, "--json").json
    assert ([one["task_id"] for one in found["processes"]], found["searched_all"]) == ([1], True)
    assert run(*stuck).err == ""


def test_a_process_is_explained_from_its_start_to_its_end(email: Supervised, run: Run) -> None:
    def show(task: int = 1) -> Row:
        found: Row = run("supervisor", "show", "comms.send_email", str(task), "--json").json
        return found

    email.owner.value(KICKOFF, 7)
    started = show()
    assert (started["state"], started["stuck"], started["keys"]) == ("running", False, {"email_message_id": "7"})
    assert started["why"] == "the next check makes the first attempt, 0 of 3 have failed"
    assert started["next_check"]["state"] == "ready"

    email.work()
    outstanding = show()
    assert outstanding["outstanding"] == 1 and outstanding["next_check"]["state"] == "scheduled"
    assert outstanding["why"] == (
        "attempt 1 is outstanding: its job is ready, and no worker has taken it yet: "
        "run a `dutiful sql-worker` that serves email"
    )
    assert [fact["what"] for fact in outstanding["facts"]] == ["started", "attempt 1 made"]
    assert outstanding["facts"][1]["job_id"] == outstanding["attempts"][0]["job_id"]
    (job,) = email.jobs("email")
    assert outstanding["attempts"][0]["job_uuid"] == str(job["id"])

    email.root.rows("select {s}.cancel(%s, 'no', null)", job["id"])
    assert show()["why"] == (
        "attempt 1 is outstanding: its job ended as cancelled without a record; the next check decides"
    )
    email.time_passes()
    email.work("email", provider=refuse)
    assert show()["why"] == "the next check makes another attempt, 2 of 3 have failed"
    email.time_passes()
    email.work("email", provider=refuse)
    spent = show()
    assert (spent["state"], spent["stuck"]) == ("failed", True)
    assert spent["why"] == "3 of 3 attempts failed; the next check records that it is over"
    email.time_passes()
    email.work("email")

    text = run("supervisor", "show", "comms.send_email", "1").out
    over = show()
    assert (over["state"], over["stuck"], over["remedy"], over["next_check"]) == ("failed", True, None, None)
    assert [fact["what"].split(":")[0] for fact in over["facts"]] == [
        "started", "attempt 1 made", "attempt 1 failed", "attempt 2 made", "attempt 2 failed", "attempt 3 made",
        "attempt 3 failed", "failed for good",
    ]  # fmt: skip
    assert [fact["at"] for fact in over["facts"]] == sorted(fact["at"] for fact in over["facts"])
    assert "hunter2" not in text + str(over) and "its job ended as cancelled: no" in text
    assert ["stuck", "yes"] in [line.split() for line in text.splitlines()] and "3 of 3 attempts failed" in text


def test_a_stalled_process_goes_on_by_the_statement_that_is_shown(email: Supervised, run: Run) -> None:
    email.owner.value(KICKOFF, 7)
    (check,) = email.dequeue("db_function")
    email.complete(check, None, [{"type": "E", "message": "deadlock detected"}])

    stalled = run("supervisor", "show", "comms.send_email", "1", "--json").json
    assert (stalled["state"], stalled["stuck"]) == ("stalled", True)
    assert stalled["why"].startswith("no check is queued; the last one, ")
    assert stalled["why"].endswith(" ended as completed_with_errors: deadlock detected")
    assert run("supervisor", "list", "comms.send_email", "--stuck", "--json").json["processes"][0]["state"] == "stalled"

    for _ in range(2):
        email.owner.rows(stalled["remedy"])
    email.work("email")
    done = run("supervisor", "show", "comms.send_email", "1", "--json").json
    assert (done["state"], done["why"], done["remedy"]) == ("succeeded", "attempt 1 succeeded", None)
    assert len(email.jobs("db_function")) == 3


def test_a_process_that_is_not_there_is_said_to_be_missing(email: Supervised, run: Run) -> None:
    for args in (("comms.send_email", "4711"), ("comms.send_fax", "1")):
        missing = run("supervisor", "show", *args)
        assert missing.code == 1 and "there are the supervisors: comms.send_email" in missing.err
    assert run("supervisor", "show", "comms.send_email", "0").code == 2
    assert run("supervisor", "show", "send_email", "1").code == 2


def test_a_role_that_may_not_read_the_tables_learns_what_to_grant(email: Supervised, run: Run) -> None:
    reader = email.logins.name("nobody")
    email.root.rows(f"grant {email.schema}_client to {reader}")
    try:
        listed = run("supervisor", "list", role="nobody")
        assert "comms.send_email" in listed.out and "may not read the tables of: comms.send_email" in listed.err
        refused = run("supervisor", "show", "comms.send_email", "1", role="nobody")
        assert refused.code == 2 and "select on comms.send_email_task, comms.send_email_attempt" in refused.err
        email.owner.rows(f"grant usage on schema comms to {reader}")
        email.owner.rows(f"grant select on all tables in schema comms to {reader}")
        assert run("supervisor", "list", role="nobody").err == ""
    finally:
        email.root.rows(f"revoke {email.schema}_client from {reader}")


def test_what_others_could_have_planted_is_not_read(email: Supervised, run: Run) -> None:
    """A view in the place of a table runs functions with the reader's rights; an owner may be anybody."""
    plant = """
        create schema evil;
        create function evil.grab() returns bigint language plpgsql as $$ begin raise exception 'grabbed'; end $$;
        create view evil.x_task as select evil.grab() as x_task_id, 1 as x_id, now() as created_at;
        create function evil.x_supervisor(jsonb) returns jsonb language sql as 'select null::jsonb';
    """
    comment = (
        'dutiful supervisor {"channel": "c", "max_attempts": 1, "base_seconds": 1, "keys": [], "final_table": "f"}'
    )
    email.owner.rows(plant)
    email.owner.rows(f"comment on function evil.x_supervisor(jsonb) is '{comment}'")
    listed = run("supervisor", "list", "--json").json["supervisors"]
    assert [(one["name"], one["running"]) for one in listed] == [("comms.send_email", 0), ("evil.x", None)]
    assert "lacks its tables" in run("supervisor", "show", "evil.x", "1").err

    email.owner.rows("comment on function evil.x_supervisor(jsonb) is 'dutiful supervisor {\"channel\": 1}'")
    assert len(run("supervisor", "list", "--json").json["supervisors"]) == 1
    email.owner.rows(f"comment on function evil.x_supervisor(jsonb) is '{comment}'")
    email.root.rows(f"alter function evil.x_supervisor(jsonb) owner to {email.logins.name('nobody')}")
    assert len(run("supervisor", "list", "--json").json["supervisors"]) == 1
