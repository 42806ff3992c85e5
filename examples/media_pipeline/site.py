"""The service's web site: a page that shows every job live."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
from fastapi import HTTPException, Response
from pydantic import Field
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import FileResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from dutiful import JobNotFound
from dutiful.web import EventsEndpoint, Subscription
from examples.bodies import Body, new_api
from examples.guarding import Guarded
from examples.media_pipeline.queue import JobQueue
from examples.media_pipeline.service import order

HERE = Path(__file__).parent


class Order(Body):
    """A request for a job: a file by its name, perhaps later."""

    file: str
    delay: float = Field(default=0, ge=0, le=3_600)  # seconds


def site(queue: JobQueue, origin: str, files: Sequence[str]) -> ASGIApp:
    """Accepts names of files, not URLs, because a server must not fetch arbitrary URLs."""
    api = new_api(docs_url=None, redoc_url=None, openapi_url=None)

    @api.get("/jobs")
    async def jobs() -> Response:
        """All jobs, and a time from which events show what is newer."""
        now = datetime.now(UTC)
        return _json({"at": now, "files": files, "jobs": await queue.jobs()})

    @api.post("/jobs")
    async def enqueue(wanted: Order) -> Response:
        if wanted.file not in files:
            raise HTTPException(422, f"there is no file {wanted.file!r}; there are: {', '.join(files)}")
        at = datetime.now(UTC) + timedelta(seconds=wanted.delay) if wanted.delay else None
        data = order(origin, wanted.file, f"{Path(wanted.file).stem}-{uuid4().hex[:8]}")
        return _json({"id": await queue.enqueue(data, scheduled_at=at)}, 201)

    @api.get("/jobs/{job_id}")
    async def job(job_id: UUID) -> Response:
        found = await queue.get(str(job_id))
        if found is None:
            raise HTTPException(404, "there is no such job: it never existed, or retention has deleted it")
        return _json(found)

    @api.post("/jobs/{job_id}/cancel")
    async def cancel(job_id: UUID) -> Response:
        try:
            if await queue.cancel(str(job_id)):
                return _json({"id": str(job_id)}, 202)
        except JobNotFound as error:
            raise HTTPException(404, str(error)) from error
        raise HTTPException(409, "it had ended already")

    ours = Subscription(kinds=frozenset({queue.config.name}))
    endpoint = EventsEndpoint(queue.app, allow=lambda scope: ours, ping=queue.config.ping.total_seconds())
    api.routes.append(Route("/events", endpoint))
    api.routes.append(Route("/", FileResponse(HERE / "page.html")))
    for file in ("page.css", "page.js", "icon.svg"):
        api.routes.append(Route(f"/{file}", FileResponse(HERE / file)))
    return TrustedHostMiddleware(Guarded(api, pictures=origin), ["127.0.0.1", "localhost"])


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
