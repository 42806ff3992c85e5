"""Admits requests to operations: authentication, role, query and body; records refused actions."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from fastapi import Depends
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from dutiful.app import Dutiful
from dutiful.core import ids
from dutiful.core.errors import DutifulError, MalformedId
from dutiful.core.principal import Origin, Principal, Role
from dutiful.core.webhooks.endpoint import Network
from dutiful.operator import Operator
from dutiful.web.auth import CHALLENGE, Authentication, Caller, check_same_site
from dutiful.web.limits import BODY, Failures, Streams, address_of, bucket_of, read_body
from dutiful.web.operations import Operation
from dutiful.web.problems import HEADERS, FieldProblem, Problem, field_problem, of_error

Handle = Callable[[Request], Awaitable[Response]]
log = logging.getLogger("dutiful.web")
DEADLINE = 30.0  # for a whole response, or the start of a stream
_LATE = Problem(
    503,
    f"this took longer than {DEADLINE:g} seconds and was given up; ask for less, or check whether it was done",
    headers={"retry-after": "5"},
)
# Errors before an operation has begun; later ones are audited by the operator.
BEFORE = (Problem, RequestValidationError, HTTPException)


class Admission:
    """Checks every request in the same way."""

    def __init__(
        self,
        app: Dutiful,
        authentication: Authentication,
        *,
        trusted_proxies: tuple[Network, ...] = (),
        allowed_origins: frozenset[str] = frozenset(),
        public_status: bool = False,
    ) -> None:
        self._app = app
        self._authentication = authentication
        self._failures = Failures()
        self._streams = Streams()
        self._origins = allowed_origins
        self._trusted = trusted_proxies
        self._public_status = public_status

    async def answer(self, operation: Operation, handle: Handle, request: Request) -> Response:
        """Turns errors into problems here instead of in the host's handlers, so that every host answers alike."""
        try:
            async with asyncio.timeout(DEADLINE) as deadline:
                response = await self._admit(operation, handle, request)
        except Exception as error:
            problem = _LATE if deadline.expired() else of_error(error)
            if problem is None:
                log.exception("%s %s failed", request.method, request.url.path)
                problem = Problem(500, "internal error; see the server's log")
            response = problem.response(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    async def _admit(self, operation: Operation, handle: Handle, request: Request) -> Response:
        client = await self._app.client()
        address = address_of(request, self._trusted)

        async def authenticate() -> Caller | None:
            return await self._authentication.caller(request, client.store, address)

        caller = await authenticate()
        principal = self._anonymous(operation, address) if caller is None else caller.principal
        operator = Operator(client, principal, self._app.kinds, self._app.alert_rules(), self._app.breaker_policies())
        try:
            _check_role(operation, principal)
            _check_query(operation, request)
            asked = request
            if operation.method != "GET":
                if caller is None or not caller.by_token:
                    check_same_site(request, self._origins)
                asked = await self._with_body(request)
            asked.state.operator = operator
            asked.state.app = self._app
            if not operation.stream:
                return await handle(asked)
            return await self._stream(handle, asked, address, authenticate, caller)
        except BEFORE as error:
            if operation.action is not None:
                await _record(operator, operation, request, error)
            raise

    async def _stream(
        self,
        handle: Handle,
        request: Request,
        address: str,
        authenticate: Callable[[], Awaitable[Caller | None]],
        caller: Caller | None,
    ) -> Response:
        """Starts one of a limited number of streams of that caller, which ends if the caller loses access."""

        async def still_allowed() -> bool:
            return caller is None or await authenticate() == caller

        ended = self._streams.begin(None if caller is None else caller.principal, bucket_of(address))
        request.state.still_allowed = still_allowed
        request.state.ended = ended
        try:
            return await handle(request)
        except BaseException:
            ended()
            raise

    def _anonymous(self, operation: Operation, address: str) -> Principal:
        """The principal of a request without credentials, where a public status is allowed; otherwise 401 or 429."""
        if self._public_status and operation.role is Role.VIEWER:
            return Principal(name="public", role=Role.VIEWER, origin=Origin.API, address=address)
        bucket = bucket_of(address)
        wait = self._failures.wait(bucket)
        if wait:
            headers = {"retry-after": str(int(wait) + 1)}
            raise Problem(429, "too many requests without a valid token came from your address", headers=headers)
        self._failures.add(bucket)
        raise Problem(
            401,
            "give a valid token, as in Authorization: Bearer dtf_…; `dutiful tokens create` makes one",
            headers={"www-authenticate": CHALLENGE},
        )

    async def _with_body(self, request: Request) -> Request:
        """The request with its body read, and checked to be JSON or empty."""
        body = await read_body(request, BODY + self._app.settings.payload_limit)
        if body:
            _check_media_type(request.headers.get("content-type", ""))
            _check_json(body)
        received = False

        async def receive() -> Message:
            nonlocal received
            if received:
                return await request.receive()
            received = True
            return {"type": "http.request", "body": body, "more_body": False}

        return Request(request.scope, receive)


def _check_role(operation: Operation, principal: Principal) -> None:
    """403 for a principal whose role or tenant does not allow the operation."""
    for role, detail in (
        (Role.STAFF, "this is for staff only"),
        (Role.MANAGER, "this needs the role manager or higher"),
        (Role.ADMIN, "this needs the role admin"),
    ):
        if operation.role.reaches(role) and not principal.role.reaches(role):
            raise Problem(403, detail)
    if operation.fleetwide and principal.tenant is not None:
        raise Problem(403, "this is about all tenants, so it is for a principal without one")


def _check_query(operation: Operation, request: Request) -> None:
    for name, repeated in operation.query.items():
        given = len(request.query_params.getlist(name))
        if given > 1 and not repeated:
            raise field_problem(name, f"it is given {given} times: give it once")
    unknown = [name for name in request.query_params if name not in operation.query]
    if unknown:
        known = ", ".join(sorted(operation.query)) or "none"
        problems = [FieldProblem(name[:100], "there is no such parameter") for name in unknown[:10]]
        raise Problem(422, f"there is no parameter {unknown[0][:100]!r}; there are: {known}", problems)


def _check_media_type(given: str) -> None:
    if given.partition(";")[0].strip().lower() != "application/json":
        raise Problem(
            415, "send JSON, with the header Content-Type: application/json", headers={"accept": "application/json"}
        )


def _check_json(body: bytes) -> None:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(400, f"the body is not JSON: {error}") from None
    except RecursionError:
        raise Problem(400, "the body is nested too deeply") from None


async def _record(operator: Operator, operation: Operation, request: Request, error: Exception) -> None:
    problem = of_error(error)
    try:
        await operator.actor.refuse(
            operation.action_on(request.path_params),
            _target(operation, request),
            problem.detail if problem else str(error),
        )
    except DutifulError as failure:
        log.error("%s was refused, but that could not be recorded: %s", operation.action, failure)


def _target(operation: Operation, request: Request) -> str | None:
    """The target as the operator names it; None for what is no id, because it may be a secret."""
    given = request.path_params.get(operation.target) if operation.target else None
    if given is None or operation.target == "name":
        return given
    try:
        found = ids.parse_any(str(given))
    except MalformedId:
        return None
    return str(found) if operation.target == "post_id" else ids.public(found)


def _operator(request: Request) -> Operator:
    operator: Operator = request.state.operator
    return operator


def _app(request: Request) -> Dutiful:
    app: Dutiful = request.state.app
    return app


OperatorDep = Annotated[Operator, Depends(_operator)]
AppDep = Annotated[Dutiful, Depends(_app)]
