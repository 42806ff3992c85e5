"""What class of trouble an error is: by what it says itself, an HTTP status, or a connection that was lost.

Libraries are known by the names and attributes of their errors, so none of them is imported here.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from dutiful.core.error_class import ErrorClass
from dutiful.core.errors import DataRefused, LockLost, ResultTimeout, StoreUnavailable, UsageError
from dutiful.core.retry_after import RetryTime, read_retry_after

CAUSES = 10  # how far to look down a chain of causes, which may be a ring


@dataclass(frozen=True, slots=True)
class Classified:
    error_class: ErrorClass
    retry_after: RetryTime | None = None  # how long, or until when, the other side asked us to wait


UNKNOWN = Classified(ErrorClass.RETRYABLE)
_TRANSIENT = Classified(ErrorClass.TRANSIENT)
_NON_RETRYABLE = Classified(ErrorClass.NON_RETRYABLE)


def classify(error: BaseException) -> Classified:
    """The class of `error`, or of the nearest cause it was raised from that has one; retryable if nothing is known."""
    cause: BaseException | None = error
    for _ in range(CAUSES):
        if cause is None:
            break
        if (known := _known(cause)) is not None:
            return known
        cause = cause.__cause__
    return UNKNOWN


def _known(error: BaseException) -> Classified | None:
    if isinstance(error, BaseExceptionGroup):
        return _agreed([classify(inner) for inner in leaves(error)])
    said = _get(error, "error_class")
    if isinstance(said, ErrorClass):
        asked = _get(error, "retry_after")
        return Classified(said, asked if isinstance(asked, timedelta | datetime) else None)
    if not isinstance(error, Exception):
        return None  # the code of an exit is no HTTP status
    return _by_status(error) or _by_code(error) or _by_type(error)


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The errors in a group and in the groups inside it."""
    for inner in group.exceptions:
        if isinstance(inner, BaseExceptionGroup):
            yield from leaves(inner)
        else:
            yield inner


def _agreed(inner: list[Classified]) -> Classified | None:
    """What all errors of a group are; nothing if they differ."""
    if len({one.error_class for one in inner}) != 1:
        return None
    asked = [one.retry_after for one in inner]
    moment = max((one for one in asked if isinstance(one, datetime)), default=None)
    wait = max((one for one in asked if isinstance(one, timedelta)), default=None)
    return Classified(inner[0].error_class, moment or wait)


def _by_status(error: Exception) -> Classified | None:
    """As HTTP clients tell it: on the response (httpx, requests), or on the error (aiohttp, urllib)."""
    response = _get(error, "response")
    for holder, name in (
        (response, "status_code"),
        (response, "status"),
        (error, "status_code"),
        (error, "status"),
        (error, "code"),
    ):
        status = _get(holder, name)
        if isinstance(status, int) and 400 <= status < 600:
            asked = _asked(_get(response, "headers")) or _asked(_get(error, "headers"))
            # Whoever says when to come back has nothing against us but our haste, whatever number they give it.
            if status == 429 or asked is not None:
                return Classified(ErrorClass.RATE_LIMITED, asked)
            return _TRANSIENT if status >= 500 or status in (408, 425) else _NON_RETRYABLE
    return None


def _asked(headers: Any) -> RetryTime | None:
    get = _get(headers, "get")
    for name in ("Retry-After", "retry-after"):
        try:
            text = get(name)
        except Exception:  # they are no headers
            return None
        if isinstance(text, str):
            return read_retry_after(text)
    return None


def _by_code(error: Exception) -> Classified | None:
    """By the numbers of operating systems and databases."""
    state = _get(error, "sqlstate") or _get(error, "pgcode")
    if isinstance(state, str) and state.startswith(_SQLSTATES):
        return _TRANSIENT
    code = _get(error, "sqlite_errorcode")
    if isinstance(code, int) and code & 0xFF in _SQLITE_CODES:
        return _TRANSIENT
    if isinstance(error, OSError):
        if error.errno in _ERRNOS:
            return _TRANSIENT
        reason = _get(error, "reason")  # urllib puts the error that it met here
        if isinstance(reason, OSError) and reason is not error:
            return _by_code(reason) or _by_type(reason)
    return None


def _by_type(error: Exception) -> Classified | None:
    for ancestor in type(error).__mro__:
        if ancestor in _TYPES:
            return _TYPES[ancestor]
        if f"{str(ancestor.__module__).partition('.')[0]}.{ancestor.__name__}" in _NAMES:
            return _TRANSIENT
    return None


def _get(holder: Any, name: str) -> Any:
    """An attribute, if it is there; some are properties that raise."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


_TYPES: dict[type, Classified] = {
    UsageError: _NON_RETRYABLE,
    DataRefused: _NON_RETRYABLE,
    StoreUnavailable: _TRANSIENT,
    LockLost: _TRANSIENT,
    ResultTimeout: _TRANSIENT,
    TimeoutError: _TRANSIENT,
    ConnectionError: _TRANSIENT,
}
_NAMES = frozenset(
    f"{library}.{name}"
    for libraries, names in (
        ("socket", "gaierror"),
        ("ssl", "SSLEOFError SSLZeroReturnError"),
        ("httpx httpx2 httpcore httpcore2", "TimeoutException NetworkError RemoteProtocolError ProxyError"),
        ("requests", "ConnectionError Timeout ChunkedEncodingError"),
        ("urllib3", "TimeoutError NewConnectionError ProtocolError MaxRetryError"),
        ("aiohttp", "ClientConnectionError ClientPayloadError"),
        ("asyncpg", "PostgresConnectionError"),
        ("psycopg psycopg2", "OperationalError"),
        ("sqlalchemy", "TimeoutError"),
        ("apsw", "BusyError LockedError"),
        ("redis", "ConnectionError TimeoutError BusyLoadingError"),
    )
    for library in libraries.split()
    for name in names.split()
)
_ERRNOS = frozenset(
    (
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EPIPE,
        errno.ETIMEDOUT,
    )
)
# Connections, deadlocks and conflicts, want of resources, shutdowns, locks, statement timeouts.
_SQLSTATES = ("08", "40001", "40P01", "53", "55P03", "57014", "57P01", "57P02", "57P03")
_SQLITE_CODES = (5, 6)  # busy, locked
