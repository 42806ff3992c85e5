"""An exception as data that can be stored and shown."""

import traceback
from typing import Any

from dutiful.core.payload import clean

MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 20_000


def describe(error: BaseException, *, message_limit: int = MESSAGE_LIMIT) -> dict[str, Any]:
    """Its type, message and traceback; whatever is in them, the answer can be stored."""
    return {
        "type": clean(type(error).__qualname__, 200),
        "message": clean(_message(error), message_limit),
        "traceback": clean(_traceback(error), TRACEBACK_LIMIT),
    }


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as second:  # an error whose __str__ fails must not fail its report
        return f"(its message could not be read: {type(second).__name__})"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.TracebackException.from_exception(error, limit=-30).format())
    except BaseException as second:
        return f"(its traceback could not be read: {type(second).__name__})"
