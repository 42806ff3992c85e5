"""What the worker reads of a payload, and makes for handlers: names of functions, and nothing of the domain."""

from typing import Any

import msgspec

from dutiful.core.json import read

DB_FUNCTION = "db_function"
BEFORE, SUCCESS, ERROR = "before_handler", "success_handler", "error_handler"
_LONGEST = 200  # characters of a name; Postgres allows 127 for one with its schema


class PayloadUnusable(Exception):
    """The payload does not name a function that the worker needs; the message says which."""


class Handlers(msgspec.Struct, frozen=True):
    before: str
    success: str
    error: str


def function_of(payload: str) -> str:
    """The function that a job of the kind db_function names."""
    return _name(read(payload), DB_FUNCTION)


def handlers_of(payload: str) -> Handlers:
    """All three handlers, because without them nothing would record what was done."""
    read_payload = read(payload)
    return Handlers(*(_name(read_payload, field) for field in (BEFORE, SUCCESS, ERROR)))


def error_handler_of(payload: str) -> str | None:
    """The error handler of a payload that may lack others."""
    try:
        return _name(read(payload), ERROR)
    except PayloadUnusable:
        return None


def success_payload(original: str, provided: str) -> str:
    return _json({"original_payload": msgspec.Raw(original.encode()), "worker_payload": msgspec.Raw(provided.encode())})


def error_payload(original: str, error: str) -> str:
    return _json({"original_payload": msgspec.Raw(original.encode()), "error": error})


def _json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()


def _name(payload: Any, field: str) -> str:
    if not isinstance(payload, dict):
        raise PayloadUnusable(f"the payload is no object, so it has no {field}")
    name = payload.get(field)
    if name is None:
        raise PayloadUnusable(f"the payload has no {field}: name a function with its schema, as in comms.send")
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST:
        raise PayloadUnusable(
            f"{field} of the payload must be a text of 1 to {_LONGEST} characters: name a function with its schema"
        )
    return name
