"""Envelopes: what SQL functions return to the worker that ran them.

`{"status": …, "payload": …}` is a success only if its status is "succeeded". The second form is
`{"success": …, "error": …, "validation_failure_message": …, "payload": …}`.
"""

from typing import Any

import msgspec

from dutiful.core.json import read

SUCCEEDED = "succeeded"
FAILED = "failed"
INVALID = "invalid"  # the status of a validation failure
_MESSAGES = ("error", "validation_failure_message")
_SHAPE = 'return {"status": "succeeded"}, with a "payload" if it is a before handler'


class Envelope(msgspec.Struct, frozen=True):
    """What a function answered; `problem` is its own message, if it gave one."""

    status: str
    payload: Any = None
    problem: str | None = None
    retryable: bool = True  # whether a new attempt may succeed

    @property
    def succeeded(self) -> bool:
        return self.status == SUCCEEDED


class EnvelopeInvalid(Exception):
    """The answer is no envelope; the message continues "the function …"."""


def read_envelope(text: str | None) -> Envelope:
    """Reads the JSON text that a function returned; None is the null of SQL."""
    answer = read(text)
    match answer:
        case None:
            raise EnvelopeInvalid(f"returned null: {_SHAPE}")
        case {"status": "succeeded"} | {"success": True} if _contradicts(answer):
            return _refusal(answer)  # what is sent cannot be taken back
        case {"status": str(status), **rest} if status.strip():
            return Envelope(status, rest.get("payload"))
        case {"status": _}:
            raise EnvelopeInvalid(f"returned an envelope whose status is no text: {_SHAPE}")
        case {"success": True, **rest}:
            return Envelope(SUCCEEDED, rest.get("payload"))
        case {"success": bool() | None} | {"error": _} | {"validation_failure_message": _}:
            return _refusal(answer)
        case {"success": _}:
            raise EnvelopeInvalid("returned an envelope whose success is neither true nor false")
        case dict():
            raise EnvelopeInvalid(f"returned an object without a status: {_SHAPE}")
        case _:
            raise EnvelopeInvalid(f"returned {_kind_of(answer)}, and no object: {_SHAPE}")


def _contradicts(answer: dict[str, Any]) -> bool:
    """Whether an envelope that says it succeeded also says that it did not."""
    return answer.get("success") is False or any(_message(answer, name) for name in _MESSAGES)


def _message(answer: dict[str, Any], name: str) -> str | None:
    """What it says there; an empty text says nothing, as a language without null returns it."""
    value = answer.get(name)
    return None if value is None or not str(value).strip() else str(value)


def _refusal(answer: dict[str, Any]) -> Envelope:
    error, invalid = (_message(answer, name) for name in _MESSAGES)
    payload = answer.get("payload")
    if invalid is not None:
        return Envelope(INVALID, payload, invalid, retryable=False)
    if error is not None:
        return Envelope(FAILED, payload, error)
    if "success" not in answer:
        raise EnvelopeInvalid(f"returned an object without a status: {_SHAPE}")
    return Envelope(FAILED, payload, "it said neither error nor validation_failure_message")


def _kind_of(value: Any) -> str:
    match value:
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case _:
            return "an array"
