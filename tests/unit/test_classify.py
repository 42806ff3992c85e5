import asyncio
import errno
import io
import smtplib
import socket
import sqlite3
import urllib.error
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.message import Message
from http import HTTPStatus
from typing import Any

import apsw
import asyncpg
import httpx2
import psycopg
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from dutiful import (
    DataRefused,
    ErrorClass,
    Fail,
    PayloadInvalid,
    RateLimited,
    Retryable,
    RetryAfter,
    StoreUnavailable,
    TimeoutExceeded,
    Transient,
    UsageError,
)
from dutiful.core.retry.backoff import LONGEST_WAIT, wait_from
from dutiful.core.retry.classify import LEAVES, Classification, classify, leaves

TRANSIENT, RETRYABLE = ErrorClass.TRANSIENT, ErrorClass.RETRYABLE
NON_RETRYABLE, RATE_LIMITED = ErrorClass.NON_RETRYABLE, ErrorClass.RATE_LIMITED


# --- the same response as each HTTP client reports it


def from_httpx(status: int, headers: dict[str, str]) -> Exception:
    request = httpx2.Request("GET", "https://example.org")
    return httpx2.HTTPStatusError("no", request=request, response=httpx2.Response(status, headers=headers))


def from_requests(status: int, headers: dict[str, str]) -> Exception:
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers)
    return requests.HTTPError("no", response=response)


def from_urllib(status: int, headers: dict[str, str]) -> Exception:
    message = Message()
    for name, value in headers.items():
        message[name] = value
    return urllib.error.HTTPError("https://example.org", status, "no", message, io.BytesIO())


