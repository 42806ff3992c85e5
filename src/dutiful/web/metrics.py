"""GET /metrics: how the fleet fares, for Prometheus."""

import asyncio
import time
from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dutiful.app import Dutiful
from dutiful.core.errors import StoreUnavailable
from dutiful.core.principal import Origin, Principal, Role
from dutiful.observe import prometheus
from dutiful.observe.exposition import OPENMETRICS, TEXT, prefers_openmetrics
from dutiful.operator import Operator
from dutiful.web.auth import Authenticate, Authentication
from dutiful.web.gates import Gates
from dutiful.web.limits import read_networks
from dutiful.web.operations import Operation

# How long a measurement serves all who ask, in seconds, and in times of what it took: however many ask, and whoever
# they are where no token is needed, they take no more than a tenth of the database's and of our time.
FRESH, SHARE = 1.0, 9
LONGEST = 15.0
PATIENCE = 8.0  # scrapers wait for ten seconds
ANYBODY = Principal(name="metrics", role=Role.VIEWER, origin=Origin.API)


def metrics(
    app: Dutiful,
    version: str,
    *,
    open_metrics: bool = False,
    authenticate: Authenticate | None = None,
    trusted_proxies: Sequence[str] = (),
) -> APIRouter:
    """For anybody who is not of one tenant; `open_metrics`: for whoever comes, without a token.

    It has gates of its own, for those who may see a job's status without a token are not to see this.
    """
    who = Authentication((lambda _: ANYBODY) if open_metrics else authenticate)
    gates = Gates(app, who, trusted_proxies=read_networks(trusted_proxies))
    page = Shared(app, version)
    operation = Operation(
        method="GET", path="/metrics", endpoint=page.answer, tag="Metrics", role=Role.VIEWER, fleetwide=True
    )

    async def answer(request: Request) -> Response:
        return await gates.answer(operation, page.answer, request)

    router = APIRouter()
    router.add_route("/metrics", answer, ["GET"], include_in_schema=False)
    return router


class Shared:
    """Those who ask at the same time, or a moment later, share one measurement, and the page that tells of it."""

    def __init__(self, app: Dutiful, version: str) -> None:
        self._app = app
        self._version = version
        self._measuring: asyncio.Task[prometheus.Page] | None = None
        self._stale_at = 0.0

    async def answer(self, request: Request) -> Response:
        page = await asyncio.shield(self._measurement())  # for whoever goes away does not ask for all
        modern = prefers_openmetrics(request.headers.get("accept", ""))
        body, content_type = (page.openmetrics, OPENMETRICS) if modern else (page.text, TEXT)
        return Response(body, media_type=None, headers={"content-type": content_type})

    def _measurement(self) -> "asyncio.Task[prometheus.Page]":
        task = self._measuring
        if task is None or (task.done() and time.monotonic() >= self._stale_at):
            task = self._measuring = asyncio.create_task(self._measure())
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # somebody has seen it
        return task

    async def _measure(self) -> prometheus.Page:
        began, fresh = time.monotonic(), FRESH
        try:
            async with asyncio.timeout(PATIENCE):
                operator = Operator(await self._app.client(), ANYBODY)
                seen, totals = await operator.counted()
                # Of thousands of kinds it takes a while, and the event loop has others to serve.
                page = await asyncio.to_thread(prometheus.page, seen, totals, self._version)
                fresh = max(FRESH, min(SHARE * (time.monotonic() - began), LONGEST))
                return page
        except TimeoutError:
            raise StoreUnavailable("the database took too long to be measured") from None
        finally:
            self._stale_at = time.monotonic() + fresh
