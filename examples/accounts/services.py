"""Services on real sockets, which can be made to fail: SMTP, an SMS gateway, signed URLs, an object store."""

import asyncio
import email
import email.policy
import hashlib
import hmac
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any
from urllib.parse import quote, urlencode

from aiosmtpd.smtp import SMTP, Envelope, Session
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples.serving import HOST, serving

ALWAYS = 1_000_000
SIGNED_FOR = 60  # seconds


@dataclass
class Services:
    mails: list[EmailMessage] = field(default_factory=list)
    texts: list[dict[str, str]] = field(default_factory=list)  # as posted, with their idempotency key
    buckets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    token: str = field(default_factory=secrets.token_hex, repr=False)
    accepted: asyncio.Event = field(default_factory=asyncio.Event)  # set by each mail
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _refusals: Counter[str] = field(default_factory=Counter)
    _hold: asyncio.Event | None = None
    _url: str = ""
    _smtp_port: int = 0

    # --- failures on demand

    def refuse(self, recipient: str, times: int = ALWAYS) -> None:
        """Refuses the next messages to an address or a number."""
        self._refusals[recipient] = times

    def hold_answers(self) -> None:
        """Accepts mails, but delays the answer until `release_answers`, or until the sender has gone."""
        self._hold = asyncio.Event()

    def release_answers(self) -> None:
        if self._hold is not None:
            self._hold.set()
            self._hold = None

    # --- serving

    def environment(self) -> dict[str, str]:
        """The settings by which a worker finds them."""
        return {
            "DUTIFUL_SMTP_URL": f"smtp://{HOST}:{self._smtp_port}?from=accounts@example.org",
            "DUTIFUL_SMS_URL": f"{self._url}/sms",
            "DUTIFUL_SMS_TOKEN": self.token,
            "DUTIFUL_FILES_URL": f"{self._url}/files",
            "DUTIFUL_FILES_TOKEN": self.token,
        }

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Services"]:
        routes = [
            Route("/sms", self._send_text, methods=["POST"]),
            Route("/files/signed-urls", self._sign, methods=["POST"]),
            Route("/store/{bucket}/{key:path}", self._delete, methods=["DELETE"]),
        ]
        loop = asyncio.get_running_loop()
        mail = await loop.create_server(lambda: SMTP(_Mailbox(self), hostname="mail.example", loop=loop), HOST, 0)
        try:
            async with serving(Starlette(routes=routes)) as self._url:
                self._smtp_port = mail.sockets[0].getsockname()[1]
                yield self
        finally:
            self.release_answers()
            mail.close()

    def refuses(self, recipient: str) -> bool:
        refused = self._refusals[recipient] > 0
        self._refusals[recipient] -= refused
        return refused

    async def accept(self, mail: EmailMessage) -> None:
        self.mails.append(mail)
        self.accepted.set()
        if self._hold is not None:
            await self._hold.wait()

    async def _send_text(self, request: Request) -> Response:
        if not self._authorized(request):
            return JSONResponse({"error": "wrong token"}, 401)
        text = await request.json()
        if self.refuses(text["to_number"]):
            return JSONResponse({"error": "the number is not reachable"}, 503)
        self.texts.append({**text, "key": request.headers.get("idempotency-key", "")})
        return JSONResponse({"message_id": secrets.token_hex(8)}, 202)

    async def _sign(self, request: Request) -> Response:
        """Signs an URL by which one object can be deleted for a minute."""
        if not self._authorized(request):
            return JSONResponse({"error": "wrong token"}, 401)
        asked = await request.json()
        if asked["bucket"] not in self.buckets:
            return JSONResponse({"error": f"there is no bucket {asked['bucket']}"}, 422)
        path = f"/store/{asked['bucket']}/{quote(asked['object_key'])}"
        expires = str(int(time.time()) + SIGNED_FOR)
        query = urlencode({"expires": expires, "signature": self._signature(asked["method"], path, expires)})
        return JSONResponse({"url": f"{self._url}{path}?{query}"})

    async def _delete(self, request: Request) -> Response:
        expires, path = request.query_params.get("expires", "0"), quote(request.url.path)
        signature = self._signature(request.method, path, expires)
        if not hmac.compare_digest(signature, request.query_params.get("signature", "")) or int(expires) < time.time():
            return JSONResponse({"error": "the signature is not valid"}, 403)
        objects = self.buckets[request.path_params["bucket"]]
        found = objects.pop(request.path_params["key"], None)
        return Response(status_code=404 if found is None else 204)

    def _authorized(self, request: Request) -> bool:
        return hmac.compare_digest(request.headers.get("authorization", ""), f"Bearer {self.token}")

    def _signature(self, *parts: str) -> str:
        return hmac.new(self._key, "\n".join(parts).encode(), hashlib.sha256).hexdigest()


@dataclass
class _Mailbox:
    services: Services

    async def handle_RCPT(  # noqa: N802 - the name that aiosmtpd calls
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.services.refuses(address):
            return "451 the mailbox is busy"
        envelope.rcpt_tos.append(address)
        return "250 fine"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        content: Any = envelope.content
        await self.services.accept(email.message_from_bytes(content, policy=email.policy.default))
        return "250 taken"