class ClientResponseError(Exception):
    """As aiohttp has it."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers


CLIENTS: list[Callable[[int, dict[str, str]], Exception]] = [
    from_httpx,
    from_requests,
    from_urllib,
    ClientResponseError,
]
every_client = pytest.mark.parametrize("client", CLIENTS)


@every_client
@pytest.mark.parametrize(
    ("status", "error_class"),
    [
        (400, NON_RETRYABLE),
        (401, NON_RETRYABLE),
        (404, NON_RETRYABLE),
        (408, TRANSIENT),
        (422, NON_RETRYABLE),
        (425, TRANSIENT),
        (429, RATE_LIMITED),
        (500, TRANSIENT),
        (503, TRANSIENT),
        (599, TRANSIENT),
        (302, RETRYABLE),
    ],
)
@pytest.mark.req("W56")
def test_an_http_status_decides_the_class(
    client: Callable[[int, dict[str, str]], Exception], status: int, error_class: ErrorClass
) -> None:
    assert classify(client(status, {})) == Classification(error_class)


@every_client
@pytest.mark.parametrize("status", [403, 429, 503])
@pytest.mark.req("W62")
def test_the_wait_that_a_server_asks_for_is_used(
    client: Callable[[int, dict[str, str]], Exception], status: int
) -> None:
    assert classify(client(status, {"Retry-After": "90"})) == Classification(RATE_LIMITED, timedelta(seconds=90))


@pytest.mark.req("W62")
def test_a_wait_may_be_asked_for_as_a_date_and_is_bounded() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    soon = classify(from_httpx(503, {"Retry-After": "Tue, 01 Jan 2030 00:10:00 GMT"}))
    assert soon == Classification(RATE_LIMITED, now + timedelta(minutes=10))
    assert wait_from(now, soon.retry_after) == timedelta(minutes=10)
    assert wait_from(now + timedelta(hours=1), soon.retry_after) is None
    assert classify(from_httpx(429, {"Retry-After": "9" * 40})).retry_after == LONGEST_WAIT
    late = classify(from_httpx(429, {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}))
    assert wait_from(now, late.retry_after) == LONGEST_WAIT


@pytest.mark.parametrize("asked", ["0", "-5", "soon", ""])
def test_a_wait_that_is_none_leaves_the_delay_to_the_policy(asked: str) -> None:
    assert classify(from_httpx(429, {"Retry-After": asked})) == Classification(RATE_LIMITED)
    assert classify(from_httpx(503, {"Retry-After": asked})) == Classification(TRANSIENT)
    assert classify(RateLimited(retry_after=asked)) == Classification(RATE_LIMITED)


# --- what is known otherwise


def os_error(number: int) -> OSError:
    return OSError(number, "no")


def urllib_met(error: OSError) -> Exception:
    return urllib.error.URLError(error)


def sqlite_busy() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return error


@pytest.mark.parametrize(
    ("error", "error_class"),
    [
        (Transient("busy"), TRANSIENT),
        (Retryable("again"), RETRYABLE),
        (Fail("never"), NON_RETRYABLE),
        (RateLimited(), RATE_LIMITED),
        (RetryAfter("1m"), RETRYABLE),
        (TimeoutExceeded(), TRANSIENT),
        (PayloadInvalid("no"), NON_RETRYABLE),
        (UsageError("no"), NON_RETRYABLE),
        (DataRefused("no"), NON_RETRYABLE),
        (StoreUnavailable("no"), TRANSIENT),
        (TimeoutError(), TRANSIENT),
        (ConnectionResetError(), TRANSIENT),
        (BrokenPipeError(), TRANSIENT),
        (socket.gaierror(-3, "try again"), TRANSIENT),
        (os_error(errno.ENETUNREACH), TRANSIENT),
        (os_error(errno.EHOSTUNREACH), TRANSIENT),
        (os_error(errno.ENOSPC), RETRYABLE),
        (FileNotFoundError("no"), RETRYABLE),
        (urllib_met(ConnectionRefusedError(errno.ECONNREFUSED, "no")), TRANSIENT),
        (urllib_met(os_error(errno.ENETUNREACH)), TRANSIENT),  # known by its number alone
        (urllib_met(socket.gaierror(-3, "try again")), TRANSIENT),  # known by its type alone
        (urllib_met(os_error(errno.ENOSPC)), RETRYABLE),
        (httpx2.ConnectTimeout("no"), TRANSIENT),
        (httpx2.ReadError("no"), TRANSIENT),
        (httpx2.UnsupportedProtocol("no"), RETRYABLE),
        (requests.ConnectionError("no"), TRANSIENT),
        (requests.ReadTimeout("no"), TRANSIENT),
        (requests.exceptions.InvalidURL("no"), RETRYABLE),
        (asyncpg.ConnectionDoesNotExistError("no"), TRANSIENT),
        (asyncpg.DeadlockDetectedError("no"), TRANSIENT),
        (asyncpg.UniqueViolationError("no"), RETRYABLE),
        (psycopg.OperationalError("no"), TRANSIENT),
        (psycopg.errors.SerializationFailure("no"), TRANSIENT),
        (psycopg.errors.UndefinedTable("no"), RETRYABLE),
        (apsw.BusyError("no"), TRANSIENT),
        (sqlite_busy(), TRANSIENT),
        (sqlite3.OperationalError("no such table"), RETRYABLE),
        (ValueError("no"), RETRYABLE),
        (SystemExit(404), RETRYABLE),
        (asyncio.CancelledError(), RETRYABLE),
    ],
    ids=repr,
)
@pytest.mark.req("W56")
def test_an_error_is_known_by_what_it_is(error: BaseException, error_class: ErrorClass) -> None:
    assert classify(error) == Classification(
        error_class, timedelta(minutes=1) if isinstance(error, RetryAfter) else None
    )


class Mine(Exception): ...


def raised_from(error: BaseException, cause: BaseException | None) -> BaseException:
    error.__cause__ = cause
    return error


def test_an_error_that_is_not_known_has_the_class_of_what_it_was_raised_from() -> None:
    limited = from_httpx(429, {"Retry-After": "5"})
    assert classify(raised_from(Mine(), limited)) == Classification(RATE_LIMITED, timedelta(seconds=5))
    assert classify(raised_from(Mine(), raised_from(Mine(), Fail("never")))) == Classification(NON_RETRYABLE)
    assert classify(raised_from(Retryable(), from_httpx(404, {}))) == Classification(RETRYABLE)
    beside = Mine()
    beside.__context__ = Fail("while that was handled")
    assert classify(beside) == Classification(RETRYABLE)


def test_a_ring_of_causes_is_left() -> None:
    one, other = Mine(), Mine()
    assert classify(raised_from(one, raised_from(other, one))) == Classification(RETRYABLE)
    group = ExceptionGroup("all", [one])
    one.__cause__ = group
    assert classify(one) == classify(group) == Classification(RETRYABLE)


def test_groups_within_groups_are_looked_at_once() -> None:
    deep: Exception = TimeoutError()
    for _ in range(3_000):
        deep = ExceptionGroup("deep", [deep])
    assert classify(deep) == Classification(TRANSIENT)
    # Each of six errors has six as its cause, and so on: a million ways.
    wide: Exception | None = None
    for _ in range(8):
        inner = [Mine() for _ in range(6)]
        for error in inner:
            error.__cause__ = wide
        wide = ExceptionGroup("wide", inner)
    assert wide is not None and classify(wide) == Classification(RETRYABLE)


@pytest.mark.timeout(20)
def test_errors_that_were_raised_from_their_own_group_are_looked_at_once() -> None:
    inner = [Mine() for _ in range(12)]
    group = ExceptionGroup("ring", inner)
    for error in inner:
        error.__cause__ = group  # a trillion ways
    assert classify(group) == classify(inner[0]) == Classification(RETRYABLE)


def test_an_error_that_is_its_own_reason_says_nothing() -> None:
    error = urllib.error.URLError("no")
    error.reason = error
    assert classify(error) == Classification(RETRYABLE)


class Stopped(BaseException):
    status_code = 404


class StatusGroup(ExceptionGroup[Exception]):
    status_code = 404


def test_neither_what_ends_a_program_nor_a_group_has_an_http_status() -> None:
    assert classify(Stopped()) == Classification(RETRYABLE)
    assert classify(StatusGroup("some", [Fail(), TimeoutError()])) == Classification(RETRYABLE)


def test_the_first_hundred_errors_of_a_group_decide() -> None:
    errors: list[Exception] = [TimeoutError() for _ in range(100)]
    assert classify(ExceptionGroup("many", [*errors, Fail()])) == Classification(TRANSIENT)
    assert classify(ExceptionGroup("many", [*errors[1:], Fail()])) == Classification(RETRYABLE)


class SMTPResponseException(Exception):
    """As aiosmtplib has it."""

    def __init__(self, code: int) -> None:
        self.code = code


@pytest.mark.parametrize("reply", [SMTPResponseException, lambda code: smtplib.SMTPResponseException(code, "no")])
def test_a_mail_server_means_later_by_4xx_and_never_by_5xx(reply: Callable[[int], Exception]) -> None:
    assert {classify(reply(code)).error_class for code in (421, 450, 451, 452)} == {TRANSIENT}
    assert {classify(reply(code)).error_class for code in (550, 554)} == {NON_RETRYABLE}


class SMTPRecipientsRefused(Exception):
    """As aiosmtplib has it."""

    def __init__(self, codes: list[int]) -> None:
        self.recipients = [SMTPResponseException(code) for code in codes]


@pytest.mark.parametrize(
    "refused",
    [
        SMTPRecipientsRefused,
        lambda codes: smtplib.SMTPRecipientsRefused({f"{n}@here": (code, b"no") for n, code in enumerate(codes)}),
    ],
)
def test_recipients_that_are_refused_are_so_for_good_if_all_of_them_are(
    refused: Callable[[list[int]], Exception],
) -> None:
    assert classify(refused([550])) == classify(refused([550, 553])) == Classification(NON_RETRYABLE)
    assert classify(refused([451])) == classify(refused([550, 451])) == Classification(TRANSIENT)
    assert classify(refused([])) == Classification(RETRYABLE)


def test_a_recipient_without_a_reply_says_nothing() -> None:
    replies: Any = {"a@here": (), "b@here": 550, "c@here": (451, b"later")}
    assert classify(smtplib.SMTPRecipientsRefused(replies)) == Classification(TRANSIENT)


def test_a_group_is_what_all_its_errors_are() -> None:
    asked = [from_httpx(429, {"Retry-After": text}) for text in ("5", "90")]
    inner = ExceptionGroup("inside", [TimeoutError()])
    assert classify(ExceptionGroup("all", [Transient(), inner])) == Classification(TRANSIENT)
    assert classify(ExceptionGroup("all", asked)) == Classification(RATE_LIMITED, timedelta(seconds=90))
    dated = from_httpx(429, {"Retry-After": "Tue, 01 Jan 2030 00:10:00 GMT"})
    until = datetime(2030, 1, 1, 0, 10, tzinfo=UTC)
    assert classify(ExceptionGroup("all", [*asked, dated])) == Classification(RATE_LIMITED, until)
    assert classify(ExceptionGroup("some", [Fail(), TimeoutError()])) == Classification(RETRYABLE)


class Prickly(Exception):
    @property
    def response(self) -> Any:
        raise RuntimeError("no response was set")

    @property
    def status(self) -> Any:
        raise LookupError


@pytest.mark.parametrize(
    "attributes",
    [
        {"response": None},
        {"code": lambda: 404},
        {"code": True},
        {"code": 404},
        {"status": 503},
        {"status": "404"},
        {"status": 404.0},
        {"code": 1006},
        {"response": {"status_code": 404}},
        {"error_class": "transient"},
        {"sqlstate": 8},
    ],
)
def test_attributes_that_only_look_alike_say_nothing(attributes: dict[str, Any]) -> None:
    error = Mine()
    vars(error).update(attributes)
    assert classify(error) == Classification(RETRYABLE)
    assert classify(Prickly()) == Classification(RETRYABLE)


def test_headers_of_any_kind_do_no_harm() -> None:
    assert classify(ClientResponseError(429, 5)) == Classification(RATE_LIMITED)  # type: ignore[arg-type]
    assert classify(ClientResponseError(429, {"Retry-After": b"5"})) == Classification(RATE_LIMITED)  # type: ignore[dict-item]
    assert classify(ClientResponseError(429, {"retry-after": "5"})).retry_after == timedelta(seconds=5)
    assert classify(ClientResponseError(429, {"retry-after": 5})).retry_after == timedelta(seconds=5)  # type: ignore[dict-item]
    assert classify(ClientResponseError(HTTPStatus.NOT_FOUND, {})) == Classification(NON_RETRYABLE)


@pytest.mark.parametrize(
    ("given", "wait"),
    [
        ("120", timedelta(minutes=2)),
        ("1.5", timedelta(seconds=1.5)),
        ("2m", timedelta(minutes=2)),
        (30, timedelta(seconds=30)),
        (timedelta(hours=3), timedelta(hours=3)),
        (timedelta(days=400), LONGEST_WAIT),
        (-1, None),
        ("Wed, 21 Oct 99999999999 07:28:00 GMT", None),
        ("Wed, 21 Oct 2099 07:28:00 +9999", None),
        (None, None),
    ],
)
@pytest.mark.req("W62")
def test_rate_limited_takes_a_header_as_it_came(given: Any, wait: timedelta | None) -> None:
    assert RateLimited(retry_after=given).retry_after == wait


@given(st.text() | st.integers() | st.floats() | st.timedeltas())
def test_no_wait_from_outside_breaks_the_error_that_carries_it(given: Any) -> None:
    wait = RateLimited(retry_after=given).retry_after
    assert wait is None or isinstance(wait, datetime) or timedelta(0) < wait <= LONGEST_WAIT


class Answered(Exception):
    """An error with the status of an HTTP response."""

    def __init__(self, status: int) -> None:
        self.status_code = status


class Mailed(smtplib.SMTPException):
    def __init__(self, code: int) -> None:
        self.smtp_code = code


@pytest.mark.parametrize(
    ("error", "error_class"),
    [
        (Answered(399), RETRYABLE),
        (Answered(400), NON_RETRYABLE),
        (Answered(499), NON_RETRYABLE),
        (Answered(500), TRANSIENT),
        (Answered(599), TRANSIENT),
        (Answered(600), RETRYABLE),
        (Mailed(399), RETRYABLE),
        (Mailed(400), TRANSIENT),
        (Mailed(499), TRANSIENT),
        (Mailed(500), NON_RETRYABLE),
        (Mailed(599), NON_RETRYABLE),
        (Mailed(600), RETRYABLE),
    ],
)
def test_a_code_counts_within_its_range_alone(error: Exception, error_class: ErrorClass) -> None:
    assert classify(error).error_class is error_class


def test_the_errors_of_a_group_are_listed_once_in_their_order_and_not_without_end() -> None:
    one, two, three = ValueError(1), ValueError(2), ValueError(3)
    group = ExceptionGroup("outer", [one, ExceptionGroup("inner", [two, one]), three])
    assert list(leaves(group)) == [one, two, three]
    assert len(list(leaves(ExceptionGroup("many", [ValueError(n) for n in range(LEAVES + 5)])))) == LEAVES


def test_a_group_names_the_class_that_decided_only_if_it_is_one() -> None:
    def judge(error: BaseException) -> Classification | None:
        return None if isinstance(error, BaseExceptionGroup) else Classification(TRANSIENT, decided_by=type(error))

    alike = ExceptionGroup("alike", [ValueError("a"), ValueError("b")])
    mixed = ExceptionGroup("mixed", [ValueError("a"), KeyError("b")])
    assert classify(alike, judge) == Classification(TRANSIENT, decided_by=ValueError)
    assert classify(mixed, judge) == Classification(TRANSIENT)


def chained(depth: int) -> Exception:
    """An unknown error with so many unknown causes before one that is known."""
    error: Exception = Transient("at the bottom")
    for _ in range(depth):
        outer = RuntimeError("unknown")
        outer.__cause__ = error
        error = outer
    return error


def test_ten_errors_of_a_chain_of_causes_are_looked_at() -> None:
    assert classify(chained(9)).error_class is TRANSIENT
    assert classify(chained(10)).error_class is RETRYABLE


def test_a_busy_or_locked_file_passes_by_itself_and_a_full_disk_does_not() -> None:
    for code, error_class in ((5, TRANSIENT), (6, TRANSIENT), (0x105, TRANSIENT), (13, RETRYABLE)):
        error = sqlite3.Error("of SQLite")
        error.sqlite_errorcode = code
        assert classify(error).error_class is error_class, code
