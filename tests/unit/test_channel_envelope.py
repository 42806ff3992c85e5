"""Envelopes, replies and payloads of channels: what is a success, and what is said of everything else."""

from typing import Any

import msgspec
import pytest

from dutiful.channels.envelope import Envelope, EnvelopeInvalid, read_envelope
from dutiful.channels.payload import (
    Handlers,
    PayloadUnusable,
    error_handler_of,
    error_payload,
    function_of,
    handlers_of,
    success_payload,
)
from dutiful.channels.replies import Ending, after_function, failed_reply, read_reply, worker_payload


def text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


@pytest.mark.req("S31", "S32", "S33", "S34")
@pytest.mark.parametrize(
    ("answer", "envelope"),
    [
        ({"status": "succeeded"}, Envelope("succeeded")),
        ({"status": "succeeded", "payload": {"n": 1}}, Envelope("succeeded", {"n": 1})),
        ({"status": "attempt_not_found"}, Envelope("attempt_not_found")),
        ({"status": "Succeeded"}, Envelope("Succeeded")),
        ({"status": "failed", "success": True}, Envelope("failed")),
        ({"success": True, "payload": [1]}, Envelope("succeeded", [1])),
        ({"success": True, "error": None, "validation_failure_message": None}, Envelope("succeeded")),
        ({"success": False, "error": "boom"}, Envelope("failed", problem="boom")),
        ({"error": "boom"}, Envelope("failed", problem="boom")),
        (
            {"success": False, "error": "boom", "validation_failure_message": "no number"},
            Envelope("invalid", problem="no number", retryable=False),
        ),
        ({"validation_failure_message": "no"}, Envelope("invalid", problem="no", retryable=False)),
        (
            {"status": "succeeded", "success": False},
            Envelope("failed", problem="it said neither error nor validation_failure_message"),
        ),
        ({"status": "succeeded", "error": "boom"}, Envelope("failed", problem="boom")),
        ({"success": True, "error": "boom"}, Envelope("failed", problem="boom")),
        ({"success": True, "validation_failure_message": "no"}, Envelope("invalid", problem="no", retryable=False)),
        ({"success": True, "error": "", "validation_failure_message": ""}, Envelope("succeeded")),
        ({"success": False, "error": "boom", "validation_failure_message": ""}, Envelope("failed", problem="boom")),
        ({"success": False}, Envelope("failed", problem="it said neither error nor validation_failure_message")),
    ],
)
def test_both_forms_are_read(answer: Any, envelope: Envelope) -> None:
    assert read_envelope(text(answer)) == envelope
    assert envelope.succeeded == (envelope.status == "succeeded")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "returned null"),
        ("null", "returned null"),
        ("[1]", "returned an array"),
        ('"succeeded"', "returned a text"),
        ("true", "returned a boolean"),
        ("7", "returned a number"),
        ("{}", "without a status"),
        ('{"payload": {}}', "without a status"),
        ('{"error": null}', "without a status"),
        ('{"status": 1}', "status is no text"),
        ('{"status": null}', "status is no text"),
        ('{"status": " "}', "status is no text"),
        ('{"success": "yes"}', "neither true nor false"),
        ('{"success": 1}', "neither true nor false"),
    ],
)
def test_everything_else_is_refused_with_a_remedy(answer: str | None, problem: str) -> None:
    with pytest.raises(EnvelopeInvalid, match=problem):
        read_envelope(answer)
    reply = read_reply("before_handler", "comms.get", answer)
    assert reply.problem is not None and reply.problem.startswith("before_handler comms.get returned ")
    assert [error["message"] for error in after_function(reply).errors] == [reply.problem]


