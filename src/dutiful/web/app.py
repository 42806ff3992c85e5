"""The admin API as an application of its own, or as a part of yours."""

import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path

from dutiful.app import Dutiful
from dutiful.core.errors import UsageError
from dutiful.web.api.alerts import alerts
from dutiful.web.api.audit import audit, chain
from dutiful.web.api.breakers import breakers
from dutiful.web.api.bulk import bulk
from dutiful.web.api.dlq import dlq
from dutiful.web.api.draining import draining
from dutiful.web.api.enqueue import enqueueing
from dutiful.web.api.events import events
from dutiful.web.api.fleet import fleet, queues
from dutiful.web.api.health import health
from dutiful.web.api.jobs import jobs
from dutiful.web.api.queue import queue
from dutiful.web.api.schedules import schedules
from dutiful.web.api.status import EventsResponse, status
from dutiful.web.api.stuck import stuck
from dutiful.web.api.tokens import tokens
from dutiful.web.api.trace import tracing
from dutiful.web.api.webhooks import webhooks
from dutiful.web.auth import Authenticate, Authentication
from dutiful.web.gates import Gates
from dutiful.web.limits import read_networks
from dutiful.web.metrics import metrics
from dutiful.web.operations import Operation, every
from dutiful.web.problems import Problem, of_error

PREFIX = "/api/jobs"
# In this order they are tried: `/dlq/bulk/` before `/dlq/{dlq_id}/`, `/jobs/stuck/` before `/jobs/{job_id}/`.
OPERATIONS = every(
    [
        queue,
        queues,
        bulk,
        dlq,
        enqueueing,
        stuck,
        jobs,
        tracing,
        events,
        fleet,
        draining,
        alerts,
        breakers,
        schedules,
        webhooks,
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

    `authenticate(request)` returns a Principal for those whom your application knows, and None for others; they may
    still have a token. With `public_status`, whoever knows a job's id may see how it fares. Addresses are read from
    X-Forwarded-For only as far as `trusted_proxies` have written it. Users of your application may act from its own
    pages, and from those of `allowed_origins`, as in https://admin.example.com.
    """
    check_prefix(prefix)
    gates = Gates(
        app,
        Authentication(authenticate),
        trusted_proxies=read_networks(trusted_proxies),
        allowed_origins=frozenset(allowed_origins),
        public_status=public_status,
    )
    made = APIRouter(
        prefix=prefix,
        route_class=_route_class(gates),
        dependencies=[Security(HTTPBearer(auto_error=False, scheme_name="token"))],
    )
    for operation in OPERATIONS:
        _add(made, operation, prefix)
    if prefix:  # all else below it, which would be answered in other ways by each host
        made.add_route(f"{prefix}/{{rest:path}}", _nothing, METHODS, include_in_schema=False)
    return made


def check_prefix(prefix: str) -> None:
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise UsageError(f"prefix {prefix!r} must begin with a slash and not end with one, as in /api/jobs")


def create_app(app: Dutiful, *, open_metrics: bool = False, **options: Any) -> FastAPI:
    """The operations, the health checks and /metrics as one application; `options` are those of router().

    `open_metrics`: whoever can reach /metrics may read it, without a token.
    """
    prefix = options.get("prefix", PREFIX)
    check_prefix(prefix)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        # The database need not be there yet: /readyz says when it is.
        yield
        await app.close()

    api = FastAPI(
        title="Dutiful",
        summary="Durable background jobs: look at them, act on them, review those that failed for good.",
        version=_version(),
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{prefix}/openapi.json",
        redirect_slashes=False,
    )
    api.include_router(health(app))  # first, for with an empty prefix their names could be a job's id
    shared = {name: options[name] for name in ("authenticate", "trusted_proxies") if name in options}
    api.include_router(metrics(app, _version(), open_metrics=open_metrics, **shared))
    api.include_router(router(app, **options))
    api.add_exception_handler(HTTPException, _elsewhere)
    return api


def _add(router: APIRouter, operation: Operation, prefix: str) -> None:
    # A host may include us twice, each with a prefix of its own.
    place = "" if prefix == PREFIX else "_".join(re.findall(r"\w+", prefix)) + "_"
    other = operation.path.rstrip("/") if operation.path.endswith("/") else f"{operation.path}/"
    for path in (operation.path, other):
        router.add_api_route(
            path,
            operation.endpoint,
            methods=[operation.method],
            tags=[operation.tag],
            status_code=operation.status,
            operation_id=f"{place.lstrip('_')}{operation.endpoint.__name__}",
            responses=operation.answers,
            include_in_schema=path is operation.path,
            response_class=EventsResponse if operation.stream else JSONResponse,
        )


def _route_class(gates: Gates) -> type[APIRoute]:
    by_endpoint = {operation.endpoint: operation for operation in OPERATIONS}

    class GatedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()
            operation = by_endpoint[self.endpoint]

            async def answer(request: Request) -> Response:
                return await gates.answer(operation, handle, request)

            return answer

    return GatedRoute


async def _nothing(request: Request) -> Response:
    """What answers below the prefix where no operation does."""
    path = "/" + request.path_params["rest"].rstrip("/")
    known = {method for pattern, method in PATTERNS if pattern.match(path)}
    if not known:
        return Problem(404, "there is nothing at this address").response(request)
    allow = ", ".join(sorted(known))
    return Problem(405, f"this address knows only: {allow}", headers={"allow": allow}).response(request)


async def _elsewhere(request: Request, error: Exception) -> Response:
    """What no operation answers: an address that there is not, a method that it does not know."""
    return (of_error(error) or Problem(500, "something went wrong here")).response(request)


def _version() -> str:
    from dutiful import __version__

    return __version__
