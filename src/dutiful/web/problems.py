"""Errors as problem details (RFC 9457)."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dutiful.core import ids
from dutiful.core.errors import (
    BulkRunNotFound,
    DataRefused,
    DeadLetterNotFound,
    DutifulError,
    IllegalTransition,
    JobNotFound,
    KeysMissing,
    NotAllowed,
    PostNotFound,
    SchemaMismatch,
    StoreUnavailable,
    UniqueConflict,
    UsageError,
)
from dutiful.core.redaction.redact import redact

MEDIA_TYPE = "application/problem+json"
LONGEST = 2_000
MOST_ERRORS = 20
LONGEST_NAME = 200
WHOLE = "request"  # the field of an error that concerns no single field
# Of every response: it must not be cached, and its media type must not be guessed.
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance"],
    "properties": {
        "type": {"type": "string", "example": "about:blank"},
        "title": {"type": "string", "example": "Unprocessable Entity"},
        "status": {"type": "integer", "example": 422},
        "detail": {"type": "string", "example": "limit: it should be less than or equal to 200"},
        "instance": {"type": "string", "example": "/api/jobs/admin/dlq/"},
        "job_id": {"type": "string", "description": "The job that holds the unique key, with 409."},
        "errors": {
            "type": "array",
            "description": "What is wrong with each field, with 422.",
            "items": {
                "type": "object",
                "required": ["field", "problem"],
                "properties": {"field": {"type": "string"}, "problem": {"type": "string"}},
            },
        },
    },
}


class FieldProblem(msgspec.Struct, frozen=True):
    field: str
    problem: str


class Problem(Exception):
    """An error response; `detail` says what to do about it."""

    def __init__(
        self,
        status: int,
        detail: str,
        errors: Sequence[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = _cut(detail)
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.more = dict(more or {})

    def response(self, request: Request) -> Response:
        content: dict[str, Any] = {
            "type": "about:blank",
            "title": _title(self.status),
            "status": self.status,
            "detail": self.detail,
            "instance": redact(request.url.path),  # a secret may have been pasted into it
            **self.more,
        }
        if self.errors:
            content["errors"] = self.errors
        body = msgspec.json.encode(content)
        return Response(body, self.status, media_type=MEDIA_TYPE, headers={**HEADERS, **self.headers})


def _title(status: int) -> str:
    """The standard title; a host may use statuses without one."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Problem"


def _cut(text: object, longest: int = LONGEST) -> str:
    text = str(text)
    return text if len(text) <= longest else f"{text[:longest]}…"


def field_problem(field: str, problem: str, status: int = 422) -> Problem:
    """One field is wrong."""
    return Problem(status, f"{field}: {problem}", [FieldProblem(field, problem)])


def of_error(error: Exception) -> Problem | None:
    """The problem of a known error, ours or the framework's; None if it is unexpected."""
    match error:
        case Problem():
            return error
        case RequestValidationError():
            return _invalid(error)
        case HTTPException() if 300 <= error.status_code <= 599:
            return Problem(error.status_code, _http_detail(error), headers=error.headers)
        case DutifulError():
            return _of_ours(error)
        case _:
            return None


def _of_ours(error: DutifulError) -> Problem:
    message = str(error)
    match error:
        case JobNotFound() | DeadLetterNotFound() | BulkRunNotFound() | PostNotFound():
            return Problem(404, message)
        case NotAllowed():
            return Problem(403, message)
        case UniqueConflict():
            return Problem(409, message, more={"job_id": ids.public(error.existing)})
        case IllegalTransition() | KeysMissing():  # of a server: the request is right
            return Problem(409, message)
        case UsageError():
            return Problem(422, message, _fields(error))
        case DataRefused():
            refusal = "the database refuses this input; change it before you try again"
            return Problem(422, refusal, [FieldProblem(WHOLE, refusal)])
        case StoreUnavailable():
            return Problem(503, "the database does not answer; try again", headers={"retry-after": "2"})
        case SchemaMismatch():
            return Problem(503, "the database is not migrated to this release", headers={"retry-after": "30"})
        case _:
            return Problem(409, message)


def _fields(error: UsageError) -> list[FieldProblem]:
    """The problems by field, if the error knows them."""
    listed = getattr(error, "errors", None)
    if listed:
        return _bounded([FieldProblem(_cut(one.field, LONGEST_NAME), _cut(one.problem)) for one in listed])
    field = getattr(error, "field", None)
    return [FieldProblem(_cut(field or WHOLE, LONGEST_NAME), _cut(error))]


def _invalid(error: RequestValidationError) -> Problem:
    """The invalid fields; their values are not repeated, because they may be secrets."""
    found = _bounded([FieldProblem(_path(one["loc"]), _sentence(one)) for one in error.errors()])
    return Problem(422, "; ".join(f"{one.field}: {one.problem}" for one in found), found)


def _bounded(found: list[FieldProblem]) -> list[FieldProblem]:
    """The first errors, and how many more there are."""
    if len(found) <= MOST_ERRORS + 1:
        return found
    return [*found[:MOST_ERRORS], FieldProblem(WHOLE, f"and {len(found) - MOST_ERRORS:,} more")]


def _path(where: Sequence[Any]) -> str:
    """`("body", "filter", "since")` as `filter.since`."""
    return _cut(".".join(_cut(part, LONGEST_NAME) for part in where[1:]) or where[0], LONGEST_NAME)


def _sentence(detail: Mapping[str, Any]) -> str:
    """Rephrases a message of the validation library."""
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "missing":
        return "it is missing"
    if detail["type"] in ("dict_type", "model_type", "model_attributes_type"):
        return "it should be a JSON object"
    return f"it {should[1]}" if (should := _SHOULD.match(message)) else message


_SHOULD = re.compile(r"[A-Z]\w* (should .*)", re.DOTALL)


def _http_detail(error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return "there is nothing at this path"
        case 405:
            return "this path does not allow that method"
        case 400:
            return "the body cannot be read as JSON"
        case _:
            return str(error.detail)


def declared(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of an endpoint's problems."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": SCHEMA, "example": _example(status)}},
        }
        for status in statuses
    }


_DETAILS = {
    400: "the body is not JSON: JSON is malformed: trailing characters (byte 5)",
    401: "give a valid token, as in Authorization: Bearer dtf_…; `dutiful tokens create` makes one",
    403: "this needs the role manager or higher",
    404: "there is no job 01JCPZ5-…: it never existed, or retention has deleted it",
    408: "the body did not come within 10 seconds",
    409: "dead letter 01JCPZ5-… is discarded, so it cannot be reprocessed",
    413: "the body has more than 1,310,720 bytes; send less",
    415: "send JSON, with the header Content-Type: application/json",
    422: "limit: it should be less than or equal to 200",
    429: "too many requests without a valid token came from your address",
    503: "the database does not answer; try again",
}


def _example(status: int) -> dict[str, Any]:
    example = {"type": "about:blank", "title": _title(status), "status": status, "detail": _DETAILS[status]}
    example["instance"] = "/api/jobs/admin/dlq/"
    if status == 422:
        example["errors"] = [{"field": "limit", "problem": "it should be less than or equal to 200"}]
    return example
