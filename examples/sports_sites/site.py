"""The register's web application: somebody edits a site, and sees what follows from it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import httpx2
import msgspec
from fastapi import HTTPException, Response
from fastapi import Path as InPath
from pydantic import Field
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import FileResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from dutiful import Dutiful, State
from examples.bodies import Body, Line, new_api
from examples.guarding import Guarded
from examples.sports_sites.config import Config
from examples.sports_sites.jobs import Jobs
from examples.sports_sites.mail import ADDRESS
from examples.sports_sites.sites import NoSuchSite, Sites

HERE = Path(__file__).parent
EDITS = 5  # shown
FOLLOWS = ("integration", "analysis", "elevation")  # of every edit, and a mail to the editor
PATIENT = 100  # attempts of them: while a service is away, each probe of its breaker is one
Json = dict[str, Any]


class Edit(Body):
    name: Line = Field(max_length=80)
    type: Line = Field(max_length=40)
    east: int = Field(ge=0, le=800_000)
    north: int = Field(ge=6_500_000, le=7_800_000)
    editor: str = Field(pattern=ADDRESS, max_length=60)


class Switch(Body):
    failing: bool


def sports_site(app: Dutiful, config: Config) -> ASGIApp:
    sites, jobs = Sites(config.folder), Jobs(app, "register")
    api = new_api(docs_url=None, redoc_url=None, openapi_url=None)

    @api.get("/api/sites")
    def listed() -> list[Json]:
        return [asdict(site) for site in sites.all()]

    @api.put("/api/sites/{lipas_id}", status_code=202)
    async def edit(lipas_id: int, asked: Edit) -> Json:
        """Stores the change, and enqueues what follows from it under one correlation id."""
        try:
            site = sites.change(lipas_id, asked.name, asked.type, asked.east, asked.north)
        except NoSuchSite as error:
            raise HTTPException(404, str(error)) from error
        action = f"edit-{lipas_id}-{app.new_id()}"
        for kind in FOLLOWS:
            await jobs.enqueue(kind, {"lipas-id": lipas_id}, correlation_id=action, max_attempts=PATIENT)
        mail = {"to": asked.editor, "template": "site-changed", "data": {"site": site.name}}
        await jobs.enqueue("email", mail, correlation_id=action, max_attempts=PATIENT)
        return {"correlation_id": action}

    @api.get("/api/edits")
    async def edits() -> Response:
        """The jobs of the latest edits, as trees, the newest edit first."""
        latest = await app.jobs(kind="integration", limit=50)
        edited = {
            job.correlation_id: job.payload["lipas-id"] for job in latest if job.correlation_id.startswith("edit-")
        }
        operator = await app.operator("register")
        trees = [await operator.trace.find(action) for action in list(edited)[:EDITS]]
        return _json(
            [
                {
                    "site": edited[tree.correlation_id],
                    "at": tree.members[0].created_at,
                    "jobs": [_shown(member) for member in tree.tree()],
                }
                for tree in trees
                if tree.members
            ]
        )

    @api.get("/api/outside")
    async def outside() -> Response:
        """The services outside, with the breakers that protect the register from them, and the mails they got."""
        operator = await app.operator("register")
        breakers = [
            {
                "name": one.breaker.name,
                "state": one.breaker.state,
                "failures": one.breaker.failures,
                "waiting": one.waiting,
            }
            for one in await operator.breakers.all()
        ]
        async with httpx2.AsyncClient(timeout=5) as http:
            try:
                world: Json = (await http.get(f"{config.services}/")).json()
            except httpx2.HTTPError:
                world = {"failing": {}, "mails": []}
        return _json({"breakers": breakers, **world})

    @api.put("/api/outside/{service}", status_code=204)
    async def switch(service: Annotated[str, InPath(pattern=r"^[a-z-]{1,40}$")], asked: Switch) -> None:
        """Breaks a service, or repairs it."""
        async with httpx2.AsyncClient(timeout=5) as http:
            try:
                answer = await http.put(f"{config.services}/switch/{service}", json={"failing": asked.failing})
            except httpx2.HTTPError as error:
                raise HTTPException(503, f"nothing answers at {config.services}; start it with --world") from error
        if answer.status_code != 204:
            raise HTTPException(answer.status_code, f"there is no service {service} to switch")

    api.routes.append(Route("/", FileResponse(HERE / "page.html")))
    api.routes.append(Route("/shared.css", FileResponse(HERE.parent / "page.css")))
    for file in ("page.css", "page.js", "icon.svg"):
        api.routes.append(Route(f"/{file}", FileResponse(HERE / file)))
    return TrustedHostMiddleware(Guarded(api), ["127.0.0.1", "localhost"])


def _shown(job: Any) -> Json:
    """A job in the register's terms, as its views have them."""
    return {
        "id": job.id,
        "type": job.kind,
        "status": _status(job),
        "depth": job.depth,
        "attempts": job.attempt,
        "max_attempts": job.max_attempts,
        "waits_for": job.gate,
        "error": (job.error or {}).get("message"),
    }


def _status(job: Any) -> str:
    match job.state:
        case State.RUNNING:
            return "processing"
        case State.FAILED:
            return "dead"
        case State.COMPLETED | State.COMPLETED_WITH_ERRORS | State.CANCELLED:
            return str(job.state)
        case _ if job.error is not None:
            return "failed"  # and will be tried again
        case _:
            return "pending"


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
