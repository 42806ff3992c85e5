"""Classifies errors by their own class attribute, an HTTP status, a database or OS code, or their type.

Libraries are recognised by the names and attributes of their errors, so none of them is imported here.
"""

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import Any, TypeAlias

from dutiful.core.errors import (
    CannotOpen,
    DataRefused,
    EventTimeout,
    LockLost,
    ResultTimeout,
    StoreUnavailable,
    UsageError,
)
from dutiful.core.retry.backoff import RetryTime, read_retry_after

CAUSES = 10  # followed down a chain of causes
LEAVES = 1_000  # errors of a group that are visited
CLASSIFIED = 100  # errors of a group that are classified


class ErrorClass(StrEnum):
    """Decides whether and when a failed job is tried again."""

    TRANSIENT = "transient"  # it will pass by itself: a timeout, a lost connection
    RETRYABLE = "retryable"  # it may pass; also every error that is not classified
    NON_RETRYABLE = "non_retryable"  # it would fail the same way again
    RATE_LIMITED = "rate_limited"  # the other side asked for fewer calls


@dataclass(frozen=True, slots=True)
class Classification:
    error_class: ErrorClass
    retry_after: RetryTime | None = None  # the wait that the other side asked for
    decided_by: type[BaseException] | None = None  # the type for which a policy has a backoff


# Classifies one error, without its causes; None: it does not know.
Judge: TypeAlias = Callable[[BaseException], Classification | None]

UNKNOWN = Classification(ErrorClass.RETRYABLE)
_TRANSIENT = Classification(ErrorClass.TRANSIENT)
_NON_RETRYABLE = Classification(ErrorClass.NON_RETRYABLE)


def classify(error: BaseException, judge: Judge = lambda _: None) -> Classification:
    """The class of `error`, or of the nearest cause it was raised from that has one; retryable if nothing is known.

    `judge` comes first for each of them, and for each error of a group.
    """
    return _Search(judge).along_causes(error, CAUSES) or UNKNOWN


class _Search:
    """Classifies one error. Causes and groups may share errors or form rings, so each error is classified once and
    remembered."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._seen: dict[int, Classification | None] = {}

    def along_causes(self, error: BaseException, left: int) -> Classification | None:
        """Classifies by the error itself, or by the first known one of up to `left` causes."""
        cause: Any = error
        while isinstance(cause, BaseException) and left > 0:
            left -= 1
            if (known := self._classify(cause, left)) is not None:
                return known
            cause = _get(cause, "__cause__")
        return None

    def _classify(self, error: BaseException, left: int) -> Classification | None:
        key = id(error)
        if key not in self._seen:
            self._seen[key] = None
            known = self._judge(error)
            if known is None and isinstance(error, BaseExceptionGroup):
                known = _agreed(
                    [self.along_causes(inner, left) or UNKNOWN for inner in islice(leaves(error), CLASSIFIED)]
                )
            self._seen[key] = known or _known(error)
        return self._seen[key]


def _known(error: BaseException) -> Classification | None:
    own = _get(error, "error_class")
    if isinstance(own, ErrorClass):
        asked = _get(error, "retry_after")
        return Classification(own, asked if isinstance(asked, timedelta | datetime) else None)
    if not isinstance(error, Exception) or isinstance(error, BaseExceptionGroup):
        return None  # the code of an exit is no HTTP status
    return _by_smtp(error) or _by_status(error) or _by_code(error) or _by_type(error)


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The errors in a group and in the groups inside it, at most LEAVES."""
    rest: list[BaseException] = [group]
    seen: set[int] = set()
    found = 0
    while rest and found < LEAVES:
        error = rest.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        if isinstance(error, BaseExceptionGroup):
            inner = _get(error, "exceptions")
            rest += reversed(inner) if isinstance(inner, tuple) else ()
        else:
            found += 1
            yield error


def _agreed(inner: list[Classification]) -> Classification | None:
    """The class that all errors of a group share; None if they differ."""
    if len({one.error_class for one in inner}) != 1:
        return None
    asked = [one.retry_after for one in inner]
    moment = max((one for one in asked if isinstance(one, datetime)), default=None)
    wait = max((one for one in asked if isinstance(one, timedelta)), default=None)
    deciders = {one.decided_by for one in inner}
    return Classification(inner[0].error_class, moment or wait, deciders.pop() if len(deciders) == 1 else None)


def _by_smtp(error: Exception) -> Classification | None:
    """Classifies by a mail server's code: 4xx means "later" and 5xx "never", the opposite of HTTP."""
    code = _get(error, "smtp_code")
    if code is None and any(ancestor.__name__.startswith("SMTP") for ancestor in type(error).__mro__):
        code = _get(error, "code")
        if code is None:
            code = _mildest(_get(error, "recipients"))
    if not isinstance(code, int) or not 400 <= code < 600:
        return None
    return _TRANSIENT if code < 500 else _NON_RETRYABLE


