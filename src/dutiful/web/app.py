"""The admin API, as an application or as a router to include in one."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path

from dutiful.app import Dutiful
from dutiful.core.errors import UsageError
from dutiful.web.admission import Admission
from dutiful.web.api.alerts import alerts
from dutiful.web.api.audit import audit, chain
from dutiful.web.api.breakers import breakers
from dutiful.web.api.dead_letters import bulk, dead_letters
from dutiful.web.api.encryption import encryption, rotation
from dutiful.web.api.events import events
from dutiful.web.api.fleet import fleet
from dutiful.web.api.health import health
from dutiful.web.api.jobs import jobs, queue, stuck, trace
from dutiful.web.api.limits import limits
from dutiful.web.api.metrics import metrics
from dutiful.web.api.queues import queues, statistics
from dutiful.web.api.schedules import schedules
from dutiful.web.api.sent_events import sent_events
from dutiful.web.api.shares import shares
from dutiful.web.api.status import EventsResponse, status
from dutiful.web.api.supervisors import supervisors
from dutiful.web.api.tokens import tokens
from dutiful.web.api.webhooks import webhooks
from dutiful.web.auth import Authenticate, Authentication
from dutiful.web.limits import read_networks
from dutiful.web.operations import Operation, flatten
from dutiful.web.problems import Problem, of_error

PREFIX = "/api/jobs"
# Matched in this order: `/dlq/bulk/` before `/dlq/{dlq_id}/`, `/jobs/stuck/` before `/jobs/{job_id}/`.
OPERATIONS = flatten(
    [
        queue,
        statistics,
        queues,
        bulk,
        dead_letters,
        stuck,
        jobs,
        trace,
        events,
        fleet,
        alerts,
        breakers,
        limits,
        sent_events,
        shares,
        encryption,
        rotation,
        schedules,
        webhooks,
        supervisors,
        chain,
        audit,
        tokens,
        status,
    ]
)
PATTERNS = [(compile_path(operation.path.rstrip("/"))[0], operation.method) for operation in OPERATIONS]
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def router(
    app: Dutiful,
    *,
    prefix: str = PREFIX,
    authenticate: Authenticate | None = None,
    public_status: bool = False,
    trusted_proxies: Sequence[str] = (),
    allowed_origins: Sequence[str] = (),
) -> APIRouter:
    """All operations, to be included in your own FastAPI application.

    `authenticate(request)` returns a Principal for users of your application, and None for others, who may still have
    a token. With `public_status`, a job's status needs nothing but its id. X-Forwarded-For is read only as far as
    `trusted_proxies` have written it. Users of your application may act from its own pages, and from those of
    `allowed_origins`, as in https://admin.example.com.
    """
    check_prefix(prefix)
    admission = Admission(
        app,
        Authentication(authenticate),
        trusted_proxies=read_networks(trusted_proxies),
        allowed_origins=frozenset(allowed_origins),
        public_status=public_status,
    )
    made = APIRouter(
        prefix=prefix,
        route_class=_route_class(admission),
        dependencies=[Security(HTTPBearer(auto_error=False, scheme_name="token"))],
    )
    for operation in OPERATIONS:
        _add(made, operation, prefix)
    if prefix:  # otherwise each host would answer unknown paths in its own way
        made.add_route(f"{prefix}/{{rest:path}}", _unmatched, METHODS, include_in_schema=False)
    return made


def check_prefix(prefix: str) -> None:
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise UsageError(f"prefix {prefix!r} must begin with a slash and not end with one, as in /api/jobs")


def create_app(app: Dutiful, *, open_metrics: bool = False, **options: Any) -> FastAPI:
    """The operations, health checks and /metrics as one application; `options` are those of router().

    `open_metrics`: /metrics needs no token.
    """
    prefix = options.get("prefix", PREFIX)
    check_prefix(prefix)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        # The database may be unavailable at first; /readyz shows when it is ready.
        yield
        await app.close()

    api = FastAPI(
        title="Dutiful",
        summary="Durable background jobs: show them, act on them, review dead letters.",
        version=_version(),
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    api.add_route(f"{prefix}/openapi.json", _describing(api), include_in_schema=False)
    api.include_router(health(app))  # first, because with an empty prefix its paths would match a job's id
    shared = {name: options[name] for name in ("authenticate", "trusted_proxies") if name in options}
    api.include_router(metrics(app, _version(), open_metrics=open_metrics, **shared))
    api.include_router(router(app, **options))
    api.add_exception_handler(HTTPException, _elsewhere)
    return api


def _describing(api: FastAPI) -> Callable[[Request], Awaitable[Response]]:
    """Answers with the description of all operations.

    FastAPI would encode it anew for each request, which takes longer than any operation, and needs no token.
    """
    described = cache(lambda: msgspec.json.encode(api.openapi()))

    async def describe(request: Request) -> Response:
        text, root = described(), request.scope.get("root_path", "").rstrip("/")
        if root:  # another application has mounted this one there
            text = b'{"servers":' + msgspec.json.encode([{"url": root}]) + b"," + text[1:]
        return Response(text, media_type="application/json")

    return describe


def _add(router: APIRouter, operation: Operation, prefix: str) -> None:
    # A host may include the router twice, with different prefixes.
    name_prefix = "" if prefix == PREFIX else "_".join(re.findall(r"\w+", prefix)) + "_"
    other = operation.path.rstrip("/") if operation.path.endswith("/") else f"{operation.path}/"
    for path in (operation.path, other):
        router.add_api_route(
            path,
            operation.endpoint,
            methods=[operation.method],
            tags=[operation.tag],
            status_code=operation.status,
            operation_id=f"{name_prefix.lstrip('_')}{operation.endpoint.__name__}",
            responses=operation.answers,
            include_in_schema=path is operation.path,
            response_class=EventsResponse if operation.stream else JSONResponse,
        )


def _route_class(admission: Admission) -> type[APIRoute]:
    by_endpoint = {operation.endpoint: operation for operation in OPERATIONS}

    class OperationRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            operation = by_endpoint[self.endpoint]

            async def answer(request: Request) -> Response:
                return await admission.answer(operation, handle, request)

            return answer

    return OperationRoute


async def _unmatched(request: Request) -> Response:
    """Answers paths below the prefix that match no operation."""
    path = "/" + request.path_params["rest"].rstrip("/")
    known = {method for pattern, method in PATTERNS if pattern.match(path)}
    if not known:
        return Problem(404, "there is nothing at this path").response(request)
    allow = ", ".join(sorted(known))
    return Problem(405, f"this path allows only: {allow}", headers={"allow": allow}).response(request)


async def _elsewhere(request: Request, error: Exception) -> Response:
    """Answers paths outside the prefix that match no route."""
    return (of_error(error) or Problem(500, "internal error")).response(request)


def _version() -> str:
    from dutiful import __version__

    return __version__
