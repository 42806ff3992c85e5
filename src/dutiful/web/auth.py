"""Who asks: one with a token of ours, or one whom the host's own authentication knows."""

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime
from inspect import isawaitable
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from starlette.requests import Request

from dutiful.access import Access, hash_of
from dutiful.core.errors import DutifulError, UsageError
from dutiful.core.payload import check_name
from dutiful.core.principal import Origin, Principal, Role
from dutiful.core.tenant import check_tenant
from dutiful.guarding import Guarding
from dutiful.store import Store
from dutiful.web.problems import Problem

Authenticate = Callable[[Request], "Principal | Awaitable[Principal | None] | None"]
CHALLENGE = 'Bearer realm="dutiful"'
TOUCH = 60.0
RELEARN = 1.0  # seconds at least in between, for strangers could make us ask without end
MOST_TOUCHED = 10_000
_BEARER = re.compile(r"bearer +([\w.~+/=-]{1,200})", re.ASCII | re.IGNORECASE)
log = logging.getLogger("dutiful.web")


class Caller(NamedTuple):
    principal: Principal
    by_token: bool  # which no browser sends by itself; what the host knows them by, it may


class Authentication:
    """The host's word first, if it has one; then the token.

    A token is found by its hash, so that how long it takes tells nothing of how near a guess was.
    """

    def __init__(self, authenticate: Authenticate | None = None) -> None:
        self._authenticate = authenticate
        self._learnt = -RELEARN
        self._touched: OrderedDict[UUID, float] = OrderedDict()
        self._touching: set[asyncio.Task[None]] = set()

    async def caller(self, request: Request, store: Store, address: str) -> Caller | None:
        """None if it is nobody that we know."""
        by_host = await self._known_to_host(request)
        known = by_host or await self._bearer(request, store)
        if known is None:
            return None
        return Caller(msgspec.structs.replace(known, origin=Origin.API, address=address), by_token=by_host is None)

    async def _known_to_host(self, request: Request) -> Principal | None:
        if self._authenticate is None:
            return None
        answer = self._authenticate(request)
        known = await answer if isawaitable(answer) else answer
        return None if known is None else read_principal(known)

    async def _bearer(self, request: Request, store: Store) -> Principal | None:
        found = _BEARER.fullmatch(request.headers.get("authorization", "").strip())
        if found is None:
            return None
        hashed = hash_of(found[1])
        token = await store.token_of(hashed)
        if token is None and await self._relearnt(store):
            token = await store.token_of(hashed)
        if token is None or not token.valid(datetime.now(UTC)):
            return None
        self._touch(token.id, store)
        return Principal(name=token.name, role=token.role, tenant=token.tenant)

    async def _relearnt(self, store: Store) -> bool:
        """Where tenants were switched on meanwhile, a store that does not know it yet sees no tokens at all."""
        now = time.monotonic()
        if not isinstance(store, Guarding) or now - self._learnt < RELEARN:
            return False
        self._learnt = now
        await store.relearn_tenants()
        return True

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


def read_principal(given: Any) -> Principal:
    """What the host says of its user, as we go by it; what cannot be gone by is a mistake of the host's code."""
    if not isinstance(given, Principal):
        raise TypeError(f"authenticate returned {type(given).__name__}: it must return a Principal or None")
    try:
        role = Role(given.role)
    except ValueError:
        raise TypeError(
            f"authenticate returned a Principal with the role {given.role!r:.80}: it must be one of {', '.join(Role)}"
        ) from None
    tenant = str(given.tenant) if isinstance(given.tenant, int) else given.tenant
    try:
        check_name(given.name, "name")
        if tenant is not None:
            check_tenant(check_name(tenant, "tenant"))
    except UsageError as error:
        raise TypeError(f"authenticate returned a Principal that cannot be gone by: {error}") from None
    return msgspec.structs.replace(given, role=role, tenant=tenant)


def check_same_site(request: Request, allowed: Collection[str] = ()) -> None:
    """A browser sends the host's cookies, or its password, along whichever page made it ask: only pages of the host
    itself, or of the origins it allows, may act."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if origin is not None and origin in allowed:
        return
    same = site in ("same-origin", "none") if site else origin is None or _host(origin) == request.headers.get("host")
    if not same:
        raise Problem(403, "this was asked by a page of another site; act from a page of this one, or with a token")


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None
