"""Who asks: one with a token of ours, or one whom the host's own authentication knows."""

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from inspect import isawaitable
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from starlette.requests import Request

from dutiful.access import Access, hash_of
from dutiful.core.errors import DutifulError
from dutiful.core.principal import Origin, Principal
from dutiful.web.problems import Problem

Authenticate = Callable[[Request], "Principal | Awaitable[Principal | None] | None"]
CHALLENGE = 'Bearer realm="dutiful"'
TOUCH = 60.0
MOST_TOUCHED = 10_000
_BEARER = re.compile(r"bearer +([\w.~+/=-]{1,200})", re.ASCII | re.IGNORECASE)
log = logging.getLogger("dutiful.web")


class Authentication:
    """The host's word first, if it has one; then the token.

    A token is found by its hash, so that how long it takes tells nothing of how near a guess was.
    """

    def __init__(self, authenticate: Authenticate | None = None) -> None:
        self._authenticate = authenticate
        self._touched: OrderedDict[UUID, float] = OrderedDict()
        self._touching: set[asyncio.Task[None]] = set()

    async def principal(self, request: Request, access: Access, address: str) -> Principal | None:
        """None if it is nobody that we know."""
        known = await self._known_to_host(request) or await self._bearer(request, access)
        return None if known is None else msgspec.structs.replace(known, origin=Origin.API, address=address)

    async def _known_to_host(self, request: Request) -> Principal | None:
        if self._authenticate is None:
            return None
        answer = self._authenticate(request)
        known = await answer if isawaitable(answer) else answer
        if known is not None and not isinstance(known, Principal):
            raise TypeError(f"authenticate returned {type(known).__name__}: it must return a Principal or None")
        return known

    async def _bearer(self, request: Request, access: Access) -> Principal | None:
        found = _BEARER.fullmatch(request.headers.get("authorization", "").strip())
        if found is None:
            return None
        token = await access.token_of(hash_of(found[1]))
        if token is None or not token.valid(datetime.now(UTC)):
            return None
        self._touch(token.id, access)
        return Principal(name=token.name, role=token.role, tenant=token.tenant)

    def _touch(self, token_id: UUID, access: Access) -> None:
        """That it was used is written once a minute, and nobody waits for it."""
        now = time.monotonic()
        if now - self._touched.get(token_id, -TOUCH) < TOUCH:
            return
        self._touched[token_id] = now
        self._touched.move_to_end(token_id)
        while len(self._touched) > MOST_TOUCHED:
            self._touched.popitem(last=False)
        task = asyncio.create_task(_touch(access, token_id))
        self._touching.add(task)  # the loop alone would not keep it alive
        task.add_done_callback(self._touching.discard)


async def _touch(access: Access, token_id: UUID) -> None:
    try:
        await access.touch_tokens([token_id])
    except DutifulError as error:
        log.warning("that a token was used could not be written: %s", error)


def check_same_site(request: Request) -> None:
    """A browser sends the host's cookies along whichever page made it ask: only the host's own pages may act.

    A token it does not send by itself, so who sends one is meant.
    """
    if "authorization" in request.headers:
        return
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    same = site in ("same-origin", "none") if site else origin is None or _host(origin) == request.headers.get("host")
    if not same:
        raise Problem(403, "this was asked by a page of another site; act from a page of this one, or with a token")


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None
