"""Errors as data that can be stored and shown, with a fingerprint that equal errors share."""

import re
import traceback
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import PurePath
from types import TracebackType
from typing import Any

from dutiful.core.json import clean
from dutiful.core.redaction.redact import redact
from dutiful.core.retry.classify import ErrorClass, classify, leaves

MESSAGE_LIMIT = 500
TYPE_LIMIT = 200
TRACEBACK_LIMIT = 20_000
MARGIN = 10_000  # characters beyond a limit that are searched for secrets, so that one is found although it is cut


def describe(
    error: BaseException, *, error_class: ErrorClass | None = None, message_limit: int = MESSAGE_LIMIT
) -> dict[str, Any]:
    """Type, message, traceback, class and fingerprint of an exception; storable, and without secrets."""
    name = type_of(error)
    message = message_of(error)
    return {
        "type": name,
        "message": storable(message, message_limit),
        "traceback": storable(_traceback(error), TRACEBACK_LIMIT),
        "class": (error_class or classify(error).error_class).value,
        "fingerprint": fingerprint(name, _redacted(message, 0) + _inside(error), origin(error.__traceback__)),
    }


def make_error(type: str, message: str, error_class: ErrorClass, message_limit: int = MESSAGE_LIMIT) -> dict[str, Any]:
    """An error that Dutiful records itself, without an exception."""
    return {
        "type": type,
        "message": storable(message, message_limit),
        "class": error_class.value,
        "fingerprint": fingerprint(type, message),
    }


def class_of(error: Mapping[str, Any]) -> ErrorClass | None:
    """The class of a stored error; None if it has none, or one of a later release."""
    try:
        return ErrorClass(error["class"])
    except (KeyError, ValueError):
        return None


def type_of(error: BaseException) -> str:
    return storable(str.__str__(type(error).__qualname__), TYPE_LIMIT)


def message_of(error: BaseException) -> str:
    try:
        return str.__str__(str(error))  # a plain str, even if __str__ returns a subclass
    except BaseException as second:  # an error whose __str__ fails must not fail its report
        return f"(its message could not be read: {type(second).__name__})"


def storable(text: str, limit: int) -> str:
    """At most `limit` characters of text from outside, without secrets."""
    shown = _redacted(text, limit)
    if len(shown) > limit:
        note = f"… ({len(text):,} characters in all)"
        shown = shown[: limit - len(note)] + note if len(note) < limit else shown[:limit]
    return clean(shown, limit)


def _redacted(text: str, limit: int) -> str:
    return redact(text[: limit + MARGIN])


def _inside(error: BaseException) -> str:
    """The types in a group, which its own message does not contain."""
    if not isinstance(error, BaseExceptionGroup):
        return ""
    return " of " + " ".join(sorted({type(inner).__qualname__ for inner in leaves(error)}))


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.TracebackException.from_exception(error, limit=-30).format())
    except BaseException as second:
        return f"(its traceback could not be read: {type(second).__name__})"


# --- fingerprints

FINGERPRINTED = 2_000  # characters of a message
LONGEST_WORD = 40

_QUOTED = re.compile(r"""(?<!\w)(?:'[^'\n]*'|"[^"\n]*"|`[^`\n]*`|“[^”\n]*”|«[^»\n]*»)""")
_WORD = re.compile(r"[^\s()\[\]{}<>=;,]+")
_HEX = re.compile(r"[0-9a-fA-F]{8,}")
_SEVERAL = re.compile(r"#(?:[\s,]+#)+")


def fingerprint(type: str, message: str, origin: str = "") -> str:
    """Groups equal errors, so that a thousand of them are one line in a list.

    It hashes the error's type, its message without what differs from job to job, and the function it came from, because
    the same message from two functions is two problems. Line numbers, paths and memory addresses are left out, so that
    a release, another machine or another Python changes nothing. Lists group by kind as well.
    """
    parts = "\n".join((type, gist(message), origin))
    return blake2b(parts.encode("utf-8", "replace"), digest_size=8).hexdigest()


def gist(message: str) -> str:
    """The message without numbers, ids, addresses, paths and quotations, which differ each time."""
    text = _QUOTED.sub("#", message[:FINGERPRINTED])
    text = " ".join("#" if "://" in word else word for word in text.split())
    text = _WORD.sub(lambda word: "#" if _differs(word[0]) else word[0], text)
    return _SEVERAL.sub("#", text)


def origin(tb: TracebackType | None) -> str:
    """The innermost function of the user's code: of the package that Dutiful called first."""
    package, found = None, ""
    while tb is not None:
        frame = tb.tb_frame
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package is None and root != "dutiful":
            package = root
        code = frame.f_code
        # Comprehensions have a frame in some versions of Python and none in others.
        if root == package and not code.co_name.startswith("<"):
            found = f"{PurePath(code.co_filename).name}:{code.co_name}"
        tb = tb.tb_next
    return found


def _differs(word: str) -> bool:
    return (
        len(word) > LONGEST_WORD
        or any(character.isdigit() or character in "@/\\" for character in word)
        or _HEX.fullmatch(word) is not None
    )
