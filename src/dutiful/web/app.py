"""The admin API as an application of its own, or as a part of yours."""

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dutiful.app import Dutiful
from dutiful.web.api.audit import audit, chain
from dutiful.web.api.bulk import bulk
from dutiful.web.api.dlq import dlq
from dutiful.web.api.events import events
from dutiful.web.api.fleet import fleet, queues
from dutiful.web.api.health import health
from dutiful.web.api.jobs import jobs
from dutiful.web.api.queue import queue
from dutiful.web.api.schedules import schedules
from dutiful.web.api.status import EventsResponse, status
from dutiful.web.api.tokens import tokens
from dutiful.web.api.webhooks import webhooks
from dutiful.web.auth import Authenticate, Authentication
from dutiful.web.gates import Gates
from dutiful.web.limits import read_networks
from dutiful.web.operations import Operation, every
from dutiful.web.problems import Problem, of_error

PREFIX = "/api/jobs"
# In this order they are tried, so `/dlq/bulk/` comes before `/dlq/{dlq_id}/`.
OPERATIONS = every([queue, queues, bulk, dlq, jobs, events, fleet, schedules, webhooks, chain, audit, tokens, status])


def router(
    app: Dutiful,
    *,
    prefix: str = PREFIX,
    authenticate: Authenticate | None = None,
    public_status: bool = False,
    trusted_proxies: Sequence[str] = (),
) -> APIRouter:
    """All operations, to be included in your own FastAPI application.

    `authenticate(request)` returns a Principal for those whom your application knows, and None for others; they may
    still have a token. With `public_status`, whoever knows a job's id may see how it fares. Addresses are read from
    X-Forwarded-For only as far as `trusted_proxies` have written it.
    """
    gates = Gates(
        app,
        Authentication(authenticate),
        trusted_proxies=read_networks(trusted_proxies),
        public_status=public_status,
    )
    made = APIRouter(
        prefix=prefix,
        route_class=_route_class(gates),
        dependencies=[Security(HTTPBearer(auto_error=False, scheme_name="token"))],
    )
    for operation in OPERATIONS:
        _add(made, operation)
    return made


def create_app(app: Dutiful, **options: Any) -> FastAPI:
    """The operations and the health checks as one application; `options` are those of router()."""

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
        openapi_url=f"{options.get('prefix', PREFIX)}/openapi.json",
        redirect_slashes=False,
    )
    api.include_router(router(app, **options))
    api.include_router(health(app))
    api.add_exception_handler(HTTPException, _elsewhere)
    return api


def _add(router: APIRouter, operation: Operation) -> None:
    other = operation.path.rstrip("/") if operation.path.endswith("/") else f"{operation.path}/"
    for path in (operation.path, other):
        router.add_api_route(
            path,
            operation.endpoint,
            methods=[operation.method],
            tags=[operation.tag],
            status_code=operation.status,
            operation_id=operation.endpoint.__name__,
            responses=operation.problems,
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


async def _elsewhere(request: Request, error: Exception) -> Response:
    """What no operation answers: an address that there is not, a method that it does not know."""
    return (of_error(error) or Problem(500, "something went wrong here")).response(request)


def _version() -> str:
    from dutiful import __version__

    return __version__
