"""What went wrong, as every endpoint tells it: problem details (RFC 9457)."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dutiful.core.errors import (
    BulkRunNotFound,
    DataRefused,
    DeadLetterNotFound,
    DutifulError,
    IllegalTransition,
    JobNotFound,
    NotAllowed,
    SchemaMismatch,
    StoreUnavailable,
    UniqueConflict,
    UsageError,
)

MEDIA_TYPE = "application/problem+json"
LONGEST = 2_000
# What holds of every answer: it is for whoever asked, now, and it is what it says it is.
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
        "errors": {
            "type": "array",
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
    """An answer that is not the one asked for; `detail` says what to do about it."""

    def __init__(
        self,
        status: int,
        detail: str,
        errors: Sequence[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail if len(detail) <= LONGEST else f"{detail[:LONGEST]}…"
        self.errors = tuple(errors)
        self.headers = dict(headers or {})

    def response(self, request: Request) -> Response:
        told: dict[str, Any] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "instance": request.url.path,
        }
        if self.errors:
            told["errors"] = self.errors
        body = msgspec.json.encode(told)
        return Response(body, self.status, media_type=MEDIA_TYPE, headers={**HEADERS, **self.headers})


def field_problem(field: str, problem: str, status: int = 422) -> Problem:
    """One field is wrong."""
    return Problem(status, f"{field}: {problem}", [FieldProblem(field, problem)])


def of_error(error: Exception) -> Problem | None:
    """The problem that an error of ours, or of the framework, is; None if nobody expected it."""
    match error:
        case Problem():
            return error
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            return Problem(error.status_code, _http_detail(error), headers=error.headers)
        case DutifulError():
            return _of_ours(error)
        case _:
            return None


def _of_ours(error: DutifulError) -> Problem:
    told = str(error)
    match error:
        case JobNotFound() | DeadLetterNotFound() | BulkRunNotFound():
            return Problem(404, told)
        case NotAllowed():
            return Problem(403, told)
        case IllegalTransition() | UniqueConflict():
            return Problem(409, told)
        case UsageError():
            return Problem(422, told, _fields(error))
        case DataRefused():
            return Problem(422, "the database refuses this input; mend it, for it would refuse it again")
        case StoreUnavailable():
            return Problem(503, "the database does not answer; try again", headers={"retry-after": "2"})
        case SchemaMismatch():
            return Problem(503, "the database is not migrated to this release", headers={"retry-after": "30"})
        case _:
            return Problem(409, told)


def _fields(error: UsageError) -> list[FieldProblem]:
    """What is wrong with each field, if the error knows."""
    listed = getattr(error, "errors", None)
    if listed:
        return [FieldProblem(str(one.field), str(one.problem)) for one in listed]
    field = getattr(error, "field", None)
    return [FieldProblem(str(field), str(error))] if field else []


def _invalid(error: RequestValidationError) -> Problem:
    """Which fields are wrong and how; what they held is not repeated, for it may be a secret."""
    found = [FieldProblem(_path(one["loc"]), _sentence(one)) for one in error.errors()]
    return Problem(422, "; ".join(f"{one.field}: {one.problem}" for one in found[:10]), found[:50])


def _path(where: Sequence[Any]) -> str:
    """`("body", "filter", "since")` as a person would say it."""
    return ".".join(str(part) for part in where[1:]) or str(where[0])


def _sentence(told: Mapping[str, Any]) -> str:
    if told["type"] == "extra_forbidden":
        return "there is no such field"
    message = str(told["msg"]).removeprefix("Value error, ")
    return f"it {message[6:]}" if message.startswith("Input ") else message


def _http_detail(error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return "there is nothing at this address"
        case 405:
            return "this address does not know that method"
        case 400:
            return "the body cannot be read as JSON"
        case _:
            return str(error.detail)


def declared(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How an endpoint's problems stand in its OpenAPI description."""
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": SCHEMA}}}
        for status in statuses
    }
