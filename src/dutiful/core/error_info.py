"""An exception as data that can be stored and shown."""

import traceback
from collections.abc import Mapping
from typing import Any

from dutiful.core.classify import classify, leaves
from dutiful.core.error_class import ErrorClass
from dutiful.core.fingerprint import fingerprint, place
from dutiful.core.payload import clean
from dutiful.core.sensitive import redact

MESSAGE_LIMIT = 500
TYPE_LIMIT = 200
TRACEBACK_LIMIT = 20_000
MARGIN = 10_000  # looked at beyond a limit, so that a secret is known although it is cut


def describe(
    error: BaseException, *, error_class: ErrorClass | None = None, message_limit: int = MESSAGE_LIMIT
) -> dict[str, Any]:
    """Type, message, traceback, class and fingerprint; whatever is in them, they can be stored, and no secret is."""
    name = type_of(error)
    message = message_of(error)
    return {
        "type": name,
        "message": storable(message, message_limit),
        "traceback": storable(_traceback(error), TRACEBACK_LIMIT),
        "class": (error_class or classify(error).error_class).value,
        "fingerprint": fingerprint(name, _redacted(message, 0) + _inside(error), place(error.__traceback__)),
    }


def made(type: str, message: str, error_class: ErrorClass) -> dict[str, Any]:
    """An error that Dutiful states itself, without an exception."""
    return {
        "type": type,
        "message": storable(message, MESSAGE_LIMIT),
        "class": error_class.value,
        "fingerprint": fingerprint(type, message),
    }


def class_of(error: Mapping[str, Any]) -> ErrorClass | None:
    """The class of an error as it is stored; None for one that has none, or one of a later release."""
    try:
        return ErrorClass(error["class"])
    except (KeyError, ValueError):
        return None


def type_of(error: BaseException) -> str:
    return storable(str.__str__(type(error).__qualname__), TYPE_LIMIT)


def message_of(error: BaseException) -> str:
    try:
        return str.__str__(str(error))  # a plain text, whatever class of texts it was
    except BaseException as second:  # an error whose __str__ fails must not fail its report
        return f"(its message could not be read: {type(second).__name__})"


def storable(text: str, limit: int) -> str:
    """At most `limit` characters of text from outside, without secrets."""
    shown = _redacted(text, limit)
    if len(shown) > limit:
        told = f"… ({len(text):,} characters in all)"
        shown = shown[: limit - len(told)] + told if len(told) < limit else shown[:limit]
    return clean(shown, limit)


def _redacted(text: str, limit: int) -> str:
    return redact(text[: limit + MARGIN])


def _inside(error: BaseException) -> str:
    """What a group is made of, which its own message does not tell."""
    if not isinstance(error, BaseExceptionGroup):
        return ""
    return " of " + " ".join(sorted({type(inner).__qualname__ for inner in leaves(error)}))


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.TracebackException.from_exception(error, limit=-30).format())
    except BaseException as second:
        return f"(its traceback could not be read: {type(second).__name__})"
