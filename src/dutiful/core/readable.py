"""Stored JSON as Python can read it. A database holds more than that, put there by SQL: numbers of thousands of digits,
arrays in arrays without end. Words stand for such a part, so that the rest, and whatever is listed with it, is read."""

import re
from typing import Any, TypeVar

import msgspec

from dutiful.core.errors import PayloadInvalid

DEEPEST = 200  # levels; what can just be read could not be written again further down the stack
_MARK = "(cannot be read by Python: "
_TOO_DEEP = f'"{_MARK}nested too deeply)"'
_NO_NUMBER = f'"{_MARK}a number too large)"'
_NOT_JSON = f"{_MARK}not the JSON that belongs here)"
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]|-?\d[\d.eE+-]*')
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)

T = TypeVar("T")


def read(text: str | None) -> Any:
    """Any value; None if there is no text."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(_shallow(text))
    except _UNREADABLE:
        pass
    try:
        return msgspec.json.decode(readable(text))
    except _UNREADABLE:
        return {"unreadable": _NOT_JSON}


def read_object(text: str | None) -> dict[str, Any] | None:
    value = read(text)
    return value if isinstance(value, dict) or value is None else {"unreadable": _NOT_JSON}


def read_objects(text: str | None) -> list[dict[str, Any]] | None:
    """A list of objects, as errors are."""
    value = read(text)
    if value is None or (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
        return value
    return [{"type": "Unreadable", "message": _NOT_JSON}]


def read_as(decoder: msgspec.json.Decoder[T], text: str) -> T:
    try:
        return decoder.decode(_shallow(text))
    except _UNREADABLE:
        return decoder.decode(readable(text))


def readable(text: str) -> str:
    """`text` with words in place of each number that is too large, and of all that is nested too deeply."""
    parts: list[str] = []
    kept = depth = 0

    def replace(until: int, words: str) -> None:
        parts.extend((text[kept:until], words))

    for token in _TOKEN.finditer(text):
        match token[0][0]:
            case "[" | "{":
                depth += 1
                if depth == DEEPEST + 1:
                    replace(token.start(), _TOO_DEEP)
            case "]" | "}":
                if depth == DEEPEST + 1:
                    kept = token.end()
                depth -= 1
            case '"':
                pass
            case _ if depth <= DEEPEST and not _is_number(token[0]):
                replace(token.start(), _NO_NUMBER)
                kept = token.end()
    return "".join((*parts, text[kept:]))


def check_whole(text: str, what: str) -> str:
    """Refuse to store JSON again of which a part could not be read: it would not be the same."""
    if _MARK in text:
        raise PayloadInvalid(
            f"a part of the {what} cannot be read by Python, so it cannot be sent again as it was", what
        )
    return text


def nested_deeper(text: str) -> bool:
    """Whether it goes beyond what is read back; most have not even so many brackets."""
    return text.count("[") + text.count("{") > DEEPEST and _depth(text) > DEEPEST


def _shallow(text: str) -> str:
    """`text` itself, unless it is nested too deeply."""
    if nested_deeper(text):
        raise RecursionError
    return text


def _depth(text: str) -> int:
    deepest = depth = 0
    for token in _TOKEN.finditer(text):
        match token[0][0]:
            case "[" | "{":
                depth += 1
                deepest = max(deepest, depth)
            case "]" | "}":
                depth -= 1
    return deepest


def _is_number(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except _UNREADABLE:
        return False
    return True
