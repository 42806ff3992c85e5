"""Fake external services on real sockets: grid, elevation, partners, mail, a pager. Tests can make them fail."""

import asyncio
import email
import email.policy
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope, Session
from standardwebhooks import Webhook, WebhookVerificationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples.serving import listening, serving

SWITCHES = ("grid", "elevation", "copy", "mail")  # what a person at the page may break
CELL = 250  # metres from centre to centre


@dataclass(frozen=True)
class Addresses:
    services: str
    smtp_port: int


@dataclass
class FakeServices:
    pager_secret: str | None = field(default=None, repr=False)
    paged: list[dict[str, Any]] = field(default_factory=list)  # messages with a valid signature
    called: Counter[str] = field(default_factory=Counter)  # by service
    delivered: list[EmailMessage] = field(default_factory=list)
    copies: dict[int, dict[str, Any]] = field(default_factory=dict)
    received: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the message's id
    closed: set[str] = field(default_factory=set)  # mailboxes that do not exist
    _failing: set[str] = field(default_factory=set)
    _held: dict[str, asyncio.Event] = field(default_factory=dict)

    # --- failures on demand, by service: grid, elevation, copy, utp, mail

    def fail(self, service: str) -> None:
        """Answers 503 (mail: 421) until it is repaired."""
        self._failing.add(service)

    def repair(self, service: str) -> None:
        self._failing.discard(service)

    def hold(self, service: str) -> None:
        """Delays all answers until it is released."""
        self._held[service] = asyncio.Event()

    def release(self, service: str) -> None:
        self._held.pop(service).set()

    # --- serving

    @asynccontextmanager
    async def open(self, port: int = 0, smtp_port: int = 0) -> AsyncIterator[Addresses]:
        """Serves them at these ports of this machine, or at free ones."""
        routes = [
            Route("/", self._state),
            Route("/switch/{service}", self._switch, methods=["PUT"]),
            Route("/grid", self._service("grid", self._grid)),
            Route("/elevation", self._service("elevation", self._elevation)),
            Route("/copy/{lipas_id:int}", self._service("copy", self._copy), methods=["PUT"]),
            Route("/utp", self._service("utp", self._utp), methods=["POST"]),
            Route("/pager", self._page, methods=["POST"]),
        ]
        loop = asyncio.get_running_loop()
        mail = await loop.create_server(
            lambda: SMTP(_Mailbox(self), hostname="mail.example", loop=loop), sock=listening(smtp_port)
        )
        try:
            async with serving(Starlette(routes=routes), port) as url:
                yield Addresses(url, mail.sockets[0].getsockname()[1])
        finally:
            mail.close()

    async def admit(self, service: str) -> bool:
        """Counts the call, delays it while held, and returns whether it succeeds."""
        self.called[service] += 1
        if service in self._held:
            await self._held[service].wait()
        return service not in self._failing

    def _service(
        self, name: str, answer: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            await request.body()  # now, because a delayed caller may have disconnected later
            return await answer(request) if await self.admit(name) else Response(status_code=503)

        return serve

    async def _state(self, request: Request) -> Response:
        """Who fails at the moment, and the latest mails, the newest first."""
        mails = [{"to": str(mail["To"]), "subject": str(mail["Subject"])} for mail in self.delivered[:-9:-1]]
        return JSONResponse({"failing": {name: name in self._failing for name in SWITCHES}, "mails": mails})

    async def _switch(self, request: Request) -> Response:
        service, failing = request.path_params["service"], (await request.json())["failing"]
        if service not in SWITCHES:
            return Response(status_code=404)
        (self.fail if failing else self.repair)(service)
        return Response(status_code=204)

    async def _grid(self, request: Request) -> Response:
        east, north, radius = (int(request.query_params[name]) for name in ("east", "north", "radius"))
        cells = [
            {"east": e, "north": n, "population": (e // CELL * 7 + n // CELL * 13) % 60}
            for e in range((east - radius) // CELL * CELL, east + radius + 1, CELL)
            for n in range((north - radius) // CELL * CELL, north + radius + 1, CELL)
        ]
        return JSONResponse(cells)

    async def _elevation(self, request: Request) -> Response:
        east, north = (int(request.query_params[name]) for name in ("east", "north"))
        return JSONResponse({"elevation": (east + north) % 3000 / 10})

    async def _copy(self, request: Request) -> Response:
        self.copies[request.path_params["lipas_id"]] = await request.json()
        return Response(status_code=204)

    async def _utp(self, request: Request) -> Response:
        self.received[request.headers["webhook-id"]] = await request.json()
        return Response(status_code=202)

    async def _page(self, request: Request) -> Response:
        if self.pager_secret is None:
            return Response(status_code=404)
        try:
            self.paged.append(Webhook(self.pager_secret).verify(await request.body(), dict(request.headers)))
        except WebhookVerificationError:
            return Response(status_code=401)
        return Response(status_code=204)


@dataclass
class _Mailbox:
    services: FakeServices

    async def handle_RCPT(  # noqa: N802 - the name that aiosmtpd calls
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if not await self.services.admit("mail"):
            return "421 closing, come back later"
        if address in self.services.closed:
            return "550 no such mailbox here"
        envelope.rcpt_tos.append(address)
        return "250 fine"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        content = envelope.content
        assert isinstance(content, bytes)
        self.services.delivered.append(email.message_from_bytes(content, policy=email.policy.default))
        return "250 taken"