@pytest.mark.req("S32")
def test_a_status_of_a_function_is_an_answer_and_a_failure_is_an_error() -> None:
    stopped = read_reply("db_function", "comms.supervise", '{"status": "max_attempts_reached"}')
    raised = failed_reply("db_function", "comms.supervise", "RaiseError", "boom")
    invalid = read_reply("db_function", "comms.supervise", '{"success": false, "validation_failure_message": "no"}')

    assert after_function(stopped) == Ending("max_attempts_reached")
    assert stopped.problem == 'db_function comms.supervise answered "max_attempts_reached"'
    assert [(e["type"], e["message"], e["class"]) for e in after_function(raised).errors] == [
        ("RaiseError", "db_function comms.supervise failed: boom", "retryable")
    ]
    assert [(e["message"], e["class"]) for e in after_function(invalid).errors] == [
        ("db_function comms.supervise failed: no", "non_retryable")
    ]
    assert Ending("succeeded", True).result == '{"status":"succeeded","accepted":true}'


def test_a_problem_is_kept_without_secrets_and_of_limited_length() -> None:
    reply = read_reply(
        "success_handler", "comms.x", text({"success": False, "error": "password=hunter2 " + "x" * 9000})
    )
    assert reply.problem is not None
    assert "hunter2" not in reply.problem and len(reply.problem) <= 1000


@pytest.mark.req("S30")
@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ("{}", "the payload has no before_handler"),
        ("[]", "is no object"),
        ("null", "is no object"),
        ('{"before_handler": 7}', "before_handler of the payload must be a text"),
        ('{"before_handler": "  "}', "before_handler of the payload must be a text"),
        (text({"before_handler": "a." + "b" * 300}), "before_handler of the payload must be a text"),
        ('{"before_handler": "a.b", "error_handler": "a.d"}', "the payload has no success_handler"),
        ('{"before_handler": "a.b", "success_handler": "a.c"}', "the payload has no error_handler"),
    ],
)
def test_a_payload_must_name_all_handlers(payload: str, problem: str) -> None:
    with pytest.raises(PayloadUnusable, match=problem):
        handlers_of(payload)
    with pytest.raises(PayloadUnusable, match=r"db_function|no object"):
        function_of(payload)


@pytest.mark.req("S38", "S40", "S63")
def test_payloads_of_handlers_carry_the_original_as_it_was_written() -> None:
    original = (
        '{"before_handler": "a.b", "success_handler": "a.c", "error_handler": "a.d", "n": 1.10000000000000000000001}'
    )

    assert handlers_of(original) == Handlers("a.b", "a.c", "a.d")
    assert error_handler_of(original) == "a.d" and error_handler_of("{}") is None
    assert success_payload(original, '{"id":1}') == f'{{"original_payload":{original},"worker_payload":{{"id":1}}}}'
    assert error_payload(original, "boom") == f'{{"original_payload":{original},"error":"boom"}}'


class Unreadable:
    @property
    def model_dump(self) -> Any:
        raise RuntimeError("never")


@pytest.mark.parametrize(
    "value",
    [object(), {1, "a"}.__iter__(), float("nan"), "nul\0", "x" * 2_000_000, Unreadable(), {"a": b"\xff"}.keys()],
)
def test_an_answer_that_is_no_json_becomes_null_and_an_error(value: Any) -> None:
    written, errors = worker_payload("push", value)
    assert written == "null"
    assert len(errors) == 1 and "answer of channel push" in errors[0]["message"]
    assert errors[0]["message"].endswith("worker_payload is null")


@pytest.mark.parametrize(("value", "written"), [(None, "null"), ({"a": [1]}, '{"a":[1]}'), ("x", '"x"')])
def test_an_answer_that_is_json_is_passed_on(value: Any, written: str) -> None:
    assert worker_payload("push", value) == (written, ())


@pytest.mark.parametrize("name", ["auth.reset_password", "auth.get_token_payload", "vault.secret"])
def test_a_function_whose_name_means_a_secret_is_named_and_its_message_kept(name: str) -> None:
    """A name before a colon would be taken for that of a value, which is withheld."""
    raised = failed_reply("before_handler", name, "RaiseError", "there is no row 7")
    refused = read_reply("before_handler", name, '{"success": false, "error": "there is no row 7"}')

    assert raised.problem == refused.problem == f"before_handler {name} failed: there is no row 7"
