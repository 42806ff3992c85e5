"""GET /metrics, for Prometheus."""

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
from dutiful.observe.prometheus import OPENMETRICS, TEXT, prefers_openmetrics
from dutiful.operator import Operator
from dutiful.web.admission import Admission
from dutiful.web.auth import Authenticate, Authentication
from dutiful.web.limits import read_networks
from dutiful.web.operations import Operation

# How long one measurement is served, in seconds and in multiples of the time it took: so scrapers, however many, take
# no more than a tenth of the time of the database and of this process.
FRESH, SHARE = 1.0, 9
LONGEST = 15.0
PATIENCE = 8.0  # scrapers wait for ten seconds
SCRAPER = Principal(name="metrics", role=Role.VIEWER, origin=Origin.API)


def metrics(
    app: Dutiful,
    version: str,
    *,
    open_metrics: bool = False,
    authenticate: Authenticate | None = None,
    trusted_proxies: Sequence[str] = (),
) -> APIRouter:
    """Needs a principal without a tenant, or none with `open_metrics`.

    Has an admission of its own, because a public status must not make metrics public.
    """
    authentication = Authentication((lambda _: SCRAPER) if open_metrics else authenticate)
    admission = Admission(app, authentication, trusted_proxies=read_networks(trusted_proxies))
    page = SharedPage(app, version)
    operation = Operation(
        method="GET", path="/metrics", endpoint=page.answer, tag="Metrics", role=Role.VIEWER, fleetwide=True
    )

    async def answer(request: Request) -> Response:
        return await admission.answer(operation, page.answer, request)

    router = APIRouter()
    router.add_route("/metrics", answer, ["GET"], include_in_schema=False)
    return router


class SharedPage:
    """One measurement, which is shared by all requests within a short time."""

    def __init__(self, app: Dutiful, version: str) -> None:
        self._app = app
        self._version = version
        self._measuring: asyncio.Task[prometheus.Page] | None = None
        self._stale_at = 0.0

    async def answer(self, request: Request) -> Response:
        page = await asyncio.shield(self._measurement())  # a client that disconnects must not cancel it for others
        modern = prefers_openmetrics(request.headers.get("accept", ""))
        body, content_type = (page.openmetrics, OPENMETRICS) if modern else (page.text, TEXT)
        return Response(body, media_type=None, headers={"content-type": content_type})

    def _measurement(self) -> "asyncio.Task[prometheus.Page]":
        task = self._measuring
        if task is None or (task.done() and time.monotonic() >= self._stale_at):
            task = self._measuring = asyncio.create_task(self._measure())
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # marks it as retrieved
        return task

    async def _measure(self) -> prometheus.Page:
        began, fresh = time.monotonic(), FRESH
        try:
            async with asyncio.timeout(PATIENCE):
                operator = Operator(await self._app.client(), SCRAPER)
                seen, totals = await operator.metrics.counted()
                # In a thread, because with thousands of kinds it takes a while.
                page = await asyncio.to_thread(prometheus.page, seen, totals, self._version)
                fresh = max(FRESH, min(SHARE * (time.monotonic() - began), LONGEST))
                return page
        except TimeoutError:
            raise StoreUnavailable("measuring the database took too long") from None
        finally:
            self._stale_at = time.monotonic() + fresh
