"""What `dutiful supervisor new` accepts, and what it refuses with a remedy."""

import re
import shlex
from datetime import timedelta
from typing import Any

import pytest

from dutiful.core.errors import UsageError
from dutiful.stores.postgres.engine.identifiers import QualifiedName, literal, parse_qualified, quoted
from dutiful.stores.postgres.supervisor_migration import migration
from dutiful.stores.postgres.supervisor_plan import Column, Key, plan


def make(process: str = "comms.send_email", **options: Any) -> str:
    return migration(plan(process, **{"channel": "email", **options}))


@pytest.mark.parametrize(
    "process",
    [
        'x"; drop table', 'comms.x"; drop table jobs; --', "comms.x; drop table", "comms.x'y", "comms.x y", "comms.",
        ".send", "comms..send", "send_email", "a.b.c", "", " ", ".", "comms.1st", "comms.x-y", 'comms."', 'comms.""',
        "comms.x\n", 'comms."x\ny"', 'comms."x$$y"', 'comms."x\\y"', 'comms."\u202ex"', 'comms."\ud800"', "commß.x",
        "pg_temp.x", "pg_catalog.x", "information_schema.x", "dutiful.x", "Dutiful.x", f"{'s' * 64}.x",
        f"comms.{'n' * 42}", f'comms."{"ß" * 21}"',
    ],
)  # fmt: skip
def test_a_name_that_is_none_is_refused(process: str) -> None:
    with pytest.raises(UsageError, match=r"name|schema|remove it|too long"):
        make(process)


def test_no_process_replaces_a_function_of_another() -> None:
    made = {
        name: set(re.findall(r"create or replace function (\S+?)\(", make(f"comms.{name}")))
        for name in ("send", "sent", "send_attempt", "send_task", "has_send", "count_send", "send_succeeded")
    }
    functions = [function for found in made.values() for function in found]
    assert len(functions) == len(set(functions)) == 6 * len(made)
    with pytest.raises(UsageError, match=r"count_send_failed_attempts would replace .* of a process send$"):
        make("comms.send_failed")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channel": ""}, "--channel"),
        ({"channel": "a\nb"}, "--channel"),
        ({"channel": "a$$b"}, "--channel"),
        ({"max_attempts": 0}, "--max-attempts 0 must be from 1 to 100"),
        ({"max_attempts": 101}, "--max-attempts"),
        ({"base": timedelta(0)}, "--base must be longer than 0"),
        ({"max_attempts": 100}, "--base 10s doubles with each failure"),
        ({"keys": ["id:bigint); drop table x; --"]}, "--key .* must have a type of bigint"),
        ({"keys": ["id:serial"]}, "--key"),
        ({"keys": ["created_at"]}, "--key 'created_at' is the name of another"),
        ({"keys": ["send_email_task_id"]}, "--key"),
        ({"keys": ["_id"]}, "--key '_id' must begin with another"),
        ({"keys": ["a", "a:text"]}, "--key 'a'"),
        ({"keys": ["k" * 63]}, "at most 62 bytes"),
        ({"keys": ["a.b"]}, "--key 'a.b' must be one name"),
        ({"keys": ["a", "b"], "references": ["x.y"]}, "must say of which key, as in a=x.y"),
        ({"keys": ["a"], "references": ["b=x.y"]}, "'b' is no key"),
        ({"references": ["x.y(id)", "x.z(id)"]}, "'id' is no key that lacks a reference"),
        ({"references": ["y(id)"]}, "--references"),
        ({"references": ["x.y(id); drop table x"]}, "--references"),
        ({"references": ["x.y(\nid)"]}, "--references"),
        ({"before": "x; drop table"}, "--before"),
        ({"success": "a.b.c"}, "--success"),
        ({"error": 'x"'}, "--error"),
        ({"success": "record", "error": "Record"}, "--error comms.record is already the function of --success"),
        ({"error": "get_send_email_payload"}, "--error .* is already the function of --before"),
        ({"before": "comms.send_email_supervisor"}, "--before .* is already the function of the process itself"),
        ({"channel": "db_function", "work": "is_send_email_stuck"}, "--work .* is already the function of the process"),
        ({"channel": "db_function", "work": "kickoff_send_email"}, "--work .* is already the function of the process"),
        ({"work": "x"}, "--work is for the channel db_function"),
        ({"channel": "db_function", "before": "x"}, "--before is for channels with a provider"),
        ({"worker_role": "public"}, "--worker-role public is not a role"),
        ({"worker_role": '"public"'}, "--worker-role public is not a role"),
        ({"worker_role": "a.b"}, "--worker-role"),
        ({"worker_role": "x; grant all"}, "--worker-role"),
        ({"final_table": "send_email_attempt"}, "--final-table 'send_email_attempt' is another table"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(**options)


def test_a_key_is_named_after_what_it_references_or_after_the_process() -> None:
    def keys(**options: Any) -> tuple[Key, ...]:
        return plan("comms.send_email", channel="email", **options).keys

    message = QualifiedName("comms", "email_message")
    assert keys() == (Key("send_email_id"),)
    assert keys(references=["comms.email_message(id)"]) == (Key("id", "bigint", Column(message, "id")),)
    assert keys(references=["message_id=comms.email_message"]) == (
        Key("message_id", "bigint", Column(message, "message_id")),
    )
    assert keys(keys=["m:uuid"], references=['Comms."email_message"( "Id" )']) == (
        Key("m", "uuid", Column(message, "Id")),
    )
    assert keys(keys=["a", '"B=c":text'], references=['"B=c"=comms.email_message(x)']) == (
        Key("a"),
        Key("B=c", "text", Column(message, "x")),
    )


def test_names_are_read_and_quoted_as_postgres_does() -> None:
    assert parse_qualified('Comms."Send ""it"""', "x") == QualifiedName("comms", 'Send "it"')
    assert str(QualifiedName("comms", "Send")) == 'comms."Send"'
    assert [quoted(name) for name in ("user", "values", "name", "a b", "1a", "ä")] == [
        '"user"', '"values"', "name", '"a b"', '"1a"', '"ä"',
    ]  # fmt: skip
    assert literal("it's") == "'it''s'"


@pytest.mark.parametrize("channel", ["email", "db_function", "it's; -- {task}"])
def test_every_word_of_the_template_is_filled_in_and_the_command_can_be_repeated(channel: str) -> None:
    text = make(
        channel=channel, keys=['"Key":text'], max_attempts=5, base=timedelta(seconds=1.5), final_table="given_up"
    )
    assert set(re.findall(r"\{[a-z_]+\}", text)) <= {"{task}"}
    lines = text.splitlines()
    command = " ".join(line.removeprefix("--     ").removesuffix("\\") for line in lines[1 : lines.index("--")])
    given = ["--key", '"Key":text', "--max-attempts", "5", "--base", "1.5s", "--final-table", "given_up"]
    assert shlex.split(command) == ["dutiful", "supervisor", "new", "comms.send_email", "--channel", channel, *given]
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_the_generated_file_has_no_line_that_is_too_long() -> None:
    for options in ({}, {"channel": "db_function"}, {"channel": "file_delete"}):
        text = make(references=["comms.email_message(email_message_id)"], **options)
        assert [line for line in text.splitlines() if len(line) > 120 and "dutiful supervisor {" not in line] == []
