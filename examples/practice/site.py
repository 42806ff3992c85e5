"""The platform's web site: a person of a firm signs in, sees mail come in, and reviews dead letters.

The admin API is Dutiful's own, with the site's sign-in in front of it. Three of its answers are in the platform's
terms: jobs listed and counted by status (`pending`, `processing`), and audit events by names such as
`job_dlq_reprocess_success`.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import httpx2
from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import Field
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from dutiful import DeadLetter, Dutiful, MalformedId, ReviewState, Role
from dutiful.web import create_app
from examples.bodies import Body, Line, new_api
from examples.guarding import Guarded
from examples.practice.audit_names import audit_name
from examples.practice.firms import Firm, Firms
from examples.practice.ingestion import maildir
from examples.practice.payload_validator import PayloadValidator
from examples.practice.platform import Addresses
from examples.practice.queue import JobQueue
from examples.practice.record import Status, states_of, status_of
from examples.practice.sample_data import POISON, raw_mail
from examples.practice.users import COOKIE, Sessions, User

HERE = Path(__file__).parent
ADMIN = "/api/jobs/admin"
REPAIRABLE = "email_ingestion_parse"
OPEN = (ReviewState.PENDING_REVIEW, ReviewState.ACKNOWLEDGED)
Json = dict[str, Any]


class SignIn(Body):
    name: str = Field(max_length=100)
    password: str = Field(max_length=200)


class Letter(Body):
    """A message from a client of the firm."""

    sender: str = Field(pattern=r"^[^@\s<>\p{Cc}]{1,60}@[^@\s<>\p{Cc}]{1,60}$")
    subject: Line = Field(max_length=100)
    damaged: bool = False  # as it arrives when a mail program has lost its head


def practice_site(app: Dutiful, firms: Firms, addresses: Addresses) -> ASGIApp:
    sessions = Sessions(firms)
    api = new_api(docs_url=None, redoc_url=None, openapi_url=None)

    def mailbox(firm: Firm) -> int:
        connected = firm.one("connections")
        if connected is None:
            raise HTTPException(409, "the firm has no mailbox any more")
        return int(connected["id"])

    def signed_in(request: Request) -> User:
        user = sessions.user(request)
        if user is None:
            raise HTTPException(401, "sign in first")
        return user

    async def reviewed(user: User, dlq_id: str) -> DeadLetter:
        try:
            found = await app.tenant(str(user.firm_id)).dead_letter(dlq_id)
        except MalformedId as error:
            raise HTTPException(422, f"dlq_id: {error}") from error
        if found is None or found.kind != REPAIRABLE:
            raise HTTPException(404, "the firm has no dead letter of a message by this id")
        return found

    @api.post("/session")
    def sign_in(asked: SignIn) -> Response:
        secret = sessions.sign_in(asked.name, asked.password)
        if secret is None:
            raise HTTPException(401, "there is no such name, or the password is another one")
        answer = Response(status_code=204)
        answer.set_cookie(COOKIE, secret, httponly=True, samesite="strict")
        return answer

    @api.get("/session")
    def who(request: Request) -> Json | None:
        user = sessions.user(request)
        return None if user is None else {"name": user.name, "firm": user.firm_id, "role": user.role}

    @api.delete("/session", status_code=204)
    def sign_out(request: Request) -> None:
        sessions.sign_out(request)

    @api.get("/mail")
    def mail(request: Request) -> list[Json]:
        return firms.firm(signed_in(request).firm_id).all("messages")

    @api.post("/mail", status_code=201)
    async def receive(request: Request, letter: Letter) -> Json:
        """A client writes: the message waits on the mail server, and a job fetches it."""
        user, name = signed_in(request), f"msg_{app.new_id().hex[:16]}"  # in order of time
        connection = mailbox(firms.firm(user.firm_id))
        raw = POISON if letter.damaged else raw_mail(letter.sender, letter.subject)
        async with httpx2.AsyncClient(timeout=10) as http:
            (await http.put(f"{addresses.mail}/{connection}/{name}", content=raw)).raise_for_status()
        key = f"email_fetch_conn_{connection}_{name}"
        payload = PayloadValidator.create_payload(
            user.firm_id, uuid4(), key, connection_id=connection, external_message_id=name
        )
        job = await JobQueue(app, user.firm_id).create("email_ingestion_fetch", payload)
        return {"external_message_id": name, "job_id": str(job.id)}

    @api.post("/dlq/{dlq_id}/repair", status_code=204)
    async def repair(request: Request, dlq_id: str, letter: Letter) -> None:
        """Whoever reviews its dead letter writes down by hand what a damaged message says."""
        user = signed_in(request)
        if user.role is not Role.MANAGER:
            raise HTTPException(403, "messages are repaired by managers who are staff")
        dead = await reviewed(user, dlq_id)
        # The page may be old: another person, or another tab, may have decided meanwhile.
        if dead.status not in OPEN:
            raise HTTPException(409, f"the dead letter of this message is {dead.status} already: nothing was written")
        firm, connection = firms.firm(user.firm_id), dead.payload.get("connection_id")
        row = firm.one("message", connection_id=connection, external_id=dead.payload.get("external_message_id"))
        if row is None:
            raise HTTPException(404, "the firm has no such message any more")
        if row["sender"] is not None:
            raise HTTPException(409, "this message has been read already: nothing was written")
        maildir(firm, connection)[row["maildir_key"]] = raw_mail(letter.sender, letter.subject)

    admin = create_app(app, authenticate=sessions.principal)
    translated = _Translated(admin)
    routes = [
        Route("/", FileResponse(HERE / "page.html")),
        Route("/shared.css", FileResponse(HERE.parent / "page.css")),
        *(Route(f"/{file}", FileResponse(HERE / file)) for file in ("page.css", "page.js", "icon.svg")),
        *translated.routes,
        Mount("/site", api),
        Mount("", admin),
    ]
    root = FastAPI(routes=routes, docs_url=None, redoc_url=None, openapi_url=None)
    return TrustedHostMiddleware(Guarded(root), ["127.0.0.1", "localhost"])


class _Translated:
    """Asks the admin API, which knows who may see what, and translates its answer."""

    def __init__(self, admin: ASGIApp) -> None:
        self._admin = admin
        paths = {"queue": self.queue, "queue/statistics": self.statistics, "audit": self.audit}
        # The admin API does without the slash at the end, too.
        self.routes = [Route(f"{ADMIN}/{path}{end}", serve) for path, serve in paths.items() for end in ("", "/")]

    async def queue(self, request: Request) -> Response:
        """Jobs by the platform's statuses: pending, processing, completed, failed, cancelled."""
        asked, unknown = [], []
        for name, value in request.query_params.multi_items():
            if name != "status":
                asked.append((name, value))
            elif states := states_of(value):
                asked += [(name, state) for state in states]
            else:
                unknown.append(value)
        answer = await self._ask(request, "queue", asked)
        if isinstance(answer, Response):
            return answer
        if unknown:  # after the gates, which answer first
            detail = f"there is no status {unknown[0]!r:.40}; there are: {', '.join(Status)}"
            return JSONResponse({"title": "Unprocessable Entity", "status": 422, "detail": detail}, 422)
        return JSONResponse(answer | {"jobs": [job | {"status": status_of(job["status"])} for job in answer["jobs"]]})

    async def statistics(self, request: Request) -> Response:
        """Adds counts by the platform's statuses; ended jobs since the time that the answer names."""
        answer = await self._ask(request, "queue/statistics", request.query_params.multi_items())
        if isinstance(answer, Response):
            return answer
        counts = dict.fromkeys(Status, 0)
        for state, jobs in (answer["live"] | answer["finished"]).items():
            counts[status_of(state)] += jobs
        return JSONResponse(answer | {"by_status": counts})

    async def audit(self, request: Request) -> Response:
        answer = await self._ask(request, "audit", request.query_params.multi_items())
        if isinstance(answer, Response):
            return answer
        events = [one | {"event": audit_name(one["action"], one["outcome"])} for one in answer["events"]]
        return JSONResponse(answer | {"events": events})

    async def _ask(self, request: Request, path: str, params: list[tuple[str, str]]) -> Json | Response:
        """The admin API's answer, or its refusal as it is."""
        kept = {name: request.headers[name] for name in ("authorization", "cookie") if name in request.headers}
        transport = httpx2.ASGITransport(app=self._admin, client=("127.0.0.1", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as inner:
            answer = await inner.get(f"{ADMIN}/{path}/?{urlencode(params)}", headers=kept)
        if answer.status_code != 200:
            return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))
        found: Json = answer.json()
        return found