def _mildest(refused: Any) -> int | None:
    """The lowest code of several recipients: smtplib has them by address, aiosmtplib as a list of errors."""
    if isinstance(refused, dict):
        codes = [reply[0] for reply in refused.values() if isinstance(reply, tuple) and reply]
    else:
        codes = [_get(one, "code") for one in refused] if isinstance(refused, list) else []
    return min((code for code in codes if isinstance(code, int)), default=None)


def _by_status(error: Exception) -> Classification | None:
    """Classifies by the HTTP status, on the response (httpx, requests) or on the error (aiohttp, urllib)."""
    response = _get(error, "response")
    places = [(response, "status_code"), (response, "status"), (error, "status_code")]
    # Other errors also have a status or a code, of another meaning.
    if response is not None or _get(error, "headers") is not None or _root(type(error)) in _HTTP:
        places += [(error, "status"), (error, "code")]
    for holder, name in places:
        status = _get(holder, name)
        if isinstance(status, int) and 400 <= status < 600:
            asked = _asked(_get(response, "headers")) or _asked(_get(error, "headers"))
            # Retry-After means that the call may succeed later, whatever the status is.
            if status == 429 or asked is not None:
                return Classification(ErrorClass.RATE_LIMITED, asked)
            return _TRANSIENT if status >= 500 or status in (408, 425) else _NON_RETRYABLE
    return None


def _asked(headers: Any) -> RetryTime | None:
    get = _get(headers, "get")
    for name in ("Retry-After", "retry-after"):
        try:
            value = get(name)
        except Exception:  # they are no headers
            return None
        if isinstance(value, str | int):
            return read_retry_after(str(value))
    return None


def _by_code(error: Exception) -> Classification | None:
    """Classifies by the codes of operating systems and databases."""
    state = _get(error, "sqlstate") or _get(error, "pgcode")
    if isinstance(state, str) and state.startswith(_SQLSTATES):
        return _TRANSIENT
    code = _get(error, "sqlite_errorcode")
    if isinstance(code, int) and code & 0xFF in _SQLITE_CODES:
        return _TRANSIENT
    if isinstance(error, OSError):
        if error.errno in _ERRNOS:
            return _TRANSIENT
        reason = _get(error, "reason")  # urllib keeps the original error here
        if isinstance(reason, OSError) and reason is not error:
            return _by_code(reason) or _by_type(reason)
    return None


def _by_type(error: Exception) -> Classification | None:
    for ancestor in type(error).__mro__:
        if ancestor in _TYPES:
            return _TYPES[ancestor]
        if f"{_root(ancestor)}.{ancestor.__name__}" in _NAMES:
            return _TRANSIENT
    return None


def _root(of: type) -> str:
    """The package that a class is from."""
    return str(of.__module__).partition(".")[0]


def _get(holder: Any, name: str) -> Any:
    """An attribute, if it exists; some are properties that raise, and its value may be anything."""
    try:
        return getattr(holder, name, None)
    except BaseException:
        return None


_TYPES: dict[type, Classification] = {
    UsageError: _NON_RETRYABLE,
    CannotOpen: _NON_RETRYABLE,
    DataRefused: _NON_RETRYABLE,
    StoreUnavailable: _TRANSIENT,
    LockLost: _TRANSIENT,
    ResultTimeout: _TRANSIENT,
    EventTimeout: _NON_RETRYABLE,
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
        ("smtplib aiosmtplib", "SMTPServerDisconnected SMTPConnectError"),
        ("redis", "ConnectionError TimeoutError BusyLoadingError"),
    )
    for library in libraries.split()
    for name in names.split()
)
_HTTP = frozenset(
    ("aiohttp", "google", "googleapiclient", "http", "kubernetes", "tornado", "twilio", "urllib", "urllib3", "werkzeug")
)
_OS_CODES = "CONNABORTED CONNREFUSED CONNRESET HOSTDOWN HOSTUNREACH NETDOWN NETRESET NETUNREACH NOTCONN PIPE TIMEDOUT"
_ERRNOS = frozenset(getattr(errno, f"E{name}") for name in _OS_CODES.split())
# Connections, deadlocks and conflicts, lack of resources, shutdowns, locks, statement timeouts.
_SQLSTATES = ("08", "40001", "40P01", "53", "55P03", "57014", "57P01", "57P02", "57P03")
_SQLITE_CODES = (5, 6)  # busy, locked
